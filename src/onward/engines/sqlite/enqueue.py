"""Puts jobs in: on our own connection, or on the caller's, within the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final, NamedTuple

from onward.backoff import Backoff
from onward.clock import MICROSECOND, micros_of
from onward.engine.access import AuditRecord, counted, enqueued_count
from onward.engine.values import Retention
from onward.engines.sqlite import access, dependencies
from onward.engines.sqlite.rows import backoff_text, json_text, micros
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.ids import new_id, new_ids
from onward.job import Enqueued, EnqueueStatus, JobRef, NewJob, UniformJobs
from onward.keys import digest, idempotency_digest
from onward.lifecycle import MAX_ATTEMPTS

_DEFAULT_RETENTION: Final = Retention()
_ZERO: Final = timedelta(0)


def enqueue(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Add jobs, in order, all or none; those whose key is taken are answered with the job that has it."""
    return enqueue_all(transaction, [jobs])[0] if jobs else []


def enqueue_all(transaction: Transaction, batches: Sequence[Sequence[NewJob]]) -> list[list[Enqueued]]:
    """Add the jobs of several callers, as if they were one's."""
    ends = list(accumulate(len(batch) for batch in batches))
    ids = new_ids(ends[-1])
    buffer = _InsertBuffer(transaction)
    answers = [_add(buffer, batch, ids[end - len(batch) : end]) for batch, end in zip(batches, ends, strict=True)]
    buffer.write()
    return answers


@dataclass(frozen=True, slots=True)
class AuditedJobs:
    """Jobs of one caller, and the record of it."""

    jobs: Sequence[NewJob]
    record: AuditRecord

    def __len__(self) -> int:
        """Return the number of jobs, by which the writer sizes its transactions."""
        return len(self.jobs)


def enqueue_all_audited(transaction: Transaction, batches: Sequence[AuditedJobs]) -> list[list[Enqueued]]:
    """Add the jobs of several callers and the records of it, in one transaction."""
    answers = enqueue_all(transaction, [batch.jobs for batch in batches])
    records = [counted(batch.record, enqueued_count(answer)) for batch, answer in zip(batches, answers, strict=True)]
    access.record(transaction, records)
    return answers


