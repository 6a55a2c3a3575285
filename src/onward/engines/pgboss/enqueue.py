"""Puts jobs in, as pg-boss's own ``send`` and ``insert`` do.

Two things may refuse a job: a throttle, and the policy of its queue. Both are unique indexes of pg-boss's. Then the job
that holds the place stands for the new one. A dedupe key is pg-boss's singleton key; where the policy of the queue does
not make it unique, we do, among all who enqueue through us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from onward.clock import MICROSECOND, micros_of
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.rows import Queue, data_of, extras_of, retry_columns_of, singleton_key_of
from onward.engines.pgboss.statements import Schema
from onward.errors import InvalidValue, StoreBusy
from onward.ids import new_ids
from onward.job import Enqueued, EnqueueStatus, JobRef, NewJob, UniformJobs
from onward.keys import digest
from onward.pg import arrays
from onward.pg.plan_runner import Plan

_KEYED: Final = frozenset({"short", "stately", "exclusive"})
"""Policies by which a job may be refused, whether it has a key or not."""
_MAX_TRIES: Final = 5


class SendRequest(msgspec.Struct, kw_only=True):
    """A job in pg-boss's words; what is None, its queue says."""

    id: str
    name: str
    data: str | None
    priority: int = 0
    delay: timedelta | None = None
    run_at: datetime | None = None
    singleton_key: str | None = None
    singleton_seconds: int | None = None
    singleton_offset: int | None = None
    retry_limit: int | None = None
    retry_delay: int | None = None
    retry_backoff: bool | None = None
    retry_delay_max: int | None = None
    expire_seconds: int | None = None
    retention_seconds: int | None = None
    deletion_seconds: int | None = None
    dead_letter: str | None = None
    heartbeat_seconds: int | None = None
    group_id: str | None = None
    group_tier: str | None = None
    deduped: bool = False
    """The key keeps others away for as long as the job lives, whatever the policy."""


