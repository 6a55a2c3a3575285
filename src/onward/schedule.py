"""Schedules: what is enqueued again and again, and when.

A schedule is a row of the store with a job to be and the moment of its next turn. Whoever fires it sets that moment
forward and adds the job in one transaction, and only where the moment is still the one it has read: each turn is fired
at most once, whoever else tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any, Final

import msgspec

from onward.clock import moment_of
from onward.cron import Trigger
from onward.errors import InvalidValue
from onward.job import NewJob

MAX_MISSED: Final = 1000
"""Turns that are made up for at a time."""
LATE: Final = timedelta(minutes=1)
"""How long after its moment a turn still counts as come, and not as missed."""
_job_decoder: Final = msgspec.json.Decoder(NewJob)
_trigger_decoder: Final[msgspec.json.Decoder[Trigger]] = msgspec.json.Decoder(Trigger)
_SPANS: Final = (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), timedelta(days=31), timedelta(days=3660))


class Missed(StrEnum):
    """What becomes of turns that came while nobody was there to fire them."""

    SKIP = "skip"
    """Nothing: the next one is the next one."""
    ONCE = "once"
    """One job for all of them."""
    ALL = "all"
    """One job for each."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is enqueued whenever its turn comes."""

    name: str
    job: NewJob
    trigger: Trigger
    missed: Missed = Missed.ONCE
    paused: bool = False
    next_at: datetime | None = None
    """None while it is paused, and where only the store's own clients can read its trigger."""
    last_at: datetime | None = None
    """The last turn that was fired."""

    def upcoming(self, count: int, *, now: datetime | None = None) -> list[datetime]:
        """Compute its next ``count`` times: from its next one on, or after ``now`` where that is given."""
        if now is not None:
            return list(islice(self.trigger.after(now), count))
        if self.next_at is None:
            return []
        return [self.next_at, *islice(self.trigger.after(self.next_at), count - 1)][:count]

    def going_on(self, now: datetime) -> Schedule:
        """Let its next turn be the first one from now on."""
        return msgspec.structs.replace(self, paused=False, next_at=next(self.trigger.after(now)))

    def stopped(self) -> Schedule:
        """Let no turn come."""
        return msgspec.structs.replace(self, paused=True, next_at=None)

    def is_like(self, other: Schedule) -> bool:
        """Say whether it asks for the same, wherever each stands."""
        return (self.job, self.trigger, self.missed) == (other.job, other.trigger, other.missed)


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for a schedule whose turn has come."""

    jobs: list[NewJob]
    last_at: datetime
    """The last turn that is done with."""
    next_at: datetime


def firing_of(schedule: Schedule, now: datetime) -> Firing:
    """Decide which jobs to add for a schedule that is due, and when it is due again.

    The idempotency key of each is the schedule's name with the turn: whatever happens, there are never two for one.
    """
    due = schedule.next_at
    if due is None or due > now:
        raise InvalidValue("schedule", schedule.name, f"is due at {due}, and it is {now}")
    if schedule.missed is Missed.ALL:
        turns = [due, *islice(takewhile(lambda turn: turn <= now, schedule.trigger.after(due)), MAX_MISSED - 1)]
    else:
        turns = [_latest(schedule.trigger, due, now)]
    if schedule.missed is Missed.SKIP and now - turns[-1] > LATE:
        jobs = []
    else:
        jobs = [_job_of(schedule, turn) for turn in turns]
    return Firing(jobs=jobs, last_at=turns[-1], next_at=next(schedule.trigger.after(turns[-1])))


def _latest(trigger: Trigger, due: datetime, now: datetime) -> datetime:
    """Find the last turn until now without going through all of a long absence."""
    for span in _SPANS:
        turns = list(takewhile(lambda turn: turn <= now, trigger.after(max(due, now - span))))
        if turns:
            return turns[-1]
    return due


def _job_of(schedule: Schedule, turn: datetime) -> NewJob:
    return msgspec.structs.replace(schedule.job, idempotency_key=f"{schedule.name}@{turn.isoformat()}")


# How stores keep them -------------------------------------------------------------------------------------------------


def texts_of(schedule: Schedule) -> tuple[str, str]:
    """Write the job and the trigger as JSON."""
    return msgspec.json.encode(schedule.job).decode(), msgspec.json.encode(schedule.trigger).decode()


def schedule_of(row: Sequence[Any]) -> Schedule:
    """Read a schedule from a row: its fields in their order, times in microseconds since 1970."""
    name, job, trigger, missed, paused, next_at, last_at = row
    return Schedule(
        name=name,
        job=_job_decoder.decode(job),
        trigger=_trigger_decoder.decode(trigger),
        missed=Missed(missed),
        paused=bool(paused),
        next_at=None if next_at is None else moment_of(next_at),
        last_at=None if last_at is None else moment_of(last_at),
    )
