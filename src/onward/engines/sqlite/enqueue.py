"""Puts jobs in: on our own connection, or on the caller's, within the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final, NamedTuple

from onward.backoff import Backoff
from onward.clock import MICROSECOND, micros_of
from onward.engine.values import Retention
from onward.engines.sqlite import dependencies
from onward.engines.sqlite.rows import backoff_text, json_text, micros
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.ids import new_id, new_ids
from onward.job import Enqueued, EnqueueStatus, JobRef, NewJob, UniformJobs
from onward.keys import digest
from onward.lifecycle import MAX_ATTEMPTS

_KEPT: Final = Retention()
_NOTHING: Final = timedelta(0)


def enqueue(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Add jobs, in order, all or none; those whose key is taken are answered with the job that has it."""
    return enqueue_all(transaction, [jobs])[0]


def enqueue_all(transaction: Transaction, batches: Sequence[Sequence[NewJob]]) -> list[list[Enqueued]]:
    """Add the jobs of several callers, as if they were one's."""
    ends = list(accumulate(len(batch) for batch in batches))
    ids = new_ids(ends[-1])
    row = _Row(transaction)
    answers = [_add(row, batch, ids[end - len(batch) : end]) for batch, end in zip(batches, ends, strict=True)]
    row.write()
    return answers


