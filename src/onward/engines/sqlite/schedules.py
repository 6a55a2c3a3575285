"""Keeps schedules: the next turn is set and its jobs are added in one transaction."""

from __future__ import annotations

from typing import Final

from onward.clock import micros_of, moment_of
from onward.engine.values import DueSchedules
from onward.engines.sqlite.enqueue import enqueue
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.job import Enqueued
from onward.schedule import Firing, Schedule, schedule_of, texts_of

_ALL: Final = -1


def schedules(transaction: Transaction) -> list[Schedule]:
    """Read all."""
    return [schedule_of(row) for row in transaction.execute(SQL.schedules, {"until": None, "limit": _ALL}).fetchall()]


def save(transaction: Transaction, schedule: Schedule) -> Schedule:
    """Make or change one."""
    job, trigger = texts_of(schedule)
    named = {
        "name": schedule.name,
        "job": job,
        "trigger": trigger,
        "missed": schedule.missed,
        "paused": schedule.paused,
        "next_at": None if schedule.next_at is None else micros_of(schedule.next_at),
        "now": transaction.now,
    }
    return schedule_of(transaction.execute(SQL.schedule_upsert, named).fetchone())


def delete(transaction: Transaction, name: str) -> bool:
    """Remove one."""
    return bool(transaction.execute(SQL.schedule_delete, {"name": name}).rowcount)


def due(transaction: Transaction, limit: int) -> DueSchedules:
    """Read those whose turn has come."""
    now = transaction.now
    rows = transaction.execute(SQL.schedules, {"until": now, "limit": limit}).fetchall()
    (next_at,) = transaction.execute(SQL.schedule_next, {"now": now}).fetchone()
    return DueSchedules(
        now=moment_of(now),
        schedules=[schedule_of(row) for row in rows],
        next_in=None if next_at is None else (next_at - now) / 1e6,
    )


def fire(transaction: Transaction, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
    """Add a turn's jobs, unless somebody else has."""
    named = {
        "name": schedule.name,
        "trigger": texts_of(schedule)[1],
        "due": None if schedule.next_at is None else micros_of(schedule.next_at),
        "next_at": micros_of(firing.next_at),
        "last_at": micros_of(firing.last_at),
        "now": transaction.now,
    }
    if not transaction.execute(SQL.schedule_fire, named).rowcount:
        return None
    return enqueue(transaction, firing.jobs) if firing.jobs else []
