"""Keeps schedules: the next turn is set and its jobs are added in one transaction."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onward.clock import micros_of, moment_of
from onward.cron import Rhythm
from onward.engine.values import Due
from onward.engines.sqlite.enqueueing import enqueue
from onward.engines.sqlite.lane import Transaction
from onward.engines.sqlite.rows import json_text, moment
from onward.engines.sqlite.statements import SQL
from onward.job import Enqueued, NewJob
from onward.schedule import Firing, Missed, Schedule

_ALL: Final = -1
_job_decoder: Final = msgspec.json.Decoder(NewJob)
_rhythm_decoder: Final = msgspec.json.Decoder(Rhythm)


def schedules(transaction: Transaction) -> list[Schedule]:
    """Read all."""
    return [_schedule(row) for row in transaction.execute(SQL.schedules, {"until": None, "limit": _ALL}).fetchall()]


def put(transaction: Transaction, schedule: Schedule) -> Schedule:
    """Make or change one."""
    named = {
        "name": schedule.name,
        "job": json_text(schedule.job),
        "rhythm": json_text(schedule.rhythm),
        "missed": schedule.missed,
        "paused": schedule.paused,
        "next_at": None if schedule.next_at is None else micros_of(schedule.next_at),
        "now": transaction.now,
    }
    return _schedule(transaction.execute(SQL.schedule_put, named).fetchone())


def drop(transaction: Transaction, name: str) -> bool:
    """Remove one."""
    return bool(transaction.execute(SQL.schedule_drop, {"name": name}).rowcount)


def due(transaction: Transaction, limit: int) -> Due:
    """Read those whose turn has come."""
    now = transaction.now
    rows = transaction.execute(SQL.schedules, {"until": now, "limit": limit}).fetchall()
    (next_at,) = transaction.execute(SQL.schedule_next, {"now": now}).fetchone()
    return Due(
        now=moment_of(now),
        schedules=[_schedule(row) for row in rows],
        next_in=None if next_at is None else (next_at - now) / 1e6,
    )


def fire(transaction: Transaction, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
    """Add a turn's jobs, unless somebody else has."""
    named = {
        "name": schedule.name,
        "rhythm": json_text(schedule.rhythm),
        "due": None if schedule.next_at is None else micros_of(schedule.next_at),
        "next_at": micros_of(firing.next_at),
        "last_at": micros_of(firing.last_at),
        "now": transaction.now,
    }
    if not transaction.execute(SQL.schedule_fire, named).rowcount:
        return None
    return enqueue(transaction, firing.jobs) if firing.jobs else []


def _schedule(row: tuple[Any, ...]) -> Schedule:
    return Schedule(
        name=row[0],
        job=_job_decoder.decode(row[1]),
        rhythm=_rhythm_decoder.decode(row[2]),
        missed=Missed(row[3]),
        paused=bool(row[4]),
        next_at=moment(row[5]),
        last_at=moment(row[6]),
    )
