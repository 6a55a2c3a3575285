"""Looks, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from onward.clock import moment_of
from onward.engine.values import GroupBy, JobFilter, LogLine, Page, QueueInfo, WorkerInfo
from onward.engines.sqlite.claims import ranges_of
from onward.engines.sqlite.filters import condition_of
from onward.engines.sqlite.rows import job_of, moment, queue_of
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.job import Job, JobRef
from onward.lifecycle import JobStatus
from onward.validation import read_cursor

_COUNT_QUERIES: Final[Mapping[GroupBy, str]] = {
    GroupBy.STATUS: "select status, count(*) from {table} where {condition} group by status",
    GroupBy.QUEUE: "select queue, count(*) from {table} where {condition} group by queue",
    GroupBy.TYPE: "select type, count(*) from {table} where {condition} group by type",
    GroupBy.ORG: "select coalesce(org_id, ''), count(*) from {table} where {condition} group by org_id",
}


def get(transaction: Transaction, ref: JobRef | str) -> Job | None:
    """Find one job."""
    job_id = ref if isinstance(ref, str) else ref.id
    row = transaction.connection.execute(f"{SQL.find} where id = :id", {"id": job_id}).fetchone()
    if row is None or (isinstance(ref, JobRef) and row[2] != ref.queue):
        return None
    return job_of(row)


def find(
    transaction: Transaction,
    which: JobFilter,
    cursor: str | None,
    limit: int,
    *,
    newest_first: bool,
    base_query: str = SQL.find,
) -> Page[Job]:
    """List jobs in the order of their row numbers: that in which they were created, or archived."""
    condition, values = condition_of(which)
    if cursor is not None:
        condition += " and seq < :cursor" if newest_first else " and seq > :cursor"
        values["cursor"] = read_cursor(cursor)
    order = "desc" if newest_first else "asc"
    rows = transaction.connection.execute(
        f"{base_query} where {condition} order by seq {order} limit :limit", values | {"limit": limit + 1}
    ).fetchall()
    shown = rows[:limit]
    return Page(items=tuple(map(job_of, shown)), next_cursor=str(shown[-1][27]) if len(rows) > limit else None)


def count(transaction: Transaction, which: JobFilter, by: GroupBy, table: str = "onward_job") -> Mapping[str, int]:
    """Count jobs."""
    condition, values = condition_of(which)
    return dict(
        transaction.connection.execute(_COUNT_QUERIES[by].format(table=table, condition=condition), values).fetchall()
    )


def queues(transaction: Transaction, pattern: str) -> list[QueueInfo]:
    """List queues with their depth."""
    first, end = ranges_of([pattern])[0]
    named = {"first": first, "end": end}
    counts: dict[str, dict[JobStatus, int]] = {}
    oldest: dict[str, int] = {}
    for queue, status, number, ready_at in transaction.execute(SQL.queue_counts, named).fetchall():
        of_queue = counts.setdefault(queue, {})
        of_queue[JobStatus(status)] = of_queue.get(JobStatus(status), 0) + number
        if ready_at is not None:
            oldest[queue] = min(ready_at, oldest.get(queue, ready_at))
    rows: list[tuple[Any, ...]] = transaction.execute(SQL.queues, named).fetchall()
    return [queue_of(row, counts.get(row[0], {}), oldest.get(row[0])) for row in rows]


def workers(transaction: Transaction) -> list[WorkerInfo]:
    """List workers."""
    return [
        WorkerInfo(
            id=row[0],
            hostname=row[1],
            pool_size=row[2],
            version=row[3],
            queues=tuple(msgspec.json.decode(row[4])),
            types=tuple(msgspec.json.decode(row[5])),
            started_at=moment_of(row[6]),
            last_heartbeat=moment_of(row[7]),
            is_leader=row[8] is not None,
            leader_until=moment(row[8]),
            is_quiet=row[9] is not None,
        )
        for row in transaction.execute(SQL.workers, {"now": transaction.now}).fetchall()
    ]


def logs(transaction: Transaction, ref: JobRef) -> list[LogLine]:
    """Read a job's log."""
    rows = transaction.execute(SQL.logs, {"id": ref.id}).fetchall()
    return [LogLine(moment_of(at), line) for at, line in rows]
