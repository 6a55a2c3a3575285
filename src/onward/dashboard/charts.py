"""Charts as SVG, computed on the server: the template writes them out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from onward.dashboard.wording import short_number

WIDTH: Final = 760
HEIGHT: Final = 190
_LEFT: Final = 44
_TOP: Final = 14
_BOTTOM: Final = 164
SPARK_WIDTH: Final = 96
SPARK_HEIGHT: Final = 24


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A text of an axis."""

    x: float
    y: float
    text: str
    anchor: str = "end"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One series, drawn."""

    path: str
    area: str = ""
    kind: str = "line"
    """Its class in the style sheet."""
    name: str = ""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart, drawn."""

    title: str
    summary: str
    """What a person who cannot see it is told."""
    lines: tuple[Line, ...]
    grid: tuple[float, ...]
    labels: tuple[Label, ...]
    is_empty: bool = False
    width: int = WIDTH
    height: int = HEIGHT


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values at equal distances."""

    name: str
    values: tuple[float, ...]
    kind: str = "line"
    has_area: bool = False


def chart(title: str, series: Sequence[Series], *, start: datetime, step: timedelta, unit: str = "") -> Chart:
    """Draw a chart over time."""
    top = _ceiling(max((value for each in series for value in each.values), default=0.0))
    steps = max((len(each.values) for each in series), default=0)
    lines = tuple(_line(each, top) for each in series)
    grid = tuple(_y(top * part / 3, top) for part in range(4))
    labels = [
        Label(x=_LEFT - 6, y=_y(top * part / 3, top) + 4, text=short_number(round(top * part / 3, 3)))
        for part in range(4)
    ]
    labels += _times(start, step, steps)
    said = "; ".join(
        f"{each.name}: at most {short_number(max(each.values, default=0))}{unit}, last "
        f"{short_number(each.values[-1] if each.values else 0)}{unit}"
        for each in series
    )
    is_empty = not any(value for each in series for value in each.values)
    return Chart(
        title=title,
        summary=f"{title}. {said}." if not is_empty else f"{title}: no runs in this time.",
        lines=lines,
        grid=grid,
        labels=tuple(labels),
        is_empty=is_empty,
    )


def spark(values: Sequence[float]) -> Line | None:
    """Draw a small line without axes; None: all values are zero."""
    top = max(values, default=0.0)
    if top <= 0 or len(values) < 2:
        return None
    width = SPARK_WIDTH / (len(values) - 1)
    points = [
        f"{at * width:.1f},{SPARK_HEIGHT - 2 - value / top * (SPARK_HEIGHT - 4):.1f}" for at, value in enumerate(values)
    ]
    path = "M" + " L".join(points)
    return Line(path=path, area=f"{path} L{SPARK_WIDTH},{SPARK_HEIGHT} L0,{SPARK_HEIGHT} Z")


def _line(series: Series, top: float) -> Line:
    count = len(series.values)
    if not count:
        return Line(path="", kind=series.kind, name=series.name)
    width = (WIDTH - 4 - _LEFT) / max(1, count - 1)
    points = [f"{_LEFT + at * width:.1f},{_y(value, top):.1f}" for at, value in enumerate(series.values)]
    path = "M" + " L".join(points)
    area = f"{path} L{_LEFT + (count - 1) * width:.1f},{_BOTTOM} L{_LEFT},{_BOTTOM} Z" if series.has_area else ""
    return Line(path=path, area=area, kind=series.kind, name=series.name)


def _y(value: float, top: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * (value / top if top else 0), 1)


def _ceiling(value: float) -> float:
    """Return a round number of three equal parts that is not less than the value."""
    if value <= 0:
        return 3.0
    size = 10.0 ** (len(f"{value:.0f}") - 1) if value >= 1 else 10.0 ** -(len(f"{1 / value:.0f}"))
    for part in (0.3, 0.6, 1.5, 3, 6, 9, 12, 15, 30):
        if part * size >= value:
            return part * size
    return value


def _times(start: datetime, step: timedelta, steps: int) -> list[Label]:
    if steps < 2:
        return []
    is_long = step * steps > timedelta(days=2)
    labels = []
    for part in range(5):
        at = start + step * (steps - 1) * part / 4
        text = f"{at.astimezone(UTC):%d %b}" if is_long else f"{at.astimezone(UTC):%H:%M}"
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        x = _LEFT + (WIDTH - 4 - _LEFT) * part / 4
        labels.append(Label(x=round(x, 1), y=HEIGHT - 8, text="now" if part == 4 else text, anchor=anchor))
    return labels
