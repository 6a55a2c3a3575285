"""The buttons that people press. Each picks the jobs that may be moved, then moves them by a guarded statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET
from psycopg import errors as pg

from onward.backoff import Backoff
from onward.engine.values import Changed, JobChange, JobFilter, QueueChange, QueueInfo
from onward.engines.pgboss import queries
from onward.engines.pgboss.enqueue import notify_queues
from onward.engines.pgboss.filters import Condition, is_id
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.rows import backoff_of, data_of, retry_columns_of
from onward.engines.pgboss.statements import Schema
from onward.errors import InvalidValue
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, MAX_ATTEMPTS, MOVES, WAITING, JobStatus, Move
from onward.pg.limits.queues import set_limits
from onward.pg.plan_runner import Plan, Row, Statement
from onward.validation import check_queue_name

DEFAULT_QUEUE_OPTIONS: Final = {
    "policy": "standard",
    "retryLimit": MAX_ATTEMPTS - 1,
    "retryDelay": 1,
    "retryBackoff": True,
    "retryDelayMax": 60,
    "notify": True,
}
"""What a queue of ours is told: to try as often, and to wait as long, as jobs do everywhere in Onward."""


def cancel(schema: Schema, which: JobFilter, reason: str, limit: int) -> Plan[list[Changed]]:
    """Take jobs back."""
    picked = yield from _pick(schema, which, MOVES[Move.CANCEL][0], limit)
    if not picked:
        return []
    names, ids = [row[0] for row in picked], [row[1] for row in picked]
    return _changed(picked, (yield schema.statement("cancel", [names, ids, reason])))


def replay(schema: Schema, which: JobFilter, limit: int, *, notify: bool, in_transaction: bool) -> Plan[list[Changed]]:
    """Give ended jobs a new life, each by itself: what the policy of a queue refuses stays as it is.

    ``in_transaction``: the statements are part of one, which a refused one must not end.
    """
    picked = yield from _pick(schema, which, MOVES[Move.REPLAY][0], limit)
    changed = []
    for name, id, status, singleton_key in picked:
        if singleton_key is not None and (yield schema.statement("live_jobs_by_key", [[name], [singleton_key]])):
            continue
        if in_transaction:
            yield Statement("savepoint onward_replay")
        try:
            moved = yield schema.statement("replay", [name, id])
        except pg.UniqueViolation:
            if in_transaction:
                yield Statement("rollback to savepoint onward_replay")
            continue
        if in_transaction:
            yield Statement("release savepoint onward_replay")
        if moved:
            changed.append(Changed(JobRef(name, id), JobStatus(status)))
    if notify:
        yield from notify_queues(schema, {change.ref.queue for change in changed})
    return changed


def delete(schema: Schema, which: JobFilter, limit: int) -> Plan[list[Changed]]:
    """Remove jobs that nobody holds."""
    picked = yield from _pick(schema, which, WAITING | FINISHED, limit)
    if not picked:
        return []
    rows = yield schema.statement("delete", [[row[0] for row in picked], [row[1] for row in picked]])
    status = {(name, id): state for name, id, state, _ in picked}
    return _changed(picked, [(name, id, status[name, id]) for name, id in rows])


def _pick(schema: Schema, which: JobFilter, sources: frozenset[JobStatus], limit: int) -> Plan[Sequence[Row]]:
    condition = Condition(schema, which)
    condition.add(f"s.status = any ({condition.value(sorted(sources))}::text[])")
    order = f"order by j.created_on, j.id limit {condition.value(limit)}::bigint"
    rows = yield condition.append_to(schema.text("find"), order)
    return [(row[1], row[0], row[3], row[14]) for row in rows]


def _changed(picked: Sequence[Row], moved: Sequence[Row]) -> list[Changed]:
    before = {(name, id): JobStatus(status) for name, id, status in moved}
    return [Changed(JobRef(name, id), before[name, id]) for name, id, *_ in picked if (name, id) in before]


def edit(schema: Schema, ref: JobRef, change: JobChange, *, notify: bool) -> Plan[Job | None]:
    """Change a job that waits."""
    job = yield from queries.get(schema, ref) if is_id(ref.id) else _no_job()
    if job is None or job.status not in WAITING:
        return None
    if change.run_at is not UNSET and job.status is not JobStatus.SCHEDULED:
        raise InvalidValue("run_at", change.run_at, f"can be changed of a scheduled job only, this one is {job.status}")
    values = [
        None if change.priority is UNSET else change.priority,
        None if change.payload is UNSET else (yield from _data_with_metadata(schema, ref, change.payload)),
        None if change.run_at is UNSET else change.run_at,
        None if change.max_attempts is UNSET else change.max_attempts - 1,
    ]
    if not (yield schema.statement("edit", [ref.queue, ref.id, *values])):
        return None
    if notify:
        yield from notify_queues(schema, [ref.queue])
    return (yield from queries.get(schema, ref))


def _no_job() -> Plan[None]:
    yield from ()


def _data_with_metadata(schema: Schema, ref: JobRef, payload: str) -> Plan[str]:
    """Write data with another payload, and beside it what was there before."""
    rows = yield schema.statement("job_metadata", [ref.queue, ref.id])
    extras = msgspec.json.decode(rows[0][0]) if rows and rows[0][0] is not None else {}
    extras.pop("payload", None)
    return data_of(payload, extras)


def configure(schema: Schema, queue_cache: QueueCache, queue: str, change: QueueChange) -> Plan[QueueInfo]:
    """Change what a queue is told to do, and make it if there is none."""
    options = _options(change)
    queues = yield from queue_cache.refresh()
    if queue not in queues:
        check_queue_name(queue)
        yield from create(schema, queue, {**DEFAULT_QUEUE_OPTIONS, **options})
    elif options:
        yield schema.statement("update_queue", [queue, msgspec.json.encode(options).decode()])
    if change.lease is not UNSET:
        yield from schema.companion.set_lease(queue, change.lease)
    pause = [None if each is UNSET else each for each in (change.paused, change.pause_reason, change.paused_by)]
    if any(each is not UNSET for each in (change.paused, change.pause_reason, change.paused_by)):
        paused, reason, by = pause
        has_reason, has_author = change.pause_reason is not UNSET, change.paused_by is not UNSET
        yield schema.statement("pause", [queue, paused, has_reason, reason, has_author, by])
    limits_changed = yield from set_limits(schema.companion.name, queue, change)
    if limits_changed or change.paused is False:
        yield from notify_queues(schema, [queue])
    (info,) = yield from queries.queues(schema, queue_cache, queue)
    return info


def create(schema: Schema, queue: str, options: dict[str, Any]) -> Plan[None]:
    """Make a queue as pg-boss does, one at a time."""
    yield schema.statement("lock_queues")
    yield schema.statement("create_queue", [queue, msgspec.json.encode(options).decode()])


def _options(change: QueueChange) -> dict[str, Any]:
    """Say in pg-boss's words what is changed."""
    options: dict[str, Any] = {}
    if change.max_attempts is not UNSET:
        options["retryLimit"] = (change.max_attempts or MAX_ATTEMPTS) - 1
    if change.backoff is not UNSET:
        backoff = change.backoff or Backoff()
        kept = retry_columns_of(backoff)
        if (backoff_of(kept.delay, kept.backoff, kept.delay_max) or Backoff()) != backoff:
            raise InvalidValue(
                "backoff",
                backoff,
                "cannot be said in pg-boss's words: whole seconds that stay the same, or double with jitter=1; "
                "give it with the job",
            )
        options |= {"retryDelay": kept.delay, "retryBackoff": kept.backoff, "retryDelayMax": kept.delay_max}
    return options
