"""Puts jobs in: on our own connection, or on the caller's, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from onward.clock import micros_of
from onward.engines.postgres.rows import backoff_text, micros
from onward.engines.postgres.schema import Schema
from onward.ids import new_ids
from onward.job import Alike, Arrival, Enqueued, JobRef, NewJob
from onward.keys import digest
from onward.postgresql import arrays
from onward.postgresql.plans import Plan, Statement

_NOTHING: Final = timedelta(0)


def has_keys(jobs: Sequence[NewJob]) -> bool:
    """Say whether any of these may stand for a job that is there already."""
    if isinstance(jobs, Alike):
        jobs = [jobs.template]
    return any(job.idempotency_key is not None or job.dedupe_key is not None for job in jobs)


def enqueue(schema: Schema, jobs: Sequence[NewJob], *, notice: str | None) -> Plan[list[Enqueued]]:
    """Add jobs, in order, all or none; those whose key is taken are answered with the job that has it.

    ``notice`` is told to whoever listens, with the transaction's commit. Jobs without keys take one statement.
    """
    ids = new_ids(len(jobs))
    if has_keys(jobs):
        return (yield from _enqueue_keyed(schema, jobs, ids, notice))
    listed = arrays.words(ids)
    if isinstance(jobs, Alike):
        payloads = f"[{','.join(jobs.payloads)}]"
        shape = _shape(jobs.template)
        yield Statement(schema.enqueue_alike, [schema.now, listed, payloads, *shape, schema.channel, notice])
        queue = jobs.template.queue
        return [Enqueued(JobRef(queue, job_id)) for job_id in ids]
    payloads = f"[{','.join([job.payload for job in jobs])}]"
    shapes = list(map(_shape, jobs))
    if shapes.count(shapes[0]) == len(shapes):
        values = [schema.now, listed, payloads, *shapes[0], schema.channel, notice]
        yield Statement(schema.enqueue_alike, values)
    else:
        columns = [write(column) for write, column in zip(_WRITTEN, zip(*shapes, strict=True), strict=True)]
        yield Statement(schema.enqueue_each, [schema.now, listed, payloads, *columns, schema.channel, notice])
    return [Enqueued(JobRef(job.queue, job_id)) for job, job_id in zip(jobs, ids, strict=True)]


def _shape(job: NewJob) -> tuple[Any, ...]:
    """All that a job is but its id, payload and keys."""
    return (
        job.queue,
        job.type,
        job.priority,
        job.org_id,
        micros(job.delay) if job.delay is not None and job.delay > _NOTHING else None,
        None if job.run_at is None else micros_of(job.run_at),
        None if job.start_by is None else micros_of(job.start_by),
        job.max_attempts,
        backoff_text(job.backoff),
    )


_NUMBERS, _TEXTS = arrays.numbers, arrays.texts
_WRITTEN: Final[tuple[Callable[[Sequence[Any]], str], ...]] = (
    _TEXTS,
    _TEXTS,
    _NUMBERS,
    _TEXTS,
    _NUMBERS,
    _NUMBERS,
    _NUMBERS,
    _NUMBERS,
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
    keys = [None if job.idempotency_key is None else digest(job.type, job.idempotency_key) for job in jobs]
    dedupes = [None if job.dedupe_key is None else digest(job.dedupe_key) for job in jobs]
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
                answers[number] = Enqueued(by_key[key].ref, Arrival.SAME_KEY)
            elif key is None and dedupe is not None and dedupe in by_dedupe:
                answers[number] = Enqueued(by_dedupe[dedupe].ref, Arrival.DEDUPED)
            else:
                chosen.append(number)
            busy |= own
        if later and seqs is None:
            seqs = [row[0] for row in (yield Statement(schema.seqs, [len(jobs)]))]
        if chosen:
            some = [jobs[number] for number in chosen]
            columns = _columns_of_each(schema, some, [ids[number] for number in chosen], notice)
            columns += [
                None if seqs is None else [seqs[number] for number in chosen],
                [job.idempotency_key for job in some],
                [keys[number] for number in chosen],
                [job.dedupe_key for job in some],
                [dedupes[number] for number in chosen],
            ]
            rows = yield Statement(schema.enqueue_keyed, columns)
            for number, (arrival, queue, job_id) in zip(chosen, rows, strict=True):
                answer = answers[number] = Enqueued(JobRef(queue, job_id), Arrival(arrival))
                key, dedupe = keys[number], dedupes[number]
                if key is not None and answer.arrival is not Arrival.DEDUPED:
                    by_key[key] = answer
                if dedupe is not None and answer.arrival is not Arrival.SAME_KEY:
                    by_dedupe[dedupe] = answer
        left = later
    return [answers[number] for number in range(len(jobs))]


def _columns_of_each(schema: Schema, jobs: Sequence[NewJob], ids: Sequence[str], notice: str | None) -> list[Any]:
    shapes = zip(*map(_shape, jobs), strict=True)
    return [schema.now, list(ids), [job.payload for job in jobs], *map(list, shapes), schema.channel, notice]
