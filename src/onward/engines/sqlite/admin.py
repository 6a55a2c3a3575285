"""The buttons that people press. Each picks the jobs that may be moved, then moves them by a guarded statement."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from onward.backoff import Backoff
from onward.clock import MICROSECOND, micros_of
from onward.engine.values import Changed, JobChange, JobFilter, QueueChange, QueueInfo, Rate, Retention
from onward.engines.sqlite import batches, queries
from onward.engines.sqlite.enqueue import ensure_queues_open
from onward.engines.sqlite.filters import condition_of
from onward.engines.sqlite.rows import backoff_text, json_text, micros
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.errors import InvalidValue
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, HELD, MOVES, WAITING, JobStatus, Move


def cancel(transaction: Transaction, which: JobFilter, reason: str, limit: int) -> list[Changed]:
    """Take jobs back."""
    picked = _pick(transaction, which, MOVES[Move.CANCEL][0], limit)
    if picked:
        seqs = json_text([seq for seq, _ in picked])
        named = {"seqs": seqs, "last_error": reason, "now": transaction.now}
        transaction.execute(SQL.cancel, named)
        freed = {change.ref.queue for _, change in picked}
        transaction.execute(SQL.queue_reopen_freed, {"names": json_text(list(freed))})
        transaction.wakes_workers = True
        batches.advance(transaction)
    return [change for _, change in picked]


def replay(transaction: Transaction, which: JobFilter, limit: int) -> list[Changed]:
    """Give ended jobs a new life."""
    replayed = [
        change
        for seq, change in _pick(transaction, which, MOVES[Move.REPLAY][0], limit)
        if transaction.execute(SQL.replay, {"seq": seq, "now": transaction.now}).rowcount == 1
    ]
    if replayed:
        ensure_queues_open(transaction, {change.ref.queue for change in replayed})
    return replayed


def delete(transaction: Transaction, which: JobFilter, limit: int) -> list[Changed]:
    """Remove jobs that nobody holds."""
    picked = _pick(transaction, which, WAITING | FINISHED, limit)
    if picked:
        transaction.execute(SQL.delete, {"seqs": json_text([seq for seq, _ in picked])})
        batches.advance(transaction)
    return [change for _, change in picked]


def _pick(
    transaction: Transaction, which: JobFilter, sources: frozenset[JobStatus], limit: int
) -> list[tuple[int, Changed]]:
    condition, values = condition_of(which)
    rows = transaction.connection.execute(
        f"select seq, queue, id, status from onward_job where {condition}"  # noqa: S608 - fragments of ours only
        " and status in (select value from json_each(:sources)) order by seq limit :limit",
        values | {"sources": json_text(sorted(sources)), "limit": limit},
    ).fetchall()
    return [(seq, Changed(JobRef(queue, job_id), JobStatus(status))) for seq, queue, job_id, status in rows]


def edit(transaction: Transaction, ref: JobRef, change: JobChange) -> Job | None:
    """Change a job that waits."""
    job = queries.get(transaction, ref)
    if job is None or job.status in FINISHED | HELD:
        return None
    run_at = None if change.run_at is UNSET else micros_of(change.run_at)
    if run_at is not None and job.status is not JobStatus.SCHEDULED:
        raise InvalidValue("run_at", change.run_at, f"can be changed of a scheduled job only, this one is {job.status}")
    named = {
        "id": ref.id,
        "priority": None if change.priority is UNSET else change.priority,
        "payload": None if change.payload is UNSET else change.payload,
        "next_run_at": run_at,
        "max_attempts": None if change.max_attempts is UNSET else change.max_attempts,
        "now": transaction.now,
    }
    transaction.execute(SQL.edit, named)
    transaction.wakes_workers = True
    return queries.get(transaction, ref)


def configure(transaction: Transaction, queue: str, change: QueueChange) -> QueueInfo:
    """Change what a queue is told to do, and let claims find out what that means for them."""
    ensure_queues_open(transaction, {queue})
    columns = _columns(change)
    if columns:
        if change.paused is True:
            columns["paused_at"] = transaction.now
        assignments = ", ".join(
            "paused_at = coalesce(paused_at, :paused_at)"
            if column == "paused_at" and change.paused
            else f"{column} = :{column}"
            for column in columns
        )
        transaction.connection.execute(
            f"update onward_queue set {assignments}, open = 0, reopens_at = null where name = :name",  # noqa: S608
            columns | {"name": queue},
        )
        ensure_queues_open(transaction, {queue})  # stays closed where it is paused
    (info,) = queries.queues(transaction, queue)
    return info


def _columns(change: QueueChange) -> dict[str, Any]:
    """Lay out what is changed; the names are those of our own columns."""
    columns: dict[str, Any] = {}
    for field in ("paused", "pause_reason", "paused_by", "global_concurrency", "weight", "max_attempts"):
        value = getattr(change, field)
        if value is not UNSET:
            columns[field] = value
    if change.paused is False:
        columns |= dict.fromkeys(("pause_reason", "paused_by", "paused_at"))
    if change.rate is not UNSET:
        columns |= _rate_columns(change.rate)
    if change.lease is not UNSET:
        columns["lease_us"] = micros(change.lease)
    if isinstance(change.backoff, Backoff) or change.backoff is None:
        columns["backoff"] = backoff_text(change.backoff)
    if isinstance(change.retention, Retention):
        retention = change.retention
        columns |= {
            "keep_completed_us": micros(retention.completed),
            "keep_completed_count": retention.completed_count,
            "keep_failed_us": micros(retention.failed),
            "keep_failed_count": retention.failed_count,
            "keep_cancelled_us": micros(retention.cancelled),
            "keep_archived_us": micros(retention.archived),
        }
    return columns


def _rate_columns(rate: Rate | None) -> dict[str, Any]:
    if rate is None:
        return {"rate_count": None, "rate_period_us": None, "rate_burst": None}
    return {"rate_count": rate.count, "rate_period_us": rate.period // MICROSECOND, "rate_burst": rate.burst}
