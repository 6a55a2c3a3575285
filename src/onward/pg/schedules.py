"""Schedules in a table of ours, on the engines whose leader fires them.

Each engine creates the table by a migration of its own. The next turn is set and its jobs are added in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onward.clock import Clock, micros_of, moment_of
from onward.engine.statements import Statements
from onward.engine.values import DueSchedules
from onward.job import Enqueued, NewJob
from onward.pg.plan_runner import Plan, Statement
from onward.pg.schema_name import insert_schema_name
from onward.schedule import Firing, Schedule, schedule_of, texts_of

_STATEMENTS: Final = Statements("onward.pg")


class ScheduleTable:
    """The schedules of one schema, by its name."""

    def __init__(self, schema: str, *, clock: Clock | None = None) -> None:
        """``clock`` is for tests; the database's own unless given."""
        self._clock = clock
        self._texts = {
            each: insert_schema_name(schema, getattr(_STATEMENTS, each))
            for each in _STATEMENTS.names()
            if each.startswith("schedule")
        }

    @property
    def _now(self) -> int | None:
        return None if self._clock is None else self._clock.micros()

    def schedules(self) -> Plan[list[Schedule]]:
        """Read all."""
        return [schedule_of(row) for row in (yield Statement(self._texts["schedules"]))]

    def save(self, schedule: Schedule) -> Plan[Schedule]:
        """Create or change one."""
        next_at = None if schedule.next_at is None else micros_of(schedule.next_at)
        values = [self._now, schedule.name, *texts_of(schedule), schedule.missed, schedule.paused, next_at]
        (row,) = yield Statement(self._texts["schedule_upsert"], values)
        return schedule_of(row)

    def delete(self, name: str) -> Plan[bool]:
        """Remove one."""
        return bool((yield Statement(self._texts["schedule_delete"], [name])))

    def due(self, limit: int) -> Plan[DueSchedules]:
        """Read those whose turn has come."""
        rows = yield Statement(self._texts["schedule_due"], [self._now, limit])
        now, next_at = rows[0][-2:]
        return DueSchedules(
            now=moment_of(now),
            schedules=[schedule_of(row[:-2]) for row in rows if row[0] is not None],
            next_in=None if next_at is None else (next_at - now) / 1e6,
        )

    def fire(
        self, schedule: Schedule, firing: Firing, enqueue: Callable[[list[NewJob]], Plan[list[Enqueued]]]
    ) -> Plan[list[Enqueued] | None]:
        """Add a turn's jobs, unless the turn has been fired or changed."""
        _, trigger = texts_of(schedule)
        due = None if schedule.next_at is None else micros_of(schedule.next_at)
        values = [self._now, schedule.name, trigger, due, micros_of(firing.next_at), micros_of(firing.last_at)]
        if not (yield Statement(self._texts["schedule_fire"], values)):
            return None
        if not firing.jobs:
            return []
        return (yield from enqueue(firing.jobs))
