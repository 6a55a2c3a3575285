"""Changes by filter: accepted here, made by a worker (A5). See :mod:`onward.bulk_operation`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from onward import bulk_operation
from onward.bulk_operation import Plan, Verb, changed_so_far, count, freeze, queue_of
from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter, QueueChange
from onward.errors import Conflict, InvalidValue, JobNotFound
from onward.job import Job, JobRef, NewJob
from onward.lifecycle import WAITING, JobStatus
from onward.service.identity import Identity
from onward.service.operations import operation
from onward.service.scopes import narrow
from onward.service.store import Store, check_page, record
from onward.service.values import BulkOperation, BulkOperationPage, JobQuery, Selection
from onward.validation import check_text


class Bulk:
    """Changes by filter."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_queue = False

    @operation("jobs.cancel_many")
    async def cancel(self, identity: Identity, selection: Selection) -> BulkOperation:
        """Cancel the jobs of a filter."""
        return await self._accept(identity, "jobs.cancel_many", Verb.CANCEL, selection)

    @operation("jobs.replay_many")
    async def replay(self, identity: Identity, selection: Selection) -> BulkOperation:
        """Replay the jobs of a filter."""
        return await self._accept(identity, "jobs.replay_many", Verb.REPLAY, selection)

    @operation("jobs.delete_many")
    async def delete(self, identity: Identity, selection: Selection) -> BulkOperation:
        """Delete the jobs of a filter."""
        return await self._accept(identity, "jobs.delete_many", Verb.DELETE, selection)

    @operation("dead.replay")
    async def replay_dead(self, identity: Identity, selection: Selection) -> BulkOperation:
        """Replay dead letters."""
        return await self._accept(identity, "dead.replay", Verb.REPLAY, selection, status=JobStatus.DEAD_LETTER)

    @operation("dead.purge")
    async def purge_dead(self, identity: Identity, selection: Selection) -> BulkOperation:
        """Delete dead letters."""
        return await self._accept(identity, "dead.purge", Verb.DELETE, selection, status=JobStatus.DEAD_LETTER)

    @operation("archive.purge")
    async def purge_archive(self, identity: Identity, selection: Selection) -> BulkOperation:
        """Delete archived jobs."""
        return await self._accept(identity, "archive.purge", Verb.PURGE_ARCHIVED, selection)

    async def _accept(
        self, identity: Identity, action: str, verb: Verb, selection: Selection, *, status: JobStatus | None = None
    ) -> BulkOperation:
        engine = await self._store.engine()
        which = self._chosen(selection, status)
        check_text("reason", selection.reason)
        now = (await engine.check()).now or datetime.now(UTC)
        narrowed = narrow(identity, which)
        frozen = None if narrowed is None else freeze(verb, narrowed, now, engine.capabilities)
        matching = 0 if frozen is None else await count(engine, verb, frozen)
        if selection.dry_run:
            return BulkOperation(id=None, action=action, status=None, matching=matching, actor=identity.actor)
        audit = record(identity, action, which=frozen or which)
        if frozen is None:
            # Nothing can match: there is nothing to run, and the request is on record all the same.
            await engine.record_audit(msgspec.structs.replace(audit, count=0))
            return BulkOperation(
                id=None, action=action, status=JobStatus.COMPLETED, matching=0, progress=100, actor=identity.actor
            )
        plan = Plan(
            verb=verb,
            which=frozen,
            audit=audit,
            token_id=identity.token_id,
            matching=matching,
            reason=selection.reason,
        )
        ref = await self._enqueue(engine, plan)
        return BulkOperation(
            id=ref.id, action=action, status=JobStatus.PENDING, matching=matching, actor=identity.actor
        )

    def _chosen(self, selection: Selection, status: JobStatus | None) -> JobFilter:
        query = selection.filter
        if query is not None and query == JobQuery():
            raise InvalidValue("filter", {}, "must have at least one field; for every job give all: true")
        if (query is None) == (not selection.all):
            raise InvalidValue("filter", None, "give a filter, or all: true for every job")
        which = JobFilter() if query is None else query.filter()
        if status is None:
            return which
        if which.status is not None:
            raise InvalidValue("filter.status", sorted(which.status), "must not be given: it is dead_letter")
        return msgspec.structs.replace(which, status=frozenset({self._store.core.capabilities.shown(status)}))

    async def _enqueue(self, engine: CheckedEngine, plan: Plan) -> JobRef:
        queue = queue_of(engine.capabilities)
        if not self._has_queue:
            if engine.capabilities.is_shared:  # made on explicit request there (X5)
                await engine.configure(queue, QueueChange())
            self._has_queue = True
        payload = msgspec.json.encode({"plan": plan}).decode()
        job = NewJob(type=bulk_operation.TYPE, queue=queue, payload=payload)
        return (await engine.enqueue([job]))[0].ref

    # Look after them

    @operation("operations.list")
    async def list(self, identity: Identity, *, cursor: str | None = None, limit: int = 50) -> BulkOperationPage:
        """List changes by filter, the newest first: all, or for a limited caller its own."""
        check_page(limit)
        engine = await self._store.engine()
        which = JobFilter(queues=(queue_of(engine.capabilities),), types=(bulk_operation.TYPE,))
        page = await engine.find(which, cursor=cursor, limit=limit)
        shown = [self._view(job, plan) for job in page.items if _is_visible(identity, plan := _plan_of(job))]
        return BulkOperationPage(items=tuple(shown), next_cursor=page.next_cursor)

    @operation("operations.get")
    async def get(self, identity: Identity, id: str) -> BulkOperation:
        """Read how far a change by filter is."""
        return self._view(*await self._find(identity, id))

    @operation("operations.cancel")
    async def stop(self, identity: Identity, id: str) -> BulkOperation:
        """Stop a change by filter. What it has changed stays changed."""
        job, plan = await self._find(identity, id)
        engine = await self._store.engine()
        changed = changed_so_far(job)
        detail = {"action": plan.audit.action, "changed": changed}
        audit = record(identity, "operations.cancel", target=job.id, detail=detail)
        done = await engine.cancel(JobFilter(refs=(job.ref,)), reason="cancelled", limit=1, audit=audit)
        if not done:
            raise Conflict(f"operation {id} has ended: it is {job.status}")
        if done[0].before in WAITING:  # no handler runs that would write it
            await engine.record_audit(msgspec.structs.replace(plan.audit, count=changed))
        return msgspec.structs.replace(self._view(job, plan), status=JobStatus.CANCELLED)

    async def _find(self, identity: Identity, id: str) -> tuple[Job, Plan]:
        engine = await self._store.engine()
        job = await engine.get(JobRef(queue_of(engine.capabilities), id))
        if job is not None and job.type == bulk_operation.TYPE:
            plan = _plan_of(job)
            if _is_visible(identity, plan):
                return job, plan
        raise JobNotFound(f"operation {id} not found: it never existed, or has been pruned")

    def _view(self, job: Job, plan: Plan) -> BulkOperation:
        is_done = job.status is JobStatus.COMPLETED
        return BulkOperation(
            id=job.id,
            action=plan.audit.action,
            status=job.status,
            matching=plan.matching,
            changed=changed_so_far(job),
            progress=100 if is_done else job.progress,
            actor=plan.audit.actor,
            error=self._store.redactor.text(None, job.last_error),
            created_at=job.created_at,
            completed_at=job.completed_at,
        )


def _plan_of(job: Job) -> Plan:
    payload: Any = job.payload
    return msgspec.convert(payload["plan"], Plan)


def _is_visible(identity: Identity, plan: Plan) -> bool:
    scope = identity.scope
    if scope.orgs is None and scope.queues is None:
        return True
    # A token by its id, for names are not unique; a user of the host application by the name it was given there.
    return (identity.token_id, identity.actor) == (plan.token_id, plan.audit.actor)
