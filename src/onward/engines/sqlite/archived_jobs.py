"""Ended jobs that their queue no longer keeps: they go into the archive, and out of it when their time is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.engine.values import Changed, JobFilter, Page
from onward.engines.sqlite import queries
from onward.engines.sqlite.filters import condition_of
from onward.engines.sqlite.rows import json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.job import Job, JobRef
from onward.lifecycle import JobStatus


def archive(transaction: Transaction, seqs: Sequence[int], named: dict[str, Any]) -> int:
    """Move ended jobs out of the way; answer how many went. ``named`` is the leader's term."""
    gone = named | {"seqs": json_text(seqs)}
    transaction.execute(SQL.event_log_mark_pruned, gone)
    transaction.execute(SQL.archive, gone)
    return transaction.execute(SQL.prune, gone).rowcount


def prune(transaction: Transaction, limit: int, named: dict[str, Any]) -> int:
    """Remove archived jobs whose time is over; answer how many."""
    return transaction.execute(SQL.archive_prune, named | {"limit": limit}).rowcount


def find(transaction: Transaction, which: JobFilter, cursor: str | None, limit: int) -> Page[Job]:
    """List archived jobs, the last to be archived first."""
    return queries.find(transaction, which, cursor, limit, newest_first=True, base_query=SQL.find_archived)


def purge(transaction: Transaction, which: JobFilter, limit: int) -> list[Changed]:
    """Remove archived jobs."""
    condition, values = condition_of(which)
    rows = transaction.connection.execute(
        f"select seq, queue, id, status from onward_archive where {condition} order by seq limit :limit",  # noqa: S608
        values | {"limit": limit},
    ).fetchall()
    transaction.execute(SQL.archive_purge, {"seqs": json_text([row[0] for row in rows])})
    return [Changed(JobRef(queue, job_id), JobStatus(status)) for _, queue, job_id, status in rows]
