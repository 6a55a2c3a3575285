"""Fires schedules, and makes those that the code declares.

Every worker declares at its start, so that the store has a new version's schedules as soon as one of its workers runs.
Only the leader fires; that saves work and is no more than that, for the store accepts each turn once from any caller.
Where the foreign protocol fires schedules itself (BullMQ, pg-boss), nothing is fired here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import MaintenanceResult, Term
from onward.errors import InvalidValue, Unsupported
from onward.job import NewJob
from onward.schedule import Schedule, firing_of
from onward.worker.maintenance import MaintenanceTask

log = logging.getLogger("onward.worker")

_BATCH_SIZE: Final = 100
_FIRE_INTERVAL: Final = timedelta(seconds=5)
"""A schedule that was made a moment ago may have its first turn this much late; all others come when they are due."""


class Scheduler:
    """Sees to it that what is declared is there, and that what is due is fired."""

    def __init__(self, engine: CheckedEngine, declared: Callable[[], Sequence[Schedule]]) -> None:
        self._engine = engine
        self._declared = declared
        self._has_declared = False

    @property
    def maintenance_tasks(self) -> tuple[MaintenanceTask, ...]:
        """What a leader does for it."""
        return (
            (MaintenanceTask("fire", self.fire, _FIRE_INTERVAL),)
            if self._engine.capabilities.has(Feature.FIRING)
            else ()
        )

    async def declare(self) -> None:
        """Make the schedules that the code declares, or change them; once. Whoever was paused by hand stays so."""
        declared = () if self._has_declared else self._declared()
        if declared:
            now = (await self._engine.due_schedules(limit=1)).now
            existing = {schedule.name: schedule for schedule in await self._engine.schedules()}
            for schedule in declared:
                current = existing.get(schedule.name)
                if current is None or not current.is_like(schedule):
                    is_paused = current is not None and current.paused
                    await self._engine.save_schedule(schedule.stopped() if is_paused else schedule.going_on(now))
        self._has_declared = True

    async def fire(self, term: Term) -> MaintenanceResult:
        """Add the jobs of all turns that have come."""
        del term  # see above
        due = await self._engine.due_schedules(limit=_BATCH_SIZE)
        jobs: list[NewJob] = []
        is_done = True
        for schedule in due.schedules:
            try:
                firing = firing_of(schedule, due.now)
            except InvalidValue as error:  # such as a time zone that is not known here; the others have their turns
                log.warning("schedule cannot be fired", extra={"schedule": schedule.name, "error": str(error)})
                continue
            try:
                fired = await self._engine.fire(schedule, firing)
            except Unsupported as error:  # such as a queue that was dropped; the other schedules have their turns
                log.warning("schedule cannot be fired", extra={"schedule": schedule.name, "error": str(error)})
                continue
            is_done = False  # it may have turns left to make up for, and there may be more than were asked for
            if fired is not None:
                jobs += firing.jobs
                log.debug("schedule fired", extra={"schedule": schedule.name, "jobs": len(firing.jobs)})
        queues = frozenset(job.queue for job in jobs)
        return MaintenanceResult(changed=len(jobs), queues=queues, more=not is_done, next_in=due.next_in)
