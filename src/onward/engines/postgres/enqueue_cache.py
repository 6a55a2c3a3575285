"""What was seen of the store a moment ago, which most jobs rely on instead of looking again.

A look at a job's lane, at what its queue says of jobs, and at whether anybody listens costs a lone job a third of what
it costs to add it. So the first job of a lane looks, and those of the next quarter of a second do without. What may go
wrong meanwhile is little: no lane is taken away so soon unless its queue is paused, and a job without one is found by
whoever leads; a queue's new attempts and backoff hold for jobs that come a quarter of a second later; and who begins to
listen looks for itself then, and is told of what comes a moment after that with the next notice.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

TTL: Final = 0.25
"""Seconds for which what was seen is relied on."""
_MAX_LANES: Final = 10_000
"""Lanes that are kept in mind."""

Lane = tuple[str, int]
"""A queue and a priority."""


class EnqueueCache:
    """Which lanes were open, of queues that say nothing of their jobs; and whether somebody listened."""

    __slots__ = ("_lanes", "has_listener")

    def __init__(self) -> None:
        self._lanes: dict[Lane, float] = {}
        """Each with the moment until which that is relied on."""
        self.has_listener = True

    def is_fresh(self, lane: Lane) -> bool:
        """Say whether a job can go there without a look."""
        return monotonic() < self.fresh_until(lane)

    def fresh_until(self, lane: Lane) -> float:
        """Say until when that can be relied on."""
        return self._lanes.get(lane, 0.0)

    def store(self, lane: Lane, began: float, *, is_plain: bool, has_listener: bool | None) -> None:
        """Note what was seen by a statement that opened the lane if need be."""
        if has_listener is not None:
            self.has_listener = has_listener
        if is_plain:
            if len(self._lanes) >= _MAX_LANES:
                self._lanes.clear()
            self._lanes[lane] = began + TTL

    def clear(self) -> None:
        """Note that a queue was told something."""
        self._lanes.clear()
