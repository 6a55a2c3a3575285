"""Changes of many jobs by filter, as a job of their own (A5).

The filter is frozen when the change is accepted: jobs created later are not touched. The handler goes through the
matching jobs in steps, each one statement that matches the caller's scope again, reports progress, and writes the one
audit record with its end. A run that was interrupted continues: what is changed no longer matches.
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from onward.clock import MICROSECOND
from onward.context import JobContext
from onward.engine.access import AuditRecord
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import Changed, GroupBy, JobFilter, Page
from onward.handler import Handler, TaskOptions
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, MOVES, WAITING, JobStatus, Move

TYPE: Final = "onward.operation"
_STEP: Final = 1000
"""Jobs of one statement."""
_CHANGED: Final = re.compile(r"([0-9]+) changed")


class Verb(StrEnum):
    """What is done to the jobs."""

    CANCEL = "cancel"
    REPLAY = "replay"
    DELETE = "delete"
    PURGE_ARCHIVED = "purge_archived"


SOURCES: Final = {
    Verb.CANCEL: MOVES[Move.CANCEL][0],
    Verb.REPLAY: MOVES[Move.REPLAY][0],
    Verb.DELETE: WAITING | FINISHED,
    Verb.PURGE_ARCHIVED: frozenset(JobStatus),
}
"""Statuses in which it can be done."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A change by filter, as it was accepted."""

    verb: Verb
    which: JobFilter
    """With the caller's scope in it, and frozen."""
    audit: AuditRecord
    """To be written with the end, with the final count."""
    token_id: str | None = None
    """The token that asked for it."""
    matching: int = 0
    """Jobs that matched when it was accepted."""
    reason: str = "cancelled"


def queue_of(capabilities: Capabilities) -> str:
    """Return the reserved queue of an engine."""
    return {"PGMQ": "onward_operations", "pg-boss": "onward-operations"}.get(capabilities.engine, "onward/operations")


def freeze(verb: Verb, which: JobFilter, now: datetime, capabilities: Capabilities) -> JobFilter | None:
    """Narrow a filter to jobs that exist now and that the verb can change; None: there are none."""
    sources = frozenset(map(capabilities.shown, SOURCES[verb]))
    if not capabilities.has(Feature.CANCELLED_STATE):
        sources -= {JobStatus.CANCELLED}
    given = None if which.status is None else frozenset(map(capabilities.shown, which.status))
    status = sources if given is None else sources & given
    if not status:
        return None
    now += MICROSECOND  # what is created, or has ended, at this very moment is among them
    frozen = {"created_before": now if which.created_before is None else min(which.created_before, now)}
    if verb is Verb.REPLAY:
        # A job that is replayed and fails again before this is done must not be replayed twice.
        frozen["finished_before"] = now if which.finished_before is None else min(which.finished_before, now)
    if verb is Verb.PURGE_ARCHIVED:
        return msgspec.structs.replace(which, **frozen)
    return msgspec.structs.replace(which, status=status, **frozen)


def handler_on(engine: CheckedEngine) -> Handler:
    """Make the handler of such jobs, for every worker on an engine."""

    async def operation(context: JobContext, plan: Plan) -> dict[str, int]:
        return {"changed": await run(engine, plan, context)}

    operation.__annotations__ = {"context": JobContext, "plan": Plan, "return": dict[str, int]}
    return Handler(operation, name=TYPE, options=TaskOptions(queue=queue_of(engine.capabilities)))


async def run(engine: CheckedEngine, plan: Plan, context: JobContext) -> int:
    """Make the change, and return how many jobs were changed."""
    reports = engine.capabilities.has(Feature.PROGRESS)
    if reports or context.attempt == 1:
        changed = changed_so_far(await engine.get(context.ref))
    else:
        # No place for the count of the run before: what no longer matches counts as changed by it.
        changed = max(0, plan.matching - await count(engine, plan.verb, plan.which))
    reserved, cursor = queue_of(engine.capabilities), None
    try:
        while True:
            page = await _page(engine, plan, cursor)
            refs = tuple(job.ref for job in page.items if job.queue != reserved)
            if refs:
                changed += len(await change(engine, plan, refs))
                if reports:
                    percent = min(99, 100 * changed // max(plan.matching, 1))
                    context.set_progress(percent, f"{changed} changed")
            cursor = page.next_cursor
            if cursor is None:
                break
    except asyncio.CancelledError:
        await asyncio.shield(_record_if_cancelled(engine, plan, context.ref, changed))
        raise
    await engine.record_audit(msgspec.structs.replace(plan.audit, count=changed), operation=context.ref)
    return changed


async def count(engine: CheckedEngine, verb: Verb, which: JobFilter) -> int:
    """Count the jobs that a change by filter is about."""
    counted = engine.count_archived if verb is Verb.PURGE_ARCHIVED else engine.count
    return sum((await counted(which, by=GroupBy.STATUS)).values())


async def change(engine: CheckedEngine, plan: Plan, refs: tuple[JobRef, ...]) -> list[Changed]:
    """Change some of the jobs by one statement, which matches filter and scope again."""
    which = msgspec.structs.replace(plan.which, refs=refs)
    match plan.verb:
        case Verb.CANCEL:
            return await engine.cancel(which, reason=plan.reason, limit=len(refs))
        case Verb.REPLAY:
            return await engine.replay(which, limit=len(refs))
        case Verb.DELETE:
            return await engine.delete(which, limit=len(refs))
        case Verb.PURGE_ARCHIVED:
            return await engine.purge_archived(which, limit=len(refs))


def changed_so_far(job: Job | None) -> int:
    """Read from an operation's job how many jobs it had changed."""
    if job is None:
        return 0
    if isinstance(job.result, dict):
        return int(job.result.get("changed", 0))
    found = _CHANGED.fullmatch(job.progress_message or "")
    return int(found[1]) if found else 0


async def _page(engine: CheckedEngine, plan: Plan, cursor: str | None) -> Page[Job]:
    if plan.verb is Verb.PURGE_ARCHIVED:
        return await engine.archived(plan.which, cursor=cursor, limit=_STEP)
    return await engine.find(plan.which, cursor=cursor, limit=_STEP, newest_first=False)


async def _record_if_cancelled(engine: CheckedEngine, plan: Plan, ref: JobRef, changed: int) -> None:
    # A worker that stops releases the job, and the next one goes on; only a cancelled job ends here.
    job = await engine.get(ref)
    if job is None or job.status is JobStatus.CANCELLED:
        await engine.record_audit(msgspec.structs.replace(plan.audit, count=changed), operation=ref)