def _micros(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // MICROSECOND


def _durations(values: Sequence[timedelta | None]) -> str:
    return arrays.numbers([_micros(value) for value in values])


def _moments(values: Sequence[datetime | None]) -> str:
    return arrays.numbers([None if value is None else micros_of(value) for value in values])


_FIELDS: Final = tuple(name for name in SendRequest.__struct_fields__ if name != "deduped")
_TEXT_FIELDS: Final = frozenset({"name", "data", "singleton_key", "dead_letter", "group_id", "group_tier"})
_SPECIAL_WRITERS: Final[Mapping[str, Callable[[Sequence[Any]], str]]] = {
    "id": arrays.words,
    "delay": _durations,
    "run_at": _moments,
    **dict.fromkeys(_TEXT_FIELDS, arrays.texts),
}
_FIELD_WRITERS: Final = tuple(_SPECIAL_WRITERS.get(field, arrays.numbers) for field in _FIELDS)
"""How each field of many jobs is written, as one value."""


class IdGenerator:
    """Ids that rise from call to call, so that jobs which came one after the other sort so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = ""

    def generate(self, count: int) -> list[str]:
        """Make so many."""
        with self._lock:
            ids = new_ids(count)
            while ids[0] <= self._last:
                ids = new_ids(count)
            self._last = ids[-1]
        return ids


def send_request_of(schema: Schema, job: NewJob, id: str) -> SendRequest:
    """Say a job in pg-boss's words."""
    has_groups = schema.has("job.group_id")
    retry_columns = None if job.backoff is None else retry_columns_of(job.backoff)
    return SendRequest(
        id=id,
        name=job.queue,
        data=data_of(job.payload, extras_of(job, has_groups=has_groups)),
        priority=job.priority,
        delay=job.delay,
        run_at=job.run_at,
        singleton_key=singleton_key_of(job.dedupe_key),
        deduped=job.dedupe_key is not None,
        retry_limit=None if job.max_attempts is None else job.max_attempts - 1,
        retry_delay=None if retry_columns is None else retry_columns.delay,
        retry_backoff=None if retry_columns is None else retry_columns.backoff,
        retry_delay_max=None if retry_columns is None else retry_columns.delay_max,
        group_id=job.org_id if has_groups else None,
    )


def has_keys(jobs: Sequence[NewJob]) -> bool:
    """Say whether some may be the same as others: then they are all put in, or none, by more than one statement."""
    if isinstance(jobs, UniformJobs):
        jobs = [jobs.template]
    return any(job.dedupe_key is not None for job in jobs)


def enqueue(
    schema: Schema, queue_cache: QueueCache, jobs: Sequence[NewJob], ids: Sequence[str], *, notify: bool
) -> Plan[list[Enqueued]]:
    """Put jobs in, and answer which job stands for each."""
    if not isinstance(jobs, UniformJobs) or has_keys(jobs):
        requests = [send_request_of(schema, job, id) for job, id in zip(jobs, ids, strict=True)]
        return (yield from send(schema, queue_cache, requests, notify=notify))
    queue = jobs.template.queue
    queues = yield from queue_cache.find([queue])
    one = send_request_of(schema, jobs.template, "")
    _check(one, queues[queue])
    extras = extras_of(jobs.template, has_groups=schema.has("job.group_id"))
    datas = [data_of(payload, extras) for payload in jobs.payloads] if extras else jobs.payloads
    values = [
        arrays.words(ids),
        f"[{','.join(datas)}]",
        queue,
        one.priority,
        _micros(one.delay),
        None if one.run_at is None else micros_of(one.run_at),
        one.retry_limit,
        one.retry_delay,
        one.retry_backoff,
        one.retry_delay_max,
        one.group_id,
        schema.channel if notify else None,
        schema.created_offset(len(ids)),
    ]
    refused = {row[0] for row in (yield schema.statement("send_uniform", values, table=queues[queue].table))}
    if not refused:
        return [Enqueued(JobRef(queue, id)) for id in ids]
    # By a policy, or because the queue has just been removed: each is looked at.
    retries = [send_request_of(schema, job, id) for job, id in zip(jobs, ids, strict=True) if id in refused]
    queue_cache.invalidate()
    answers = iter((yield from send(schema, queue_cache, retries, notify=notify)))
    return [next(answers) if id in refused else Enqueued(JobRef(queue, id)) for id in ids]


def send(
    schema: Schema, queue_cache: QueueCache, requests: Sequence[SendRequest], *, notify: bool
) -> Plan[list[Enqueued]]:
    """Put jobs in, and answer which job stands for each."""
    queues = yield from queue_cache.find({request.name for request in requests})
    for request in requests:
        _check(request, queues[request.name])
    channel = schema.channel if notify else None
    answers: dict[str, Enqueued] = {}
    deduped = [request for request in requests if request.deduped]
    if deduped:
        yield from _dedupe(schema, deduped, answers)
    left = [request for request in requests if request.id not in answers]
    for _ in range(_MAX_TRIES):
        yield from _insert(schema, left, queues, answers, channel)
        left = [request for request in left if request.id not in answers]
        refused, left = left, []
        for request in refused:
            answer = yield from _conflict_of(schema, queue_cache, request)
            if answer is None:
                left.append(request)
            else:
                answers[request.id] = answer
        if not left:
            break
    else:
        message = f"{left[0].name} refuses a job and nobody has its place: try again"
        raise StoreBusy(message)
    return [answers[request.id] for request in requests]


def notify_queues(schema: Schema, names: Iterable[str]) -> Plan[None]:
    """Tell whoever listens that queues have work."""
    if queues := sorted(names):
        yield schema.statement("notify", [schema.channel, queues])


def _check(request: SendRequest, queue: Queue) -> None:
    if queue.policy == "key_strict_fifo" and request.singleton_key is None:
        raise InvalidValue(
            "dedupe_key", None, f"must be given: {queue.name} has the policy key_strict_fifo, which keeps order by key"
        )


def _dedupe(schema: Schema, requests: Sequence[SendRequest], answers: dict[str, Enqueued]) -> Plan[None]:
    """Let none of ours past whose key a living job has; until the transaction ends nobody else comes in between."""
    locks = {
        int.from_bytes(digest(schema.name, request.name, request.singleton_key or "")[:8], "big", signed=True)
        for request in requests
    }
    yield schema.statement("lock_keys", [sorted(locks)])
    keys = {(request.name, request.singleton_key or ""): request for request in requests}
    rows = yield schema.statement("live_jobs_by_key", [[name for name, _ in keys], [key for _, key in keys]])
    live_jobs = {(name, key): JobRef(name, id) for name, key, id in rows}
    for request in requests:
        key = (request.name, request.singleton_key or "")
        if key in live_jobs:
            answers[request.id] = Enqueued(live_jobs[key], EnqueueStatus.DEDUPED)
        else:
            live_jobs[key] = JobRef(request.name, request.id)


def _insert(
    schema: Schema,
    requests: Sequence[SendRequest],
    queues: Mapping[str, Queue],
    answers: dict[str, Enqueued],
    channel: str | None,
) -> Plan[None]:
    by_table: dict[str, list[SendRequest]] = {}
    for request in requests:
        by_table.setdefault(queues[request.name].table, []).append(request)
    for table, some in by_table.items():
        columns = [
            write([getattr(request, field) for request in some])
            for field, write in zip(_FIELDS, _FIELD_WRITERS, strict=True)
        ]
        values = [*columns, channel, schema.created_offset(len(some))]
        refused = {row[0] for row in (yield schema.statement("send", values, table=table))}
        for request in some:
            if request.id not in refused:
                answers[request.id] = Enqueued(JobRef(request.name, request.id))


def _conflict_of(schema: Schema, queue_cache: QueueCache, request: SendRequest) -> Plan[Enqueued | None]:
    """Find the job that stands for one that was refused; None: there is none any more."""
    values = [request.name, request.singleton_key, request.singleton_seconds, request.singleton_offset]
    rows = yield schema.statement("conflicting_job", values)
    if rows:
        return Enqueued(JobRef(request.name, rows[0][0]), EnqueueStatus.DEDUPED)
    queue_cache.invalidate()
    yield from queue_cache.find([request.name])
    return None
