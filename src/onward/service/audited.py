"""An engine whose changes are all made for one caller: each carries its audit record (S5).

For the command line, whose verbs are those of the App's resources. A verb that goes through many jobs in steps leaves a
record for each step, with its filter and its count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onward.core import Core
from onward.engine.access import AuditRecord
from onward.engine.checked import CheckedEngine
from onward.service.identity import Identity
from onward.service.store import record

if TYPE_CHECKING:
    from onward.batches.values import NewBatch
    from onward.engine.values import Changed, JobChange, JobFilter, QueueChange, QueueInfo, WorkerCommand
    from onward.job import Enqueued, Job, JobRef, NewJob
    from onward.schedule import Schedule


def audit_changes(core: Core, identity: Identity, action: str) -> None:
    """Have every change of an App recorded, from now on, as an operation of this caller."""
    core.engine = core.producer = AuditedEngine(core.engine, identity, action)


class AuditedEngine(CheckedEngine):
    """An engine that adds the record."""

    def __init__(self, engine: CheckedEngine, identity: Identity, action: str) -> None:
        vars(self).update(vars(engine))
        self._identity = identity
        self._action = action

    def _record(self, given: AuditRecord | None, target: str = "", which: JobFilter | None = None) -> AuditRecord:
        if given is not None:
            return given
        if which is not None and which.refs is not None and len(which.refs) == 1:
            return record(self._identity, self._action, target=str(which.refs[0]))
        return record(self._identity, self._action, target=target, which=which)

    async def enqueue(
        self, jobs: Sequence[NewJob], *, connection: object | None = None, audit: AuditRecord | None = None
    ) -> list[Enqueued]:
        """See the contract."""
        target = ", ".join(sorted({f"{job.queue}:{job.type}" for job in jobs})[:5])
        return await super().enqueue(jobs, connection=connection, audit=self._record(audit, target))

    async def cancel(
        self, which: JobFilter, *, reason: str = "cancelled", limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """See the contract."""
        return await super().cancel(which, reason=reason, limit=limit, audit=self._record(audit, which=which))

    async def replay(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """See the contract."""
        return await super().replay(which, limit=limit, audit=self._record(audit, which=which))

    async def delete(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """See the contract."""
        return await super().delete(which, limit=limit, audit=self._record(audit, which=which))

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """See the contract."""
        return await super().edit(ref, change, audit=self._record(audit, str(ref)))

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """See the contract."""
        return await super().configure(queue, change, audit=self._record(audit, queue))

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await super().command_worker(worker_id, command, audit=self._record(audit, worker_id))

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """See the contract."""
        return await super().save_schedule(schedule, audit=self._record(audit, schedule.name))

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await super().delete_schedule(name, audit=self._record(audit, name))

    async def save_batch(
        self,
        batch: NewBatch,
        jobs: Sequence[NewJob] = (),
        *,
        connection: object | None = None,
        audit: AuditRecord | None = None,
    ) -> list[Enqueued]:
        """See the contract."""
        return await super().save_batch(batch, jobs, connection=connection, audit=self._record(audit, batch.name))

    async def delete_batch(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await super().delete_batch(name, audit=self._record(audit, name))

    async def purge_archived(
        self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """See the contract."""
        return await super().purge_archived(which, limit=limit, audit=self._record(audit, which=which))
