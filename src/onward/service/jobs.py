"""Jobs, one at a time or by page: read, enqueue, cancel, replay, delete, edit."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from onward import alert, bulk_operation
from onward.engine.access import AuditRecord
from onward.engine.checked import CheckedEngine
from onward.engine.values import Changed, GroupBy, JobChange, JobFilter
from onward.errors import Conflict, InvalidValue, JobNotFound, PermissionDenied
from onward.job import Enqueued, Job, JobRef, NewJob, UniformJobs
from onward.lifecycle import FINISHED
from onward.service.identity import Identity
from onward.service.new_jobs import new_job, one_new_job
from onward.service.operations import find, operation, permit
from onward.service.scopes import narrow, sees
from onward.service.store import Store, check_page, record
from onward.service.values import (
    ChangedJob,
    Counts,
    EnqueuedJob,
    EnqueuedJobs,
    EnqueueRequest,
    JobEdit,
    JobPage,
    JobQuery,
    JobResult,
    LogLines,
    Reasons,
)
from onward.validation import encode_json, one_of

Name = JobRef | str
"""A job by queue and id, or by its id alone where ids are global."""

MAX_ENQUEUED: Final = 10_000
"""Jobs of one call."""
MAX_WAIT: Final = 60.0
"""Seconds that a caller can wait for a result."""
MAX_EXPORTED: Final = 100_000
_EXPORT_PAGE: Final = 500


class Jobs:
    """Jobs, as a caller may see and change them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Read

    @operation("jobs.list")
    async def list(
        self, identity: Identity, which: JobQuery, *, cursor: str | None = None, limit: int = 50, oldest: bool = False
    ) -> JobPage:
        """List jobs, the newest first, or the oldest."""
        check_page(limit)
        if (narrowed := narrow(identity, which.filter())) is None:
            return JobPage(items=())
        engine = await self._store.engine()
        page = await engine.find(narrowed, cursor=cursor, limit=limit, newest_first=not oldest)
        return JobPage(items=tuple(map(self._store.redactor.job, page.items)), next_cursor=page.next_cursor)

    @operation("jobs.count")
    async def count(self, identity: Identity, which: JobQuery, *, by: str = "status") -> Counts:
        """Count jobs by status, queue, type or organisation."""
        field = one_of("by", GroupBy, by)
        narrowed = narrow(identity, which.filter())
        counts = {} if narrowed is None else dict(await (await self._store.engine()).count(narrowed, by=field))
        return Counts(by=field, counts=counts, total=sum(counts.values()))

    @operation("jobs.get")
    async def get(self, identity: Identity, name: Name) -> Job:
        """Read a job, redacted.

        Raises:
            JobNotFound: there is none in the caller's scope.
        """
        return self._store.redactor.job(await self._find(identity, name))

    @operation("jobs.reveal")
    async def reveal(self, identity: Identity, name: Name) -> Job:
        """Read a job without redaction. The record is written first (S6)."""
        job = await self._find(identity, name)
        await (await self._store.engine()).record_audit(record(identity, "jobs.reveal", target=str(job.ref), count=1))
        return job

    @operation("jobs.logs")
    async def logs(self, identity: Identity, name: Name) -> LogLines:
        """Read a job's log lines, redacted."""
        job = await self._find(identity, name)
        lines = await (await self._store.engine()).logs(job.ref)
        return LogLines(items=tuple(self._store.redactor.lines(job, lines)))

    @operation("jobs.explain")
    async def explain(self, identity: Identity, name: Name) -> Reasons:
        """Say why a job is not running."""
        job = await self._find(identity, name)
        redactor = self._store.redactor
        reasons = await self._store.app.jobs.explain(job)
        return Reasons(
            items=tuple(
                msgspec.structs.replace(reason, message=redactor.text(job.type, reason.message, job) or "")
                for reason in reasons
            )
        )

    @operation("jobs.result")
    async def result(self, identity: Identity, name: Name, *, timeout: float = 0) -> JobResult:
        """Wait until a job has ended, for at most ``timeout`` seconds, and say how it stands."""
        if not 0 <= timeout <= MAX_WAIT:
            raise InvalidValue("timeout", timeout, f"must be between 0 and {MAX_WAIT:g} seconds")
        job = await self._find(identity, name)
        if job.status not in FINISHED and timeout > 0:
            seen = job
            with contextlib.suppress(TimeoutError):
                ended = await self._store.core.results.wait(seen.ref, timeout)
                if ended is None:
                    raise _not_found(seen.ref)
                job = ended
        shown = self._store.redactor.job(job)
        return JobResult(
            id=job.id,
            queue=job.queue,
            status=job.status,
            is_finished=job.status in FINISHED,
            result=shown.result,
            error=shown.last_error,
        )

    @operation("jobs.export")
    async def export(
        self, identity: Identity, which: JobQuery, *, limit: int = 10_000
    ) -> AsyncGenerator[tuple[Job, ...], None]:
        """Read many jobs, page by page, redacted."""
        return await self.export_matching(identity, which.filter(), limit=limit)

    async def export_matching(
        self, identity: Identity, which: JobFilter, *, limit: int
    ) -> AsyncGenerator[tuple[Job, ...], None]:
        """Read many jobs of a filter of the store's own, page by page, redacted."""
        permit(identity, find("jobs.export"))
        if not 1 <= limit <= MAX_EXPORTED:
            raise InvalidValue("limit", limit, f"must be between 1 and {MAX_EXPORTED}")
        narrowed = narrow(identity, which)
        engine = await self._store.engine()
        if narrowed is None:
            return self._pages(engine, None, limit, ())
        # The first page before the first byte: what is wrong with the filter is an answer, not a broken stream.
        first = await engine.find(narrowed, limit=min(limit, _EXPORT_PAGE))
        return self._pages(engine, narrowed, limit - len(first.items), first.items, first.next_cursor)

    async def _pages(
        self,
        engine: CheckedEngine,
        which: JobFilter | None,
        limit: int,
        items: tuple[Job, ...],
        cursor: str | None = None,
    ) -> AsyncGenerator[tuple[Job, ...], None]:
        redact = self._store.redactor.job
        yield tuple(map(redact, items))
        while which is not None and cursor is not None and limit > 0:
            page = await engine.find(which, cursor=cursor, limit=min(limit, _EXPORT_PAGE))
            limit, cursor = limit - len(page.items), page.next_cursor
            yield tuple(map(redact, page.items))

    # Enqueue

    @operation("jobs.enqueue")
    async def enqueue(self, identity: Identity, request: EnqueueRequest) -> EnqueuedJob:
        """Enqueue a job. Durable when it returns."""
        jobs = one_new_job(self._store, identity, request)
        job = jobs.template if isinstance(jobs, UniformJobs) else jobs[0]
        audit = record(identity, "jobs.enqueue", target=f"{job.queue}:{job.type}")
        return _answer((await self._send(jobs, audit))[0])

    @operation("jobs.enqueue_many")
    async def enqueue_many(self, identity: Identity, requests: Sequence[EnqueueRequest]) -> EnqueuedJobs:
        """Enqueue jobs, all or none."""
        if not 1 <= len(requests) <= MAX_ENQUEUED:
            raise InvalidValue("jobs", len(requests), f"must be between 1 and {MAX_ENQUEUED} jobs")
        jobs = [new_job(self._store, identity, each, field=f"[{at}]") for at, each in enumerate(requests)]
        types = sorted({job.type for job in jobs})
        audit = record(identity, "jobs.enqueue_many", detail={"types": types[:20]})
        return EnqueuedJobs(items=tuple(map(_answer, await self._send(jobs, audit))))

    async def _send(self, jobs: Sequence[NewJob], audit: AuditRecord) -> Sequence[Enqueued]:
        return await (await self._store.engine()).enqueue(jobs, audit=audit)

    # Change

    @operation("jobs.cancel")
    async def cancel(self, identity: Identity, name: Name, *, reason: str = "cancelled") -> ChangedJob:
        """Cancel a job. The handler of a running one is stopped, as far as it can be."""
        job, which = await self._target(identity, name)
        audit = record(identity, "jobs.cancel", target=str(job.ref))
        changed = await (await self._store.engine()).cancel(which, reason=reason, limit=1, audit=audit)
        return _changed(job, changed, "cancelled")

    @operation("jobs.replay")
    async def replay(self, identity: Identity, name: Name) -> ChangedJob:
        """Re-enqueue a failed, dead or cancelled job with a fresh attempt count."""
        job, which = await self._target(identity, name)
        audit = record(identity, "jobs.replay", target=str(job.ref))
        changed = await (await self._store.engine()).replay(which, limit=1, audit=audit)
        return _changed(job, changed, "replayed")

    @operation("jobs.delete")
    async def delete(self, identity: Identity, name: Name) -> ChangedJob:
        """Delete a job that is not running."""
        job, which = await self._target(identity, name)
        audit = record(identity, "jobs.delete", target=str(job.ref))
        changed = await (await self._store.engine()).delete(which, limit=1, audit=audit)
        return _changed(job, changed, "deleted")

    @operation("jobs.edit")
    async def edit(self, identity: Identity, name: Name, change: JobEdit) -> Job:
        """Change a job that waits."""
        job, _ = await self._target(identity, name)
        given = [field for field in change.__struct_fields__ if getattr(change, field) is not UNSET]
        if not given:
            raise InvalidValue("edit", {}, f"must have one of {', '.join(change.__struct_fields__)}")
        payload = change.payload
        if payload is not UNSET:
            payload = encode_json(payload, max_size=self._store.core.max_payload)
            if (handler := self._store.core.handlers.get(job.type)) is not None:
                handler.arguments.decode(payload)
        stored = JobChange(
            priority=change.priority, payload=payload, run_at=change.run_at, max_attempts=change.max_attempts
        )
        audit = record(identity, "jobs.edit", target=str(job.ref), detail={"fields": given})
        edited = await (await self._store.engine()).edit(job.ref, stored, audit=audit)
        if edited is None:
            raise Conflict(f"job {job.ref} is {job.status}: only a waiting job can be edited")
        return self._store.redactor.job(edited)

    async def _find(self, identity: Identity, name: Name) -> Job:
        job = await (await self._store.engine()).get(name)
        if job is None or not sees(identity, job.queue, job.org_id):
            raise _not_found(name)
        return job

    async def _target(self, identity: Identity, name: Name) -> tuple[Job, JobFilter]:
        """Find a job to change, and the filter that names it within the caller's scope."""
        job = await self._find(identity, name)
        refuse_reserved(self._store, job)
        which = narrow(identity, JobFilter(refs=(job.ref,)))
        if which is None:
            raise _not_found(name)
        return job, which


