"""Usage as series for charts: runs, failures, waits and durations over time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from onward.dashboard.charts import Chart, Series, chart
from onward.dashboard.pulse import FAILURES
from onward.metering import BOUNDS, Usage

_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
_LEAST_PART: Final = 0.25
"""Of a step: less says nothing about its rate."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A length of time to look at."""

    name: str
    label: str
    length: timedelta
    step: timedelta
    bucket: str
    """The grain of usage that it is drawn from."""

    def start(self, now: datetime) -> datetime:
        """Return the beginning of its first step."""
        begin = now.astimezone(UTC) - self.length + self.step
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        return begin - (begin - epoch) % self.step

    @property
    def steps(self) -> int:
        """How many points it has."""
        return int(self.length / self.step)


RANGES: Final = (
    Range(name="hour", label="Hour", length=timedelta(hours=1), step=_MINUTE, bucket="minute"),
    Range(name="day", label="Day", length=_DAY, step=timedelta(minutes=20), bucket="minute"),
    Range(name="week", label="Week", length=7 * _DAY, step=_DAY, bucket="day"),
    Range(name="month", label="Month", length=30 * _DAY, step=_DAY, bucket="day"),
)


def range_of(name: str) -> Range:
    """Return the range of that name, or the hour."""
    return next((each for each in RANGES if each.name == name), RANGES[0])


def throughput(rows: Iterable[Usage], over: Range, now: datetime) -> Chart:
    """Draw runs and failures per minute, or per day."""
    start = over.start(now)
    runs, failures = [0.0] * over.steps, [0.0] * over.steps
    per = over.step / _MINUTE if over.bucket == "minute" else 1.0
    for row in rows:
        at = _index(row.at, start, over)
        if at is not None:
            runs[at] += row.runs / per
            if row.outcome in FAILURES:
                failures[at] += row.runs / per
    if over.bucket == "minute":
        # The last step is not over: its rate is that of the part that has passed, or the line would always fall.
        passed = max((now - start) / over.step - (over.steps - 1), _LEAST_PART)
        runs[-1], failures[-1] = runs[-1] / passed, failures[-1] / passed
    unit = "Runs per minute" if over.bucket == "minute" else "Runs per day"
    return chart(
        unit,
        [
            Series(name="runs", values=tuple(runs), has_area=True),
            Series(name="failed runs", values=tuple(failures), kind="badline"),
        ],
        start=start,
        step=over.step,
    )


def latency(rows: Iterable[Usage], over: Range, now: datetime) -> Chart:
    """Draw how long jobs waited and ran, on average."""
    start = over.start(now)
    waits, spans, runs = [0.0] * over.steps, [0.0] * over.steps, [0] * over.steps
    for row in rows:
        at = _index(row.at, start, over)
        if at is not None:
            waits[at] += row.wait_seconds
            spans[at] += row.run_seconds
            runs[at] += row.runs

    def mean(sums: list[float]) -> tuple[float, ...]:
        return tuple(each / count if count else 0.0 for each, count in zip(sums, runs, strict=True))

    return chart(
        "Seconds per run",
        [
            Series(name="wait", values=mean(waits), kind="waitline"),
            Series(name="duration", values=mean(spans)),
        ],
        start=start,
        step=over.step,
        unit=" s",
    )


def per_queue(rows: Iterable[Usage], over: Range, now: datetime) -> dict[str, list[float]]:
    """Collect runs by queue, for sparklines."""
    start = over.start(now)
    found: dict[str, list[float]] = {}
    for row in rows:
        at = _index(row.at, start, over)
        if at is not None and row.queue is not None:
            found.setdefault(row.queue, [0.0] * over.steps)[at] += row.runs
    return found


def percentile(histogram: Iterable[int], share: float) -> float | None:
    """Return the upper end of the bucket that a percentile falls into; None: no runs, or beyond the last bucket."""
    counts = list(histogram)
    wanted, seen = share * sum(counts), 0
    if not wanted:
        return None
    for bound, count in zip(BOUNDS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return None


def _index(at: datetime | None, start: datetime, over: Range) -> int | None:
    if at is None:
        return None
    index = int((at - start) // over.step)
    return index if 0 <= index < over.steps else None
