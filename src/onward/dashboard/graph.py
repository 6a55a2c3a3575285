"""The graph of a flow, laid out in columns: a job is right of all that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from onward.batches.values import Dependency
from onward.dashboard.wording import pill, shortened
from onward.job import Job

_WIDTH: Final = 168
_HEIGHT: Final = 44
_GAP_X: Final = 56
_GAP_Y: Final = 14
_PAD: Final = 8
MAX_NODES: Final = 150


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A job, drawn."""

    x: int
    y: int
    title: str
    state: str
    kind: str
    path: str
    is_hollow: bool = False


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, drawn."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]
    box_width: int = _WIDTH
    box_height: int = _HEIGHT
    summary: str = ""


def draw(jobs: Sequence[Job], dependencies: Sequence[Dependency], paths: Mapping[str, str]) -> Drawing | None:
    """Draw a flow; None: no job waits for another, or it is too large to be read."""
    known = {job.id: job for job in jobs}
    edges = [one for one in dependencies if one.job in known and one.depends_on in known]
    if not edges or len(jobs) > MAX_NODES:
        return None
    columns = _columns(known, edges)
    rows: dict[str, int] = {}
    used: dict[int, int] = {}
    parents: dict[str, list[str]] = {}
    for edge in edges:
        parents.setdefault(edge.job, []).append(edge.depends_on)

    def middle(id: str) -> float:
        above = [rows[parent] for parent in parents.get(id, ()) if parent in rows]
        return sum(above) / len(above) if above else 0.0

    for column in range(max(columns.values()) + 1):
        for id in sorted(
            (id for id in known if columns[id] == column), key=lambda one: (middle(one), known[one].created_at)
        ):
            rows[id] = used.get(column, 0)
            used[column] = rows[id] + 1
    tallest = max(used.values())
    places = {
        id: (
            _PAD + columns[id] * (_WIDTH + _GAP_X),
            _PAD + round((rows[id] + (tallest - used[columns[id]]) / 2) * (_HEIGHT + _GAP_Y)),
        )
        for id in known
    }
    arrows = []
    for edge in edges:
        (x1, y1), (x2, y2) = places[edge.depends_on], places[edge.job]
        start, end, bend = (x1 + _WIDTH, y1 + _HEIGHT // 2), (x2 - 2, y2 + _HEIGHT // 2), _GAP_X // 2
        arrows.append(
            f"M{start[0]},{start[1]} C{start[0] + bend},{start[1]} {end[0] - bend},{end[1]} {end[0]},{end[1]}"
        )
    boxes = tuple(
        Box(
            x=x,
            y=y,
            title=shortened(known[id].type, 20),
            state=pill(known[id].status).word,
            kind=pill(known[id].status).kind,
            is_hollow=pill(known[id].status).hollow,
            path=paths[id],
        )
        for id, (x, y) in places.items()
    )
    return Drawing(
        width=2 * _PAD + (max(columns.values()) + 1) * (_WIDTH + _GAP_X) - _GAP_X,
        height=2 * _PAD + tallest * (_HEIGHT + _GAP_Y) - _GAP_Y,
        boxes=boxes,
        arrows=tuple(arrows),
        summary=f"{len(jobs)} jobs in {max(columns.values()) + 1} steps",
    )


def _columns(known: Mapping[str, Job], edges: Sequence[Dependency]) -> dict[str, int]:
    columns = dict.fromkeys(known, 0)
    for _ in range(len(known)):  # a flow has no cycles; a damaged one must not hang
        has_moved = False
        for edge in edges:
            if columns[edge.job] <= columns[edge.depends_on]:
                columns[edge.job] = columns[edge.depends_on] + 1
                has_moved = True
        if not has_moved:
            break
    return columns