def enqueue_one(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
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


def _add(buffer: _InsertBuffer, jobs: Sequence[NewJob], ids: Sequence[str]) -> list[Enqueued]:
    if isinstance(jobs, UniformJobs) and not _has_key(jobs.template) and not jobs.template.after:
        buffer.add(jobs.template, ids, jobs.payloads)
        queue, batch = jobs.template.queue, jobs.template.batch
        if batch is not None:
            dependencies.add_to_total(buffer.transaction, batch, len(ids))
        return [Enqueued(JobRef(queue, job_id)) for job_id in ids]
    answers: list[Enqueued] = []
    counts: Counter[str] = Counter()
    waiting_jobs: dict[str, list[tuple[str, list[str]]]] = {}
    for job, job_id in zip(jobs, ids, strict=True):
        if _has_key(job):
            buffer.write()  # the key may be that of a neighbour
            existing = _existing_job(buffer.transaction, job)
            if existing is not None:
                answers.append(existing)
                continue
            _start_throttle(buffer.transaction, job, job_id)
        buffer.add(job, (job_id,), (job.payload,))
        answers.append(Enqueued(JobRef(job.queue, job_id)))
        if job.batch is not None:
            counts[job.batch] += 1
            if job.after:
                depends_on = [
                    answers[dependency].id if isinstance(dependency, int) else dependency
                    for dependency in _dependencies(job)
                ]
                waiting_jobs.setdefault(job.batch, []).append((job_id, depends_on))
    for batch, number in counts.items():
        dependencies.add_to_total(buffer.transaction, batch, number)
    if waiting_jobs:
        buffer.write()
        for batch, jobs_with_dependencies in waiting_jobs.items():
            dependencies.add(buffer.transaction, batch, jobs_with_dependencies)
    return answers


def _dependencies(job: NewJob) -> tuple[int | str, ...]:
    return tuple(dict.fromkeys(job.after))


class _InsertBuffer:
    """Neighbours that differ in nothing but id and payload: they go in by one statement."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self._last: NewJob | None = None
        self._shared_columns: _SharedColumns | None = None
        self._ids: list[str] = []
        self._payloads: list[str] = []

    def add(self, template: NewJob, ids: Sequence[str], payloads: Sequence[str]) -> None:
        """Put jobs beside those that are there, if they are alike; else write those first."""
        if template is not self._last:
            columns = _shared_columns(template, self.transaction.now)
            if columns != self._shared_columns:
                self.write()
                self._shared_columns = columns
            self._last = template
        self._ids += ids
        self._payloads += payloads

    def write(self) -> None:
        """Add them to the store, and begin anew."""
        if self._shared_columns is None or not self._ids:
            return
        transaction = self.transaction
        transaction.wakes_workers = True
        named = _named(self._shared_columns, transaction.now)
        named["rows"] = json_text(list(map(str.__add__, self._ids, self._payloads)))
        if not transaction.execute(SQL.enqueue, named).rowcount:
            ensure_queues_open(transaction, {self._shared_columns.queue})
            transaction.execute(SQL.enqueue, named | {"include_closed": True})
        self._last, self._shared_columns, self._ids, self._payloads = None, None, [], []


def ensure_queues_open(transaction: Transaction, names: set[str]) -> None:
    """Make queues where there are none, let claims look at them, and wake whoever waits for work."""
    named = {"names": json_text(list(names)), "now": transaction.now, **default_retention()}
    transaction.execute(SQL.queue_ensure_open, named)
    transaction.wakes_workers = True


def default_retention() -> dict[str, int | None]:
    """What a queue keeps that has not been told."""
    return {"completed_us": micros(_DEFAULT_RETENTION.completed), "cancelled_us": micros(_DEFAULT_RETENTION.cancelled)}


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


def _existing_job(transaction: Transaction, job: NewJob) -> Enqueued | None:
    if job.idempotency_key is not None:
        key = {"digest": idempotency_digest(job.type, job.org_id, job.idempotency_key), "now": transaction.now}
        found = transaction.execute(SQL.find_by_key, key).fetchall()
        if found:
            return Enqueued(JobRef(*found[0]), EnqueueStatus.SAME_KEY)
    if job.dedupe_key is None:
        return None
    if job.debounce is not None:
        named = {
            "digest": _throttle_digest(job),
            "payload": job.payload,
            "due": _due(job, transaction.now),
            "now": transaction.now,
        }
        found, enqueue_status = transaction.execute(SQL.debounce_replace, named).fetchall(), EnqueueStatus.REPLACED
    elif job.throttle is not None:
        named = {"digest": _throttle_digest(job), "now": transaction.now}
        found, enqueue_status = transaction.execute(SQL.find_throttled, named).fetchall(), EnqueueStatus.DEDUPED
    else:
        named = {"digest": digest(job.dedupe_key)}
        found, enqueue_status = transaction.execute(SQL.find_by_dedupe, named).fetchall(), EnqueueStatus.DEDUPED
    return Enqueued(JobRef(*found[0]), enqueue_status) if found else None


def _start_throttle(transaction: Transaction, job: NewJob, job_id: str) -> None:
    """Hold the key of a job that is throttled or debounced."""
    period = job.throttle or job.debounce
    if period is not None:
        until = transaction.now + period // MICROSECOND
        transaction.execute(
            SQL.throttle_upsert, {"digest": _throttle_digest(job), "until": until, "queue": job.queue, "id": job_id}
        )


def _throttle_digest(job: NewJob) -> bytes:
    return digest("throttle" if job.debounce is None else "debounce", job.dedupe_key or "")


class _SharedColumns(NamedTuple):
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
    is_throttled: bool
    """Its dedupe key is held elsewhere."""
    batch: str | None
    pending_dependencies: int | None
    on_dependency_failure: str | None
    trace: str | None


def _shared_columns(job: NewJob, now: int) -> _SharedColumns:
    return _SharedColumns(
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
        len(_dependencies(job)) or None,
        job.on_dependency_failure if job.after else None,
        job.trace,
    )


def _due(job: NewJob, now: int) -> int | None:
    """Say when a job will be ready; None: it is."""
    if job.debounce is not None:
        return now + job.debounce // MICROSECOND
    if job.delay is not None and job.delay > _ZERO:
        return now + job.delay // MICROSECOND
    if job.run_at is not None:
        due = micros_of(job.run_at)
        return due if due > now else None
    return None


def _named(columns: _SharedColumns, now: int) -> dict[str, Any]:
    """Name the values of a statement."""
    key, dedupe_key = columns.idempotency_key, columns.dedupe_key
    return {
        "queue": columns.queue,
        "type": columns.type,
        "status": "blocked" if columns.pending_dependencies else "pending" if columns.due is None else "scheduled",
        "priority": columns.priority,
        "org_id": columns.org_id,
        "due": columns.due,
        "ready": now if columns.due is None and not columns.pending_dependencies else None,
        "start_by": columns.start_by,
        "max_attempts": columns.max_attempts,
        "default_max_attempts": MAX_ATTEMPTS,
        "backoff": None if columns.backoff is None else backoff_text(columns.backoff),
        "idempotency_key": key,
        "key_digest": None if key is None else idempotency_digest(columns.type, columns.org_id, key),
        "dedupe_key": dedupe_key,
        "dedupe_digest": None if dedupe_key is None or columns.is_throttled else digest(dedupe_key),
        "batch": columns.batch,
        "pending_dependencies": columns.pending_dependencies,
        "on_dependency_failure": columns.on_dependency_failure,
        "trace": columns.trace,
        "now": now,
        "include_closed": False,
    }
