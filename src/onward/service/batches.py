"""Batches and flows."""

from __future__ import annotations

import contextlib

import msgspec

from onward.arguments import nearest
from onward.batches.values import BatchInfo, Callbacks, NewBatch
from onward.engine.values import JobFilter, QueueChange
from onward.errors import BatchNotFound, Conflict, InvalidValue
from onward.job import NewJob, OnDependencyFailure
from onward.service.identity import Identity
from onward.service.jobs import MAX_ENQUEUED
from onward.service.new_jobs import new_job
from onward.service.operations import operation
from onward.service.store import Store, check_page, record
from onward.service.values import (
    BatchPage,
    BatchRequest,
    BatchView,
    Cancelled,
    EnqueuedJob,
    EnqueuedJobs,
    EnqueueRequest,
    FlowStep,
    Graph,
    JobPage,
    batch_view,
)
from onward.validation import one_of


class Batches:
    """Batches, as a caller may see and change them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @operation("batches.list")
    async def list(self, identity: Identity, *, cursor: str | None = None, limit: int = 50) -> BatchPage:
        """List batches, the newest first."""
        page = await (await self._store.engine()).batches(cursor=cursor, limit=check_page(limit))
        return BatchPage(items=tuple(map(batch_view, page.items)), next_cursor=page.next_cursor)

    @operation("batches.get")
    async def get(self, identity: Identity, name: str) -> BatchView:
        """Read a batch."""
        return batch_view(await self._find(name))

    @operation("batches.jobs")
    async def jobs(self, identity: Identity, name: str, *, cursor: str | None = None, limit: int = 50) -> JobPage:
        """List the jobs of a batch, the oldest first."""
        check_page(limit)
        await self._find(name)
        which = JobFilter(batch=name)
        page = await (await self._store.engine()).find(which, cursor=cursor, limit=limit, newest_first=False)
        return JobPage(items=tuple(map(self._store.redactor.job, page.items)), next_cursor=page.next_cursor)

    @operation("batches.graph")
    async def graph(self, identity: Identity, name: str) -> Graph:
        """Read which jobs of a batch wait for which."""
        await self._find(name)
        return Graph(items=tuple(await (await self._store.engine()).dependencies(name)))

    @operation("batches.create")
    async def create(self, identity: Identity, name: str, request: BatchRequest) -> EnqueuedJobs:
        """Create a batch, or change the one of that name, and add jobs to it: all or none."""
        if len(request.jobs) > MAX_ENQUEUED:
            raise InvalidValue("jobs", len(request.jobs), f"must be at most {MAX_ENQUEUED}")
        jobs = [self._step(identity, name, request.queue, at, step) for at, step in enumerate(request.jobs)]
        new = NewBatch(
            name=name,
            queue=request.queue,
            callbacks=Callbacks(
                on_success=self._callback(identity, "on_success", request.on_success),
                on_failure=self._callback(identity, "on_failure", request.on_failure),
                on_finished=self._callback(identity, "on_finished", request.on_finished),
            ),
            sealed=request.sealed,
        )
        audit = record(identity, "batches.create", target=name)
        added = await (await self._store.engine()).save_batch(new, jobs, audit=audit)
        return EnqueuedJobs(
            items=tuple(
                EnqueuedJob(id=one.ref.id, queue=one.ref.queue, enqueue_status=one.enqueue_status) for one in added
            )
        )

    @operation("batches.seal")
    async def seal(self, identity: Identity, name: str) -> BatchView:
        """Seal a batch: no job is added but by its own, and it finishes when all have ended."""
        await self._find(name)
        audit = record(identity, "batches.seal", target=name)
        await (await self._store.engine()).save_batch(NewBatch(name=name, sealed=True), audit=audit)
        return batch_view(await self._find(name))

    @operation("batches.pause")
    async def pause(self, identity: Identity, name: str) -> BatchView:
        """Pause the batch's own queue."""
        return await self._set_paused(identity, "batches.pause", name, paused=True)

    @operation("batches.resume")
    async def resume(self, identity: Identity, name: str) -> BatchView:
        """Resume the batch's own queue."""
        return await self._set_paused(identity, "batches.resume", name, paused=False)

    @operation("batches.cancel")
    async def cancel(self, identity: Identity, name: str) -> Cancelled:
        """Cancel what waits and what runs, and let nothing be added."""
        engine = await self._store.engine()
        before = await self._find(name)
        await engine.record_audit(record(identity, "batches.cancel", target=name))
        if before.is_finished:
            return Cancelled(cancelled=0)
        while await engine.cancel(JobFilter(batch=name), reason="cancelled with its batch"):
            pass
        with contextlib.suppress(InvalidValue):  # it has finished by that
            await engine.save_batch(NewBatch(name=name, sealed=True, stopped=True))
        return Cancelled(cancelled=(await self._find(name)).cancelled - before.cancelled)

    @operation("batches.delete")
    async def delete(self, identity: Identity, name: str) -> None:
        """Delete a batch that has finished. Its jobs stay."""
        batch = await self._find(name)
        audit = record(identity, "batches.delete", target=name)
        if not await (await self._store.engine()).delete_batch(name, audit=audit):
            if batch.sealed and batch.ended >= batch.total:
                raise Conflict(
                    f"the end of batch {name} is not recorded yet: a worker or a tick does it; try again then"
                )
            raise Conflict(f"batch {name} has not finished: cancel it first")

    async def _set_paused(self, identity: Identity, action: str, name: str, *, paused: bool) -> BatchView:
        batch = await self._find(name)
        if batch.queue is None:
            raise Conflict(f"batch {name} has no queue of its own to pause: create it with a queue")
        audit = record(identity, action, target=name)
        await (await self._store.engine()).configure(batch.queue, QueueChange(paused=paused), audit=audit)
        return batch_view(batch)

    def _step(self, identity: Identity, name: str, queue: str | None, at: int, step: FlowStep) -> NewJob:
        job = new_job(self._store, identity, step.job, field=f"jobs[{at}].job")
        policy = one_of("on_dependency_failure", OnDependencyFailure, step.on_dependency_failure)
        return msgspec.structs.replace(
            job, batch=name, queue=queue or job.queue, after=step.after, on_dependency_failure=policy
        )

    def _callback(self, identity: Identity, field: str, request: EnqueueRequest | None) -> NewJob | None:
        return None if request is None else new_job(self._store, identity, request, field=field)

    async def _find(self, name: str) -> BatchInfo:
        engine = await self._store.engine()
        found = (await engine.batches(names=[name])).items
        if not found:
            known = [one.name for one in (await engine.batches(limit=200)).items]
            raise BatchNotFound(f"there is no batch {name!r}{nearest(name, known)}")
        return found[0]