def enqueue_at_once(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
    """Add one plain job by one statement, which needs no transaction around it; None: it takes more than that."""
    job, payload = (jobs.template, jobs.payloads[0]) if isinstance(jobs, UniformJobs) else (jobs[0], jobs[0].payload)
    if len(jobs) != 1 or not _is_plain(job):
        return None
    job_id = new_id()
    values = (
        job_id,
        job.type,
        job.priority,
        job.org_id,
        payload,
        job.max_attempts,
        MAX_ATTEMPTS,
        transaction.now,
        job.trace,
        job.queue,
    )
    answer = [Enqueued(JobRef(job.queue, job_id))]
    transaction.wakes_workers = True
    return answer if transaction.connection.execute(SQL.enqueue_one.numbered, values).rowcount else None


def _add(row: _Row, jobs: Sequence[NewJob], ids: Sequence[str]) -> list[Enqueued]:
    if isinstance(jobs, UniformJobs) and not _has_key(jobs.template) and not jobs.template.after:
        row.add(jobs.template, ids, jobs.payloads)
        queue, batch = jobs.template.queue, jobs.template.batch
        if batch is not None:
            dependencies.count_in(row.transaction, batch, len(ids))
        return [Enqueued(JobRef(queue, job_id)) for job_id in ids]
    answers: list[Enqueued] = []
    counts: Counter[str] = Counter()
    waiting: dict[str, list[tuple[str, list[str]]]] = {}
    for job, job_id in zip(jobs, ids, strict=True):
        if _has_key(job):
            row.write()  # the key may be that of a neighbour
            existing = _standing_for(row.transaction, job)
            if existing is not None:
                answers.append(existing)
                continue
            _hold(row.transaction, job, job_id)
        row.add(job, (job_id,), (job.payload,))
        answers.append(Enqueued(JobRef(job.queue, job_id)))
        if job.batch is not None:
            counts[job.batch] += 1
            if job.after:
                parents = [answers[parent].id if isinstance(parent, int) else parent for parent in _parents(job)]
                waiting.setdefault(job.batch, []).append((job_id, parents))
    for batch, number in counts.items():
        dependencies.count_in(row.transaction, batch, number)
    if waiting:
        row.write()
        for batch, children in waiting.items():
            dependencies.link(row.transaction, batch, children)
    return answers


def _parents(job: NewJob) -> tuple[int | str, ...]:
    return tuple(dict.fromkeys(job.after))


class _Row:
    """Neighbours that differ in nothing but id and payload: they go in by one statement."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self._last: NewJob | None = None
        self._shape: _Shape | None = None
        self._ids: list[str] = []
        self._payloads: list[str] = []

    def add(self, like: NewJob, ids: Sequence[str], payloads: Sequence[str]) -> None:
        """Put jobs beside those that are there, if they are alike; else write those first."""
        if like is not self._last:
            shape = _shape(like, self.transaction.now)
            if shape != self._shape:
                self.write()
                self._shape = shape
            self._last = like
        self._ids += ids
        self._payloads += payloads

    def write(self) -> None:
        """Add them to the store, and begin anew."""
        if self._shape is None or not self._ids:
            return
        transaction = self.transaction
        transaction.wakes_workers = True
        named = _named(self._shape, transaction.now)
        named["rows"] = json_text(list(map(str.__add__, self._ids, self._payloads)))
        if not transaction.execute(SQL.enqueue, named).rowcount:
            use_queues(transaction, {self._shape.queue})
            transaction.execute(SQL.enqueue, named | {"include_closed": True})
        self._last, self._shape, self._ids, self._payloads = None, None, [], []


def use_queues(transaction: Transaction, names: set[str]) -> None:
    """Make queues where there are none, let claims look at them, and wake whoever waits for work."""
    named = {"names": json_text(list(names)), "now": transaction.now, **default_retention()}
    transaction.execute(SQL.queue_ensure_open, named)
    transaction.wakes_workers = True


def default_retention() -> dict[str, int | None]:
    """What a queue keeps that has not been told."""
    return {"completed_us": micros(_KEPT.completed), "cancelled_us": micros(_KEPT.cancelled)}


def _is_plain(job: NewJob) -> bool:
    """Say whether a job is ready, has no key, and leaves its retries to its queue."""
    return (
        job.idempotency_key is None
        and job.dedupe_key is None
        and job.delay is None
        and job.run_at is None
        and job.start_by is None
        and job.backoff is None
        and job.batch is None
    )


def _has_key(job: NewJob) -> bool:
    return job.idempotency_key is not None or job.dedupe_key is not None


def _standing_for(transaction: Transaction, job: NewJob) -> Enqueued | None:
    if job.idempotency_key is not None:
        key = {"digest": digest(job.type, job.idempotency_key), "now": transaction.now}
        found = transaction.execute(SQL.find_by_key, key).fetchall()
        if found:
            return Enqueued(JobRef(*found[0]), EnqueueStatus.SAME_KEY)
    if job.dedupe_key is None:
        return None
    if job.debounce is not None:
        named = {
            "digest": _held(job),
            "payload": job.payload,
            "due": _due(job, transaction.now),
            "now": transaction.now,
        }
        found, enqueue_status = transaction.execute(SQL.debounce_replace, named).fetchall(), EnqueueStatus.REPLACED
    elif job.throttle is not None:
        named = {"digest": _held(job), "now": transaction.now}
        found, enqueue_status = transaction.execute(SQL.find_throttled, named).fetchall(), EnqueueStatus.DEDUPED
    else:
        named = {"digest": digest(job.dedupe_key)}
        found, enqueue_status = transaction.execute(SQL.find_by_dedupe, named).fetchall(), EnqueueStatus.DEDUPED
    return Enqueued(JobRef(*found[0]), enqueue_status) if found else None


def _hold(transaction: Transaction, job: NewJob, job_id: str) -> None:
    """Hold the key of a job that is throttled or debounced."""
    period = job.throttle or job.debounce
    if period is not None:
        until = transaction.now + period // MICROSECOND
        transaction.execute(
            SQL.throttle_upsert, {"digest": _held(job), "until": until, "queue": job.queue, "id": job_id}
        )


def _held(job: NewJob) -> bytes:
    return digest("throttle" if job.debounce is None else "debounce", job.dedupe_key or "")


class _Shape(NamedTuple):
    """All that a job is but its id and payload."""

    queue: str
    type: str
    priority: int
    org_id: str | None
    due: int | None
    start_by: int | None
    max_attempts: int | None
    backoff: Backoff | None
    idempotency_key: str | None
    dedupe_key: str | None
    holds: bool
    """Its dedupe key is held elsewhere."""
    batch: str | None
    pending_dependencies: int | None
    on_failure: str | None
    trace: str | None


def _shape(job: NewJob, now: int) -> _Shape:
    return _Shape(
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
        job.throttle is not None or job.debounce is not None,
        job.batch,
        len(_parents(job)) or None,
        job.on_failure if job.after else None,
        job.trace,
    )


def _due(job: NewJob, now: int) -> int | None:
    """Say when a job will be ready; None: it is."""
    if job.debounce is not None:
        return now + job.debounce // MICROSECOND
    if job.delay is not None and job.delay > _NOTHING:
        return now + job.delay // MICROSECOND
    if job.run_at is not None:
        due = micros_of(job.run_at)
        return due if due > now else None
    return None


def _named(shape: _Shape, now: int) -> dict[str, Any]:
    """Name the values of a statement."""
    key, dedupe_key = shape.idempotency_key, shape.dedupe_key
    return {
        "queue": shape.queue,
        "type": shape.type,
        "status": "blocked" if shape.pending_dependencies else "pending" if shape.due is None else "scheduled",
        "priority": shape.priority,
        "org_id": shape.org_id,
        "due": shape.due,
        "ready": now if shape.due is None and not shape.pending_dependencies else None,
        "start_by": shape.start_by,
        "max_attempts": shape.max_attempts,
        "default_max_attempts": MAX_ATTEMPTS,
        "backoff": None if shape.backoff is None else backoff_text(shape.backoff),
        "idempotency_key": key,
        "key_digest": None if key is None else digest(shape.type, key),
        "dedupe_key": dedupe_key,
        "dedupe_digest": None if dedupe_key is None or shape.holds else digest(dedupe_key),
        "batch": shape.batch,
        "pending_dependencies": shape.pending_dependencies,
        "on_failure": shape.on_failure,
        "trace": shape.trace,
        "now": now,
        "include_closed": False,
    }
