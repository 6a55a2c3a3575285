"""Looks, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from onward.clock import micros_of, moment_of
from onward.engine.values import GroupBy, JobFilter, Page, QueueInfo
from onward.engines.pgboss.filters import TYPE, Condition, is_id, org_of
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.rows import job_of
from onward.engines.pgboss.statements import Schema
from onward.job import Job, JobRef
from onward.lifecycle import JobStatus
from onward.pg.plan_runner import Plan, Statement
from onward.validation import LAST_MOMENT, read_cursor

_GROUP_COLUMNS: Final[Mapping[GroupBy, str]] = {GroupBy.STATUS: "s.status", GroupBy.QUEUE: "j.name", GroupBy.TYPE: TYPE}


def _read_variant(schema: Schema) -> str:
    """Say how to look at all jobs: before pg-boss 11, some have gone to the archive."""
    return "with_archive" if schema.has("archive.archived_on") else ""


def get(schema: Schema, ref: JobRef | str) -> Plan[Job | None]:
    """Find one job."""
    text = schema.text("find", variant=_read_variant(schema))
    if isinstance(ref, str):
        rows = yield Condition(schema, JobFilter(ids=(ref,))).append_to(text, "limit 1")
    elif is_id(ref.id):
        rows = yield Statement(f"{text} where j.name = $1::text and j.id = $2::uuid", [ref.queue, ref.id])
    else:
        return None
    return job_of(rows[0]) if rows else None


def find(schema: Schema, which: JobFilter, cursor: str | None, limit: int, *, newest_first: bool) -> Plan[Page[Job]]:
    """List jobs in the order in which they were created."""
    condition = Condition(schema, which)
    if cursor is not None:
        micros, _, id = cursor.partition("-")
        # Where the one part is no id, the other cannot be a place either.
        since = moment_of(read_cursor(cursor, micros if is_id(id) else "", most=LAST_MOMENT))
        created, job_id = condition.value(since), condition.value(id)
        sign = "<" if newest_first else ">"
        condition.add(f"(j.created_on, j.id) {sign} ({created}::timestamptz, {job_id}::uuid)")
    direction = "desc" if newest_first else "asc"
    order = f"order by j.created_on {direction}, j.id {direction} limit {condition.value(limit + 1)}::bigint"
    jobs = [
        job_of(row) for row in (yield condition.append_to(schema.text("find", variant=_read_variant(schema)), order))
    ]
    page = jobs[:limit]
    last = f"{micros_of(page[-1].created_at)}-{page[-1].id}" if len(jobs) > limit else None
    return Page(items=tuple(page), next_cursor=last)


def count(schema: Schema, which: JobFilter, by: GroupBy) -> Plan[Mapping[str, int]]:
    """Count jobs."""
    condition = Condition(schema, which)
    counted = f"coalesce({org_of(schema)}, '')" if by is GroupBy.ORG else _GROUP_COLUMNS[by]
    text = schema.text("count", variant=_read_variant(schema)).replace("select counted as", f"select {counted} as")
    rows = yield Statement(text.replace("where condition", f"where {condition}"), condition.values)
    return {row[0]: row[1] for row in rows}


def queues(schema: Schema, queue_cache: QueueCache, pattern: str) -> Plan[list[QueueInfo]]:
    """List queues with their depth."""
    queue_cache.invalidate()
    found = yield from queue_cache.matching([pattern])
    infos = {queue.name: queue.info(queue_cache.settings_of(queue.name)) for queue in found}
    for name, status, number, oldest in (
        yield schema.statement("queue_counts", [list(infos)], variant=_read_variant(schema))
    ):
        infos[name].counts[JobStatus(status)] = number
        if oldest is not None:
            infos[name] = msgspec.structs.replace(infos[name], oldest_ready_at=oldest)
    return list(infos.values())
