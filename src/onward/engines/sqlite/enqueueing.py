"""Puts jobs in: on our own connection, or on the caller's, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final

from onward.clock import MICROSECOND, micros_of
from onward.engine.values import Retention
from onward.engines.sqlite.lane import Transaction
from onward.engines.sqlite.rows import backoff_text, json_text, micros
from onward.engines.sqlite.statements import SQL
from onward.ids import new_ids
from onward.job import Arrival, Enqueued, JobRef, NewJob
from onward.keys import digest
from onward.lifecycle import MAX_ATTEMPTS

_KEPT: Final = Retention()
_NOTHING: Final = timedelta(0)

_Shape = tuple[Any, ...]


def enqueue(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Add jobs, in order, all or none; those whose key is taken are answered with the job that has it.

    Neighbours that differ in nothing but their payload go in by one statement.
    """
    answers: list[Enqueued] = []
    alike: list[tuple[str, str]] = []
    shape: _Shape | None = None
    for job, job_id in zip(jobs, new_ids(len(jobs)), strict=True):
        if job.idempotency_key is not None or job.dedupe_key is not None:
            _insert(transaction, shape, alike)
            shape = None
            existing = _standing_for(transaction, job)
            if existing is not None:
                answers.append(existing)
                continue
        of_job = _shape(job, transaction.now)
        if of_job != shape:
            _insert(transaction, shape, alike)
            shape = of_job
        alike.append((job_id, job.payload))
        answers.append(Enqueued(JobRef(job.queue, job_id)))
    _insert(transaction, shape, alike)
    use_queues(transaction, {job.queue for job in jobs})
    return answers


def enqueue_all(transaction: Transaction, batches: Sequence[Sequence[NewJob]]) -> list[list[Enqueued]]:
    """Add the jobs of several callers as if they were one's."""
    answers = enqueue(transaction, [job for batch in batches for job in batch])
    ends = list(accumulate(len(batch) for batch in batches))
    return [answers[end - len(batch) : end] for batch, end in zip(batches, ends, strict=True)]


def use_queues(transaction: Transaction, names: set[str]) -> None:
    """Make queues where there are none, let claims look at them, and wake whoever waits for work."""
    named = {"names": json_text(list(names)), "now": transaction.now, **default_retention()}
    transaction.connection.execute(SQL.queue_use, named)
    transaction.woke = True


def default_retention() -> dict[str, int | None]:
    """What a queue keeps that has not been told."""
    return {"completed_us": micros(_KEPT.completed), "cancelled_us": micros(_KEPT.cancelled)}


def _standing_for(transaction: Transaction, job: NewJob) -> Enqueued | None:
    connection = transaction.connection
    if job.idempotency_key is not None:
        key = {"digest": digest(job.type, job.idempotency_key), "now": transaction.now}
        found = connection.execute(SQL.find_by_key, key).fetchall()
        if found:
            return Enqueued(JobRef(*found[0]), Arrival.SAME_KEY)
    if job.dedupe_key is not None:
        found = connection.execute(SQL.find_by_dedupe, {"digest": digest(job.dedupe_key)}).fetchall()
        if found:
            return Enqueued(JobRef(*found[0]), Arrival.DEDUPED)
    return None


def _shape(job: NewJob, now: int) -> _Shape:
    """All that a job is but its id and payload."""
    return (
        job.queue,
        job.type,
        job.priority,
        job.org_id,
        _due(job, now),
        None if job.start_by is None else micros_of(job.start_by),
        job.max_attempts,
        job.backoff,
        job.idempotency_key,
        job.dedupe_key,
    )


def _due(job: NewJob, now: int) -> int | None:
    """Say when a job will be ready; None: it is."""
    if job.delay is not None and job.delay > _NOTHING:
        return now + job.delay // MICROSECOND
    if job.run_at is not None:
        due = micros_of(job.run_at)
        return due if due > now else None
    return None


def _insert(transaction: Transaction, shape: _Shape | None, alike: list[tuple[str, str]]) -> None:
    """Add jobs of one shape, and begin the next."""
    if shape is None or not alike:
        return
    queue, type_, priority, org_id, due, start_by, max_attempts, backoff, idempotency_key, dedupe_key = shape
    transaction.connection.execute(
        SQL.enqueue,
        {
            "rows": json_text(alike),
            "queue": queue,
            "type": type_,
            "priority": priority,
            "org_id": org_id,
            "due": due,
            "start_by": start_by,
            "max_attempts": max_attempts,
            "attempts_else": MAX_ATTEMPTS,
            "backoff": backoff_text(backoff),
            "idempotency_key": idempotency_key,
            "key_digest": None if idempotency_key is None else digest(type_, idempotency_key),
            "dedupe_key": dedupe_key,
            "dedupe_digest": None if dedupe_key is None else digest(dedupe_key),
            "now": transaction.now,
        },
    )
    alike.clear()
