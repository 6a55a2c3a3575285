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
from onward.engines.pgboss.queue_cache import Shelf
from onward.engines.pgboss.rows import Queue, data_of, extras_of, key_in, retrying_of
from onward.engines.pgboss.schema import Schema
from onward.errors import InvalidJob, StoreBusy
from onward.ids import new_ids
from onward.job import Enqueued, EnqueueStatus, JobRef, NewJob, UniformJobs
from onward.keys import digest
from onward.pg import arrays
from onward.pg.plans import Plan

_KEYED: Final = frozenset({"short", "stately", "exclusive"})
"""Policies by which a job may be refused, whether it has a key or not."""
_TRIES: Final = 5


class Sending(msgspec.Struct, kw_only=True):
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


_FIELDS: Final = tuple(name for name in Sending.__struct_fields__ if name != "deduped")
_TEXTS: Final = frozenset({"name", "data", "singleton_key", "dead_letter", "group_id", "group_tier"})
_WRITERS: Final[Mapping[str, Callable[[Sequence[Any]], str]]] = {
    "id": arrays.words,
    "delay": _durations,
    "run_at": _moments,
    **dict.fromkeys(_TEXTS, arrays.texts),
}
_WRITTEN: Final = tuple(_WRITERS.get(field, arrays.numbers) for field in _FIELDS)
"""How each field of many jobs is written, as one value."""


class Ids:
    """Ids that rise from call to call, so that jobs which came one after the other sort so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = ""

    def take(self, count: int) -> list[str]:
        """Make so many."""
        with self._lock:
            ids = new_ids(count)
            while ids[0] <= self._last:
                ids = new_ids(count)
            self._last = ids[-1]
        return ids


def sending_of(schema: Schema, job: NewJob, id: str) -> Sending:
    """Say a job in pg-boss's words."""
    has_groups = schema.has("job.group_id")
    retrying = None if job.backoff is None else retrying_of(job.backoff)
    return Sending(
        id=id,
        name=job.queue,
        data=data_of(job.payload, extras_of(job, has_groups=has_groups)),
        priority=job.priority,
        delay=job.delay,
        run_at=job.run_at,
        singleton_key=key_in(job.dedupe_key),
        deduped=job.dedupe_key is not None,
        retry_limit=None if job.max_attempts is None else job.max_attempts - 1,
        retry_delay=None if retrying is None else retrying.delay,
        retry_backoff=None if retrying is None else retrying.backoff,
        retry_delay_max=None if retrying is None else retrying.delay_max,
        group_id=job.org_id if has_groups else None,
    )


def has_keys(jobs: Sequence[NewJob]) -> bool:
    """Say whether some may be the same as others: then they are all put in, or none, by more than one statement."""
    if isinstance(jobs, UniformJobs):
        jobs = [jobs.template]
    return any(job.dedupe_key is not None for job in jobs)


def enqueue(
    schema: Schema, shelf: Shelf, jobs: Sequence[NewJob], ids: Sequence[str], *, notify: bool
) -> Plan[list[Enqueued]]:
    """Put jobs in, and answer which job stands for each."""
    if not isinstance(jobs, UniformJobs) or has_keys(jobs):
        sendings = [sending_of(schema, job, id) for job, id in zip(jobs, ids, strict=True)]
        return (yield from send(schema, shelf, sendings, notify=notify))
    queue = jobs.template.queue
    queues = yield from shelf.find([queue])
    one = sending_of(schema, jobs.template, "")
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
        schema.places(len(ids)),
    ]
    refused = {row[0] for row in (yield schema.statement("send_alike", values, table=queues[queue].table))}
    if not refused:
        return [Enqueued(JobRef(queue, id)) for id in ids]
    # By a policy, or because the queue has just been removed: each is looked at.
    again = [sending_of(schema, job, id) for job, id in zip(jobs, ids, strict=True) if id in refused]
    shelf.forget()
    answers = iter((yield from send(schema, shelf, again, notify=notify)))
    return [next(answers) if id in refused else Enqueued(JobRef(queue, id)) for id in ids]


