"""Looks, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onward.clock import moment_of
from onward.engine.values import GroupBy, JobFilter, LogLine, Page, QueueInfo, WorkerInfo
from onward.engines.postgres.filters import Condition, is_id, union_all
from onward.engines.postgres.rows import job_of, optional_datetime, queue_of, ranges_of
from onward.engines.postgres.statements import Schema
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, JobStatus
from onward.pg.plan_runner import Plan, Row, Statement

_SEQ: Final = 27
"""The column of a found row that says its place among all."""

GROUP_COLUMNS: Final[Mapping[GroupBy, str]] = {
    GroupBy.STATUS: "status",
    GroupBy.QUEUE: "queue",
    GroupBy.TYPE: "type",
    GroupBy.ORG: "coalesce(org_id, '')",
}
"""What jobs are counted by."""


def get(schema: Schema, ref: JobRef | str) -> Plan[Job | None]:
    """Find one job."""
    job_id = ref if isinstance(ref, str) else ref.id
    if not is_id(job_id):
        return None
    text = f"{schema.find_live} where id = $1::uuid union all {schema.find_ended} where id = $1::uuid"
    rows = yield Statement(text, [job_id])
    if not rows or (isinstance(ref, JobRef) and rows[0][2] != ref.queue):
        return None
    return job_of(rows[0])


def find(schema: Schema, which: JobFilter, cursor: str | None, limit: int, *, newest_first: bool) -> Plan[Page[Job]]:
    """List jobs in the order of their numbers: that in which they were created."""
    condition = Condition(which)
    condition.start_after(cursor, newest_first=newest_first)
    order = f"order by seq {'desc' if newest_first else 'asc'} limit {condition.value(limit + 1)}::bigint"
    parts = []
    if condition.states - FINISHED:
        parts.append(f"({schema.find_live} where {condition.live()} {order})")
    if condition.states & FINISHED:
        parts.append(f"({schema.find_ended} where {condition.ended()} {order})")
    if not parts:
        return Page()
    rows = yield Statement(schema.insert_schema_name(union_all(parts, order)), condition.values)
    return page_of(rows, limit)


def page_of(rows: Sequence[Row], limit: int) -> Page[Job]:
    """Make a page of what was found, one more than it may have if there are more."""
    shown = rows[:limit]
    return Page(items=tuple(map(job_of, shown)), next_cursor=str(shown[-1][_SEQ]) if len(rows) > limit else None)


def count(schema: Schema, which: JobFilter, by: GroupBy) -> Plan[Mapping[str, int]]:
    """Count jobs."""
    condition = Condition(which)
    parts = []
    if condition.states - FINISHED:
        parts.append(f"select {GROUP_COLUMNS[by]} as of from onward.live where {condition.live()}")  # noqa: S608 - ours only
    if condition.states & FINISHED:
        parts.append(f"select {GROUP_COLUMNS[by]} as of from onward.history where {condition.ended()}")  # noqa: S608
    if not parts:
        return {}
    text = f"select of, count(*) from ({' union all '.join(parts)}) every group by of"  # noqa: S608
    rows = yield Statement(schema.insert_schema_name(text), condition.values)
    return {row[0]: row[1] for row in rows}


def queues(schema: Schema, pattern: str) -> Plan[list[QueueInfo]]:
    """List queues with their depth."""
    firsts, ends = ranges_of([pattern])
    named = [firsts[0], ends[0]]
    counts: dict[str, dict[JobStatus, int]] = {}
    oldest: dict[str, int] = {}
    for queue, status, number, ready_at in (yield Statement(schema.queue_counts, named)):
        of_queue = counts.setdefault(queue, {})
        of_queue[JobStatus(status)] = of_queue.get(JobStatus(status), 0) + number
        if ready_at is not None:
            oldest[queue] = min(ready_at, oldest.get(queue, ready_at))
    rows = yield Statement(schema.queues, named)
    return [queue_of(row, counts.get(row[0], {}), oldest.get(row[0])) for row in rows]


def workers(schema: Schema) -> Plan[list[WorkerInfo]]:
    """List workers."""
    return [
        WorkerInfo(
            id=row[0],
            hostname=row[1],
            pool_size=row[2],
            version=row[3],
            queues=tuple(row[4]),
            types=tuple(row[5]),
            started_at=moment_of(row[6]),
            last_heartbeat=moment_of(row[7]),
            is_leader=row[8] is not None,
            leader_until=optional_datetime(row[8]),
            is_quiet=row[9] is not None,
        )
        for row in (yield Statement(schema.workers, [schema.now]))
    ]


def logs(schema: Schema, ref: JobRef) -> Plan[list[LogLine]]:
    """Read a job's log."""
    if not is_id(ref.id):
        return []
    rows = yield Statement(schema.logs, [ref.id])
    return [LogLine(moment_of(at), line) for at, line in rows]