def refuse_reserved(store: Store, job: Job) -> None:
    """Refuse to change a change by filter, and an alert's delivery.

    A change by filter that is replayed or edited would act with its first caller's rights. The newest delivery of an
    alert is the alert's state.
    """
    if job.queue == bulk_operation.queue_of(store.core.capabilities):
        raise PermissionDenied(
            f"job {job.ref} is a change by filter", remedy=f"use operations: operations.get, operations.cancel {job.id}"
        )
    if alert.is_delivery_queue(job.queue):
        raise PermissionDenied(
            f"job {job.ref} is a delivery of an alert, which is the alert's state",
            remedy=f"replay or purge dead deliveries by filter: dead.replay, dead.purge with the queue {job.queue}",
        )


def _answer(enqueued: Enqueued) -> EnqueuedJob:
    return EnqueuedJob(id=enqueued.ref.id, queue=enqueued.ref.queue, enqueue_status=enqueued.enqueue_status)


def _changed(job: Job, changed: Sequence[Changed], verb: str) -> ChangedJob:
    if not changed:
        raise Conflict(f"job {job.ref} is {job.status}: it cannot be {verb} now")
    return ChangedJob(id=job.id, queue=job.queue, before=changed[0].before)


def _not_found(name: Name) -> JobNotFound:
    return JobNotFound(f"job {name} not found: it never existed, was deleted, or has been pruned")
