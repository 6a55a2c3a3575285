"""Keeps schedules: the next turn is set and its jobs are added in one transaction."""

from __future__ import annotations

from onward.clock import micros_of, moment_of
from onward.engine.values import DueSchedules
from onward.engines.postgres import enqueue
from onward.engines.postgres.statements import Schema
from onward.job import Enqueued
from onward.pg.plan_runner import Plan, Statement
from onward.schedule import Firing, Schedule, schedule_of, texts_of


def schedules(schema: Schema) -> Plan[list[Schedule]]:
    """Read all."""
    return [schedule_of(row) for row in (yield Statement(schema.schedules))]


def upsert(schema: Schema, schedule: Schedule) -> Plan[Schedule]:
    """Make or change one."""
    next_at = None if schedule.next_at is None else micros_of(schedule.next_at)
    values = [schema.now, schedule.name, *texts_of(schedule), schedule.missed, schedule.paused, next_at]
    (row,) = yield Statement(schema.schedule_upsert, values)
    return schedule_of(row)


def delete(schema: Schema, name: str) -> Plan[bool]:
    """Remove one."""
    return bool((yield Statement(schema.schedule_delete, [name])))


def due(schema: Schema, limit: int) -> Plan[DueSchedules]:
    """Read those whose turn has come."""
    rows = yield Statement(schema.schedule_due, [schema.now, limit])
    now, next_at = rows[0][-2:]
    return DueSchedules(
        now=moment_of(now),
        schedules=[schedule_of(row[:-2]) for row in rows if row[0] is not None],
        next_in=None if next_at is None else (next_at - now) / 1e6,
    )


def fire(schema: Schema, schedule: Schedule, firing: Firing, *, notice: str | None) -> Plan[list[Enqueued] | None]:
    """Add a turn's jobs, unless somebody else has."""
    _, trigger = texts_of(schedule)
    due = None if schedule.next_at is None else micros_of(schedule.next_at)
    values = [schema.now, schedule.name, trigger, due, micros_of(firing.next_at), micros_of(firing.last_at)]
    if not (yield Statement(schema.schedule_fire, values)):
        return None
    if not firing.jobs:
        return []
    return (yield from enqueue.enqueue(schema, firing.jobs, notice=notice))
