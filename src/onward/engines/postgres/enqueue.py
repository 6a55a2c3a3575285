"""Puts jobs in: on our own connection, or on the caller's, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import chain
from time import monotonic
from typing import Any, Final, NamedTuple

from onward.clock import micros_of
from onward.engine.access import AuditRecord
from onward.engines.postgres import dependencies
from onward.engines.postgres.enqueue_cache import EnqueueCache, Lane
from onward.engines.postgres.maintenance import NextDue
from onward.engines.postgres.rows import backoff_text, optional_micros
from onward.engines.postgres.statements import Schema
from onward.ids import ids_in_parts, new_id, new_ids
from onward.job import Enqueued, EnqueueStatus, JobRef, NewJob, UniformJobs
from onward.keys import digest, idempotency_digest
from onward.pg import arrays, binary_copy
from onward.pg.access import rows_of
from onward.pg.listener import DUE
from onward.pg.plan_runner import Plan, Rows, Statement

_ZERO: Final = timedelta(0)
_SOON: Final = NextDue.TTL
"""Of a job that comes due later, whoever leads learns in time."""
_COPY_THRESHOLD: Final = 300
"""Jobs from which on COPY is quicker than a statement, in spite of what it takes to begin and to end it."""
_COPY_COLUMNS: Final = 9
"""Columns of a job that is copied in but for its id and payload: see enqueue_copy."""


def has_keys(jobs: Sequence[NewJob]) -> bool:
    """Say whether any of these may stand for a job that is there already."""
    if isinstance(jobs, UniformJobs):
        return jobs.template.idempotency_key is not None or jobs.template.dedupe_key is not None
    return any(job.idempotency_key is not None or job.dedupe_key is not None for job in jobs)


def has_batches(jobs: Sequence[NewJob]) -> bool:
    """Say whether any of these belongs to a batch."""
    return (
        jobs.template.batch is not None if isinstance(jobs, UniformJobs) else any(job.batch is not None for job in jobs)
    )


def is_multi_statement(jobs: Sequence[NewJob]) -> bool:
    """Say whether it may take more than one statement to add these."""
    return has_keys(jobs) or has_batches(jobs)


def notification_of(jobs: Sequence[NewJob]) -> frozenset[str]:
    """Say what is to be told of these: the queues in which jobs are ready, and whether any comes due soon."""
    if isinstance(jobs, UniformJobs):
        jobs = (jobs.template,)
    values: set[str] = set()
    for job in jobs:
        delay = job.delay or job.debounce
        if delay is None and job.run_at is None:
            values.add(job.queue)
        elif delay is None or delay < _SOON:
            values.add(DUE)
        if job.start_by is not None:
            values.add(DUE)
    return frozenset(values)


class SingleInsert(NamedTuple):
    """A single job that is to be added, and the statement that does so."""

    added: Enqueued
    text: str
    values: tuple[Any, ...]


class SingleInsertStatements(NamedTuple):
    """How a single job of a kind is added by one plain statement."""

    queue: str
    plain_insert: Statement
    """With the values that it takes behind id and payload."""
    notifying: Statement
    """The same, for a job that is told of: behind these values it takes what is told."""
    checking: Statement
    """The same as ``plain_insert``, if what was seen is still so, nobody listening included: else it adds nothing."""

    def single_insert(self, payload: str, notice: str | None) -> SingleInsert:
        """Write the statement for one."""
        if notice is None:
            return self._insert(self.plain_insert, payload)
        return self._insert(self.notifying, payload, notice)

    def checked_insert(self, payload: str) -> SingleInsert:
        """Write the statement for one that looks first."""
        return self._insert(self.checking, payload)

    def _insert(self, statement: Statement, payload: str, *notice: str) -> SingleInsert:
        job_id = new_id()
        added = Enqueued(JobRef(self.queue, job_id))
        return SingleInsert(added, statement.text, (job_id, payload, *statement.values, *notice))


class EnqueuePlan(NamedTuple):
    """What jobs have in common: of those of a task it is read once, however many of them come one by one."""

    template: NewJob | None
    notification: frozenset[str]
    """What is to be told of them."""
    lane: Lane = ("", 0)
    statements: SingleInsertStatements | None = None
    """None: to add one takes more."""


def plan_for(schema: Schema, jobs: Sequence[NewJob], *, notifies: bool) -> EnqueuePlan:
    """Read what jobs have in common; ``notifies``: whether anything is to be told at all."""
    job = jobs.template if isinstance(jobs, UniformJobs) else jobs[0] if len(jobs) == 1 else None
    notification = notification_of(jobs) if notifies else frozenset[str]()
    if job is None:
        return EnqueuePlan(None, notification)
    lane = (job.queue, job.priority)
    if schema.now is not None or not _is_simple(job):
        return EnqueuePlan(job, notification, lane)
    start_by = None if job.start_by is None else micros_of(job.start_by)
    options = job.org_id, start_by, job.max_attempts, backoff_text(job.backoff), job.trace
    plain = job.queue, job.type, job.priority
    if options.count(None) == len(options):
        plain_insert = Statement(schema.enqueue_plain, plain)
        notifying = Statement(schema.enqueue_plain_and_notify, (*plain, schema.channel))
        checking = Statement(schema.enqueue_plain_and_check, plain)
    else:
        plain_insert = Statement(schema.enqueue_one, (*plain, *options))
        notifying = Statement(schema.enqueue_one_and_notify, (*plain, *options, schema.channel))
        checking = Statement(schema.enqueue_one_and_check, (*plain, *options))
    return EnqueuePlan(job, notification, lane, SingleInsertStatements(job.queue, plain_insert, notifying, checking))


def _is_simple(job: NewJob) -> bool:
    """Say whether a job has neither keys nor a batch, and is ready now."""
    more = (job.run_at, job.idempotency_key, job.dedupe_key, job.batch)
    return not job.delay and more.count(None) == len(more)


def single_insert(
    plan: EnqueuePlan, jobs: Sequence[NewJob], notice: str | None, cache: EnqueueCache
) -> SingleInsert | None:
    """Write the statement that adds a single job, if that is one like most, and what was seen says that it will do."""
    if plan.statements is None or not cache.is_fresh(plan.lane) or not (notice is None or cache.has_listener):
        return None
    payloads = jobs.payloads if isinstance(jobs, UniformJobs) else [jobs[0].payload]
    return plan.statements.single_insert(payloads[0], notice) if len(payloads) == 1 else None


def enqueue(
    schema: Schema,
    jobs: Sequence[NewJob],
    *,
    notice: str | None,
    can_copy: bool = False,
    cache: EnqueueCache | None = None,
) -> Plan[list[Enqueued]]:
    """Add jobs, in order, all or none; those whose key is taken are answered with the job that has it.

    ``notice`` is told to whoever listens, with the transaction's commit. Jobs without keys take one statement, or few
    where they are many and the connection ``can_copy``. What is seen on the way is noted in ``cache`` for those that
    come next, if there is nothing more to come that could undo it.
    """
    if cache is None or is_multi_statement(jobs):
        cache = EnqueueCache()
    added = yield from _enqueue(schema, jobs, notice, can_copy=can_copy, cache=cache)
    if has_batches(jobs):
        yield from dependencies.add_to_batches(schema, jobs, added)
    return added


def is_single_audited_statement(jobs: Sequence[NewJob]) -> bool:
    """Say whether one statement adds these jobs and writes the records of it."""
    return not has_batches(jobs) and (len(jobs) == 1 or not has_keys(jobs))


def enqueue_audited(
    schema: Schema,
    jobs: Sequence[NewJob],
    records: Sequence[AuditRecord],
    *,
    notice: str | None,
    cache: EnqueueCache | None = None,
) -> Plan[list[Enqueued]]:
    """Add jobs and write the records of it, by one statement: see :func:`is_single_audited_statement`."""
    plan = enqueue(schema, jobs, notice=notice, cache=cache)
    statement = next(plan)
    audited = {
        schema.enqueue_uniform: schema.enqueue_uniform_audited,
        schema.enqueue_each: schema.enqueue_each_audited,
        schema.enqueue_keyed: schema.enqueue_keyed_audited,
    }
    answer = yield Statement(audited[statement.text], [*statement.values, rows_of(records)])
    try:
        plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError


def _enqueue(
    schema: Schema, jobs: Sequence[NewJob], notice: str | None, *, can_copy: bool, cache: EnqueueCache
) -> Plan[list[Enqueued]]:
    if has_keys(jobs):
        return (yield from _enqueue_keyed(schema, jobs, new_ids(len(jobs)), notice))
    if isinstance(jobs, UniformJobs):
        return (
            yield from _enqueue_uniform(
                schema, jobs.payloads, _shape(jobs.template), notice, can_copy=can_copy, cache=cache
            )
        )
    payloads, shapes = [job.payload for job in jobs], list(map(_shape, jobs))
    if shapes.count(shapes[0]) == len(shapes):
        return (yield from _enqueue_uniform(schema, payloads, shapes[0], notice, can_copy=can_copy, cache=cache))
    ids = new_ids(len(jobs))
    columns = [write(column) for write, column in zip(_COLUMN_ENCODERS, zip(*shapes, strict=True), strict=True)]
    yield Statement(
        schema.enqueue_each, [schema.now, arrays.words(ids), _array(payloads), *columns, schema.channel, notice]
    )
    return [Enqueued(JobRef(job.queue, job_id)) for job, job_id in zip(jobs, ids, strict=True)]


def _enqueue_uniform(
    schema: Schema,
    payloads: Sequence[str],
    shape: tuple[Any, ...],
    notice: str | None,
    *,
    can_copy: bool,
    cache: EnqueueCache,
) -> Plan[list[Enqueued]]:
    """Add jobs that differ in nothing but their payloads, many by COPY."""
    queue, type_, priority, org_id, delay, run_at, start_by, max_attempts, backoff, batch, pending, _, trace = shape
    is_ready = delay is None and run_at is None and pending is None and schema.now is None
    if is_ready and start_by is None and can_copy and len(payloads) >= _COPY_THRESHOLD:
        added: list[Enqueued] = []
        prefix = b"".join(map(binary_copy.text, (queue, type_, org_id))) + binary_copy.number(priority, 4)
        suffix = binary_copy.text(batch) + binary_copy.text(trace)
        values = [queue, priority, max_attempts, backoff, schema.channel, notice]
        yield Statement(schema.enqueue_copy, values, _copy_rows(payloads, queue, prefix, suffix, added))
        return added
    ids = new_ids(len(payloads))
    values = [schema.now, arrays.words(ids), _array(payloads), *shape, schema.channel, notice]
    began = monotonic()
    ((is_plain, has_listener),) = yield Statement(schema.enqueue_uniform, values)
    cache.store((queue, priority), began, is_plain=is_plain, has_listener=has_listener)
    return [Enqueued(JobRef(queue, job_id)) for job_id in ids]


def _array(payloads: Sequence[str]) -> str:
    return f"[{','.join(payloads)}]"


def _copy_rows(payloads: Sequence[str], queue: str, prefix: bytes, suffix: bytes, added: list[Enqueued]) -> Rows:
    """Write rows part by part, and the answer for those of a part once it is sent: meanwhile the server reads it.

    What their queue says of them stands between what they all say ``prefix`` and ``suffix``.
    """
    parts = ids_in_parts(len(payloads))
    first = next(parts)
    ((attempts, policy, skip_checks),) = yield b""
    values = binary_copy.number(attempts, 8) + binary_copy.text(policy) + binary_copy.number(skip_checks, 1)
    shared = prefix + values + suffix
    yield binary_copy.BEGIN
    for ids in chain((first,), parts):
        yield binary_copy.rows(ids, payloads[len(added) : len(added) + len(ids)], shared, _COPY_COLUMNS)
        added += [Enqueued(JobRef(queue, job_id)) for job_id in ids]
    yield binary_copy.END


def _shape(job: NewJob) -> tuple[Any, ...]:
    """All that a job is but its id, payload and keys."""
    return (
        job.queue,
        job.type,
        job.priority,
        job.org_id,
        optional_micros(job.delay) if job.delay is not None and job.delay > _ZERO else optional_micros(job.debounce),
        None if job.run_at is None else micros_of(job.run_at),
        None if job.start_by is None else micros_of(job.start_by),
        job.max_attempts,
        backoff_text(job.backoff),
        job.batch,
        len(dict.fromkeys(job.after)) or None,
        job.on_dependency_failure if job.after else None,
        job.trace,
    )


_NUMBERS, _TEXTS = arrays.numbers, arrays.texts
_COLUMN_ENCODERS: Final[tuple[Callable[[Sequence[Any]], str], ...]] = (
    _TEXTS,
    _TEXTS,
    _NUMBERS,
    _TEXTS,
    _NUMBERS,
    _NUMBERS,
    _NUMBERS,
    _NUMBERS,
    _TEXTS,
    _TEXTS,
    _NUMBERS,
    _TEXTS,
    _TEXTS,
)
"""How each part of a shape is written."""


def _enqueue_keyed(
    schema: Schema, jobs: Sequence[NewJob], ids: Sequence[str], notice: str | None
) -> Plan[list[Enqueued]]:
    """Add jobs of which some have keys.

    A job that shares a key with an earlier one of the same call waits until it is known what became of that one: its
    key may have been taken, or not. So there may be several rounds; almost always there is one.
    """
    answers: dict[int, Enqueued] = {}
    by_key: dict[bytes, Enqueued] = {}
    by_dedupe: dict[bytes, Enqueued] = {}
    keys = [
        None if job.idempotency_key is None else idempotency_digest(job.type, job.org_id, job.idempotency_key)
        for job in jobs
    ]
    dedupes = [None if job.dedupe_key is None else _dedupe_digest(job, job.dedupe_key) for job in jobs]
    seqs: list[int] | None = None
    left = list(range(len(jobs)))
    while left:
        chosen: list[int] = []
        later: list[int] = []
        busy: set[bytes] = set()
        for number in left:
            key, dedupe = keys[number], dedupes[number]
            own = {part for part in (key, dedupe) if part is not None}
            if own & busy:
                later.append(number)
            elif key is not None and key in by_key:
                answers[number] = Enqueued(by_key[key].ref, EnqueueStatus.SAME_KEY)
            elif key is None and dedupe is not None and dedupe in by_dedupe and jobs[number].debounce is None:
                answers[number] = Enqueued(by_dedupe[dedupe].ref, EnqueueStatus.DEDUPED)
            else:
                chosen.append(number)
            busy |= own
        if later and seqs is None:
            seqs = [row[0] for row in (yield Statement(schema.seqs, [len(jobs)]))]
        if chosen:
            chosen_jobs = [jobs[number] for number in chosen]
            columns = _columns_of_each(schema, chosen_jobs, [ids[number] for number in chosen], notice)
            columns += [
                None if seqs is None else [seqs[number] for number in chosen],
                [job.idempotency_key for job in chosen_jobs],
                [keys[number] for number in chosen],
                [job.dedupe_key for job in chosen_jobs],
                [None if _is_throttled(jobs[number]) else dedupes[number] for number in chosen],
                [dedupes[number] if _is_throttled(jobs[number]) else None for number in chosen],
                [optional_micros(job.throttle) for job in chosen_jobs],
                [optional_micros(job.debounce) for job in chosen_jobs],
            ]
            rows = yield Statement(schema.enqueue_keyed, columns)
            for number, (enqueue_status, queue, job_id) in zip(chosen, rows, strict=True):
                answer = answers[number] = Enqueued(JobRef(queue, job_id), EnqueueStatus(enqueue_status))
                key, dedupe = keys[number], dedupes[number]
                if key is not None and answer.enqueue_status is not EnqueueStatus.DEDUPED:
                    by_key[key] = answer
                if dedupe is not None and answer.enqueue_status is not EnqueueStatus.SAME_KEY:
                    by_dedupe[dedupe] = answer
        left = later
    return [answers[number] for number in range(len(jobs))]


def _is_throttled(job: NewJob) -> bool:
    return job.throttle is not None or job.debounce is not None


def _dedupe_digest(job: NewJob, key: str) -> bytes:
    if job.debounce is not None:
        return digest("debounce", key)
    return digest(key) if job.throttle is None else digest("throttle", key)


def _columns_of_each(schema: Schema, jobs: Sequence[NewJob], ids: Sequence[str], notice: str | None) -> list[Any]:
    shapes = zip(*map(_shape, jobs), strict=True)
    return [schema.now, list(ids), [job.payload for job in jobs], *map(list, shapes), schema.channel, notice]
