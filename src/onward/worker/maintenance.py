"""What the leader does for all: promote what is due, rescue what was left behind, prune what has been kept long enough.

Each task is a step that takes the term and says what it did; it runs only while the leader trusts its term.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from onward.engine.contract import Maintenance
from onward.engine.values import MaintenanceResult, Term
from onward.worker.leader import Leader
from onward.worker.periodic import Periodic

log = logging.getLogger("onward.worker")

_BATCH_SIZE: Final = 1000
"""Jobs that one step moves: a short transaction, so that nobody waits behind it for long."""


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    """One thing that a leader does, now and then."""

    name: str
    step: Callable[[Term], Awaitable[MaintenanceResult]]
    interval: timedelta
    """The longest time between two steps; a step that knows of something due earlier comes earlier."""
    time_share: float = 1.0
    """How much of the time may go into it while there is more to be done."""


def default_maintenance_tasks(
    engine: Maintenance, *, lease: timedelta, max_crashes: int
) -> tuple[MaintenanceTask, ...]:
    """List what every store needs done."""

    async def promote(term: Term) -> MaintenanceResult:
        return await engine.promote(term, limit=_BATCH_SIZE)

    async def rescue(term: Term) -> MaintenanceResult:
        return await engine.rescue(term, lease=lease, max_crashes=max_crashes, limit=_BATCH_SIZE)

    async def prune(term: Term) -> MaintenanceResult:
        return await engine.prune(term, limit=_BATCH_SIZE)

    return (
        # Where a store does not tell that a job comes due sooner than anybody knew, it waits for the next look.
        MaintenanceTask("promote", promote, timedelta(seconds=0.5)),
        # A dead worker's jobs are free again within its lease + 5 s (O7).
        MaintenanceTask("rescue", rescue, timedelta(seconds=2)),
        # Nobody waits for it, and claims do wait behind it, where a store has one writer or a disk is slow.
        MaintenanceTask("prune", prune, timedelta(seconds=60), time_share=0.2),
    )


class MaintenanceLoops:
    """The leader's maintenance tasks, each a loop of its own, so that a long prune does not delay a promotion."""

    def __init__(
        self, leader: Leader, tasks: tuple[MaintenanceTask, ...], *, on_ready: Callable[[frozenset[str]], None]
    ) -> None:
        self._leader = leader
        self._on_ready = on_ready
        self.has_promoted = False
        """Whether all jobs that were due when this worker started have been promoted, here or by another leader."""
        self.loops = tuple(
            Periodic(task.name, lambda task=task: self._step(task), interval=task.interval)  # type: ignore[misc]
            for task in tasks
        )

    def wake(self) -> None:
        """Look at everything now: the leader has just been elected."""
        for loop in self.loops:
            loop.wake()

    def promote_now(self) -> None:
        """Promote now: a job may come due before the next look."""
        for loop in self.loops:
            if loop.name == "promote":
                loop.wake()

    async def _step(self, task: MaintenanceTask) -> float | None:
        term = self._leader.term
        if term is None:
            if task.name == "promote" and self._leader.is_follower:
                self.has_promoted = True
            return None
        clock = asyncio.get_running_loop().time
        began = clock()
        result = await task.step(term)
        if result.queues:
            self._on_ready(result.queues)
        if task.name == "promote" and not result.more:
            self.has_promoted = True
        if result.changed:
            level = logging.WARNING if result.buried or task.name == "rescue" else logging.DEBUG
            fields = {
                "maintenance_task": task.name,
                "changed": result.changed,
                "buried": result.buried,
                "term": term.number,
            }
            log.log(level, "maintenance", extra=fields)
        return (clock() - began) * (1 / task.time_share - 1) if result.more else result.next_in
