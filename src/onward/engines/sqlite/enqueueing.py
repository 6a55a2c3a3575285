"""Puts jobs in: on our own connection, or on the caller's, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from onward.clock import MICROSECOND, micros_of
from onward.engine.values import Retention
from onward.engines.sqlite.lane import Transaction
from onward.engines.sqlite.rows import backoff_text, json_text, micros
from onward.engines.sqlite.statements import SQL
from onward.ids import new_ids
from onward.job import Arrival, Enqueued, JobRef, NewJob
from onward.keys import digest
from onward.lifecycle import MAX_ATTEMPTS, State

_KEPT: Final = Retention()
_NOTHING: Final = timedelta(0)


def enqueue(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Add jobs, in order, all or none; those whose key is taken are answered with the job that has it."""
    connection, now = transaction.connection, transaction.now
    # First the queues: the write takes the lock, so that on a caller's connection too nobody comes between the look for a
    # key and the insert.
    defaults = {name: use_queue(transaction, name) for name in {job.queue for job in jobs}}
    answers: list[Enqueued] = []
    rows: list[tuple[Any, ...]] = []
    ready: set[str] = set()
    for job, job_id in zip(jobs, new_ids(len(jobs)), strict=True):
        keyed = job.idempotency_key is not None or job.dedupe_key is not None
        if keyed:
            if rows:
                connection.executemany(SQL.enqueue, rows)
                rows.clear()
            existing = _standing_for(transaction, job)
            if existing is not None:
                answers.append(existing)
                continue
        due = _due(job, now)
        if due is None:
            ready.add(job.queue)
        rows.append(_row(job, job_id, due, defaults[job.queue], now))
        answers.append(Enqueued(JobRef(job.queue, job_id)))
    if rows:
        connection.executemany(SQL.enqueue, rows)
    if ready:
        open_queues(transaction, ready)
    return answers


def use_queue(transaction: Transaction, name: str) -> tuple[int | None, str | None]:
    """Make a queue where there is none, and say what its jobs get that do not say otherwise."""
    connection = transaction.connection
    found = connection.execute(SQL.queue_defaults, {"name": name}).fetchone()
    if found is None:
        connection.execute(SQL.queue_use, {"name": name, "now": transaction.now, **default_retention()})
        return None, None
    return found[0], found[1]


def default_retention() -> dict[str, int | None]:
    """What a queue keeps that has not been told."""
    return {"completed_us": micros(_KEPT.completed), "cancelled_us": micros(_KEPT.cancelled)}


def open_queues(transaction: Transaction, names: set[str]) -> None:
    """Let claims look at queues in which work has become ready, and wake whoever waits for work."""
    transaction.connection.execute(SQL.queue_open, {"names": json_text(list(names))})
    transaction.woke = True


def _standing_for(transaction: Transaction, job: NewJob) -> Enqueued | None:
    connection = transaction.connection
    if job.idempotency_key is not None:
        found = connection.execute(
            SQL.find_by_key, {"digest": digest(job.type, job.idempotency_key), "now": transaction.now}
        ).fetchall()
        if found:
            return Enqueued(JobRef(*found[0]), Arrival.SAME_KEY)
    if job.dedupe_key is not None:
        found = connection.execute(SQL.find_by_dedupe, {"digest": digest(job.dedupe_key)}).fetchall()
        if found:
            return Enqueued(JobRef(*found[0]), Arrival.DEDUPED)
    return None


def _due(job: NewJob, now: int) -> int | None:
    """Say when a job will be ready; None: it is."""
    if job.delay is not None and job.delay > _NOTHING:
        return now + job.delay // MICROSECOND
    if job.run_at is not None:
        due = micros_of(job.run_at)
        return due if due > now else None
    return None


def _row(
    job: NewJob, job_id: str, due: int | None, defaults: tuple[int | None, str | None], now: int
) -> tuple[Any, ...]:
    """Lay a job out as ``sql/enqueue.sql`` takes it."""
    return (
        job_id,
        job.queue,
        job.type,
        State.PENDING if due is None else State.SCHEDULED,
        job.priority,
        job.org_id,
        job.payload,
        job.max_attempts or defaults[0] or MAX_ATTEMPTS,
        backoff_text(job.backoff) or defaults[1],
        job.idempotency_key,
        None if job.idempotency_key is None else digest(job.type, job.idempotency_key),
        job.dedupe_key,
        None if job.dedupe_key is None else digest(job.dedupe_key),
        due,
        None if job.start_by is None else micros_of(job.start_by),
        now,
        now if due is None else None,
        now,
    )