def send(schema: Schema, shelf: Shelf, sendings: Sequence[Sending], *, notify: bool) -> Plan[list[Enqueued]]:
    """Put jobs in, and answer which job stands for each."""
    queues = yield from shelf.find({sending.name for sending in sendings})
    for sending in sendings:
        _check(sending, queues[sending.name])
    channel = schema.channel if notify else None
    answers: dict[str, Enqueued] = {}
    deduped = [sending for sending in sendings if sending.deduped]
    if deduped:
        yield from _dedupe(schema, deduped, answers)
    left = [sending for sending in sendings if sending.id not in answers]
    for _ in range(_TRIES):
        yield from _insert(schema, left, queues, answers, channel)
        left = [sending for sending in left if sending.id not in answers]
        refused, left = left, []
        for sending in refused:
            answer = yield from _refusal(schema, shelf, sending)
            if answer is None:
                left.append(sending)
            else:
                answers[sending.id] = answer
        if not left:
            break
    else:
        message = f"{left[0].name} refuses a job and nobody has its place: try again"
        raise StoreBusy(message)
    return [answers[sending.id] for sending in sendings]


def tell(schema: Schema, names: Iterable[str]) -> Plan[None]:
    """Tell whoever listens that queues have work."""
    if told := sorted(names):
        yield schema.statement("notify", [schema.channel, told])


def _check(sending: Sending, queue: Queue) -> None:
    if queue.policy == "key_strict_fifo" and sending.singleton_key is None:
        raise InvalidJob(
            "dedupe_key", None, f"must be given: {queue.name} has the policy key_strict_fifo, which keeps order by key"
        )


def _dedupe(schema: Schema, sendings: Sequence[Sending], answers: dict[str, Enqueued]) -> Plan[None]:
    """Let none of ours past whose key a living job has; until the transaction ends nobody else comes in between."""
    locks = {
        int.from_bytes(digest(schema.name, sending.name, sending.singleton_key or "")[:8], "big", signed=True)
        for sending in sendings
    }
    yield schema.statement("lock_keys", [sorted(locks)])
    keys = {(sending.name, sending.singleton_key or ""): sending for sending in sendings}
    rows = yield schema.statement("standing", [[name for name, _ in keys], [key for _, key in keys]])
    standing = {(name, key): JobRef(name, id) for name, key, id in rows}
    for sending in sendings:
        key = (sending.name, sending.singleton_key or "")
        if key in standing:
            answers[sending.id] = Enqueued(standing[key], EnqueueStatus.DEDUPED)
        else:
            standing[key] = JobRef(sending.name, sending.id)


def _insert(
    schema: Schema,
    sendings: Sequence[Sending],
    queues: Mapping[str, Queue],
    answers: dict[str, Enqueued],
    channel: str | None,
) -> Plan[None]:
    by_table: dict[str, list[Sending]] = {}
    for sending in sendings:
        by_table.setdefault(queues[sending.name].table, []).append(sending)
    for table, some in by_table.items():
        columns = [
            write([getattr(sending, field) for sending in some]) for field, write in zip(_FIELDS, _WRITTEN, strict=True)
        ]
        values = [*columns, channel, schema.places(len(some))]
        refused = {row[0] for row in (yield schema.statement("send", values, table=table))}
        for sending in some:
            if sending.id not in refused:
                answers[sending.id] = Enqueued(JobRef(sending.name, sending.id))


def _refusal(schema: Schema, shelf: Shelf, sending: Sending) -> Plan[Enqueued | None]:
    """Find the job that stands for one that was refused; None: there is none any more."""
    values = [sending.name, sending.singleton_key, sending.singleton_seconds, sending.singleton_offset]
    rows = yield schema.statement("refuser", values)
    if rows:
        return Enqueued(JobRef(sending.name, rows[0][0]), EnqueueStatus.DEDUPED)
    shelf.forget()
    yield from shelf.find([sending.name])
    return None
