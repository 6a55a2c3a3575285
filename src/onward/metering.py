"""Metering: what runs were made, for whom, how they ended, and how long they waited and took (H8).

Every run is counted by the worker that made it, under its organisation, queue, task and end. Workers hand their counts
to the store every second, and a leader rolls them up by the minute and then by the day: so there is never a row for a
job. A worker that is killed takes the counts of its last second with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from onward.job import JobRef
from onward.lifecycle import Bury, Cancel, Complete, Fail, Outcome, Retry, Snooze

BOUNDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds: the upper ends of a histogram's buckets. What is longer than the last goes into one more."""
BUCKETS: Final = len(BOUNDS) + 1

_ENDS: Final[Mapping[type[Outcome], str]] = {
    Complete: "completed",
    Retry: "retried",
    Fail: "failed",
    Bury: "dead_letter",
    Snooze: "snoozed",
    Cancel: "cancelled",
}
"""How a run can end. One that was given back has not been made."""


class UsageBy(StrEnum):
    """What usage can be told apart by."""

    ORG = "org_id"
    QUEUE = "queue"
    TYPE = "type"
    OUTCOME = "outcome"


class Bucket(StrEnum):
    """The length of time that one row of usage covers."""

    MINUTE = "minute"
    """Kept for two days; what is older is told by the day."""
    DAY = "day"
    ALL = "all"


class Usage(msgspec.Struct, kw_only=True):
    """Runs, summed up. A field by which they were not told apart is None."""

    at: datetime | None = None
    """When the span begins."""
    org_id: str | None = None
    queue: str | None = None
    type: str | None = None
    outcome: str | None = None
    """``completed``, ``retried``, ``failed``, ``dead_letter``, ``snoozed`` or ``cancelled``."""
    runs: int = 0
    attempts: int = 0
    """Runs that cost an attempt."""
    wait_seconds: float = 0.0
    """Seconds from being ready to being claimed, of all runs together."""
    run_seconds: float = 0.0
    """Seconds of all runs together."""
    wait_histogram: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    """How many waited up to each of :data:`BOUNDS`, and longer."""
    run_histogram: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    """How many took up to each of :data:`BOUNDS`, and longer."""


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which usage, and how to sum it up."""

    bucket: Bucket = Bucket.DAY
    by: frozenset[UsageBy] = frozenset()
    since: datetime | None = None
    until: datetime | None = None
    org_id: str | None = None
    queue: str | None = None
    type: str | None = None


class Claimed(Protocol):
    """What is to be known of the job that was run: a claim knows it."""

    @property
    def ref(self) -> JobRef: ...  # noqa: D102
    @property
    def type(self) -> str: ...  # noqa: D102
    @property
    def org_id(self) -> str | None: ...  # noqa: D102
    @property
    def wait_seconds(self) -> float: ...  # noqa: D102


class Run(Protocol):
    """What is to be known of a run: a settlement knows it."""

    @property
    def claim(self) -> Claimed: ...  # noqa: D102
    @property
    def outcome(self) -> Outcome: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102


class Meter:
    """Counts the runs of one worker until they are handed to the store."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str | None, ...], Usage] = {}

    def add(self, runs: Iterable[Run]) -> None:
        """Count runs."""
        kinds: dict[tuple[str, str, str | None, type[Outcome]], tuple[list[float], list[float]]] = {}
        for run in runs:
            claim = run.claim
            kind = (claim.ref.queue, claim.type, claim.org_id, type(run.outcome))
            times = kinds.get(kind)
            if times is None:
                times = kinds[kind] = ([], [])
            times[0].append(claim.wait_seconds)
            times[1].append(run.seconds)
        for (queue, type_, org_id, outcome), (wait_histogram, run_histogram) in kinds.items():
            end = _ENDS.get(outcome)
            if end is None:
                continue
            key = (queue, type_, org_id, end)
            usage = self._counts.get(key)
            if usage is None:
                usage = self._counts[key] = Usage(queue=queue, type=type_, org_id=org_id, outcome=end)
            usage.runs += len(wait_histogram)
            usage.attempts += 0 if outcome is Snooze else len(wait_histogram)
            usage.wait_seconds += sum(wait_histogram)
            usage.run_seconds += sum(run_histogram)
            _fill(usage.wait_histogram, wait_histogram)
            _fill(usage.run_histogram, run_histogram)

    def take(self) -> list[Usage]:
        """Hand over what was counted, and begin anew."""
        counts, self._counts = self._counts, {}
        return list(counts.values())

    def put_back(self, taken: list[Usage]) -> None:
        """Keep what could not be handed over."""
        for usage in taken:
            key = (usage.queue, usage.type, usage.org_id, usage.outcome)
            known = self._counts.get(key)
            self._counts[key] = usage if known is None else _sum(known, usage)


def _fill(buckets: list[int], seconds: list[float]) -> None:
    """Put durations into the buckets of a histogram: by one look where all belong into the same, as they often do."""
    first, last = bisect_left(BOUNDS, min(seconds)), bisect_left(BOUNDS, max(seconds))
    if first == last:
        buckets[first] += len(seconds)
        return
    for each in seconds:
        buckets[bisect_left(BOUNDS, each)] += 1


def _sum(one: Usage, other: Usage) -> Usage:
    one.runs += other.runs
    one.attempts += other.attempts
    one.wait_seconds += other.wait_seconds
    one.run_seconds += other.run_seconds
    one.wait_histogram = [a + b for a, b in zip(one.wait_histogram, other.wait_histogram, strict=True)]
    one.run_histogram = [a + b for a, b in zip(one.run_histogram, other.run_histogram, strict=True)]
    return one


# How stores keep it ---------------------------------------------------------------------------------------------------

KEYS: Final = ("org_id", "queue", "type", "outcome")
SUMS: Final = (
    "runs",
    "attempts",
    "wait_us",
    "run_us",
    *(f"wait_bucket_{number}" for number in range(BUCKETS)),
    *(f"run_bucket_{number}" for number in range(BUCKETS)),
)
"""The columns of a row of usage that are summed up."""


def row_of(usage: Usage) -> list[Any]:
    """Lay usage out in columns: :data:`KEYS`, then :data:`SUMS`."""
    keys = [usage.org_id, usage.queue, usage.type, usage.outcome]
    sums = [usage.runs, usage.attempts, round(usage.wait_seconds * 1e6), round(usage.run_seconds * 1e6)]
    return [*keys, *sums, *usage.wait_histogram, *usage.run_histogram]


def usage_of(at: datetime | None, keys: list[Any], sums: list[int]) -> Usage:
    """Read a row of usage."""
    org_id, queue, type_, outcome = keys
    runs, attempts, wait_seconds, run_seconds, *buckets = map(int, sums)
    return Usage(
        at=at,
        org_id=org_id,
        queue=queue,
        type=type_,
        outcome=outcome,
        runs=runs,
        attempts=attempts,
        wait_seconds=wait_seconds / 1e6,
        run_seconds=run_seconds / 1e6,
        wait_histogram=buckets[:BUCKETS],
        run_histogram=buckets[BUCKETS:],
    )
