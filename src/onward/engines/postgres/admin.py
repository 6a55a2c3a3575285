"""The buttons that people press. Each picks the jobs that may be moved, then moves them by a guarded statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from onward.clock import micros_of
from onward.engine.limits import Pace
from onward.engine.values import Changed, JobChange, JobFilter, QueueChange, Rate, Retention
from onward.engines.postgres import queries
from onward.engines.postgres.filters import Condition, union_all
from onward.engines.postgres.rows import optional_micros
from onward.engines.postgres.statements import Schema
from onward.errors import InvalidValue
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, HELD, MOVES, WAITING, JobStatus, Move
from onward.pg.listener import ALL_QUEUES, DUE
from onward.pg.plan_runner import Plan, Row, Statement


def cancel(schema: Schema, which: JobFilter, reason: str, limit: int) -> Plan[list[Changed]]:
    """Take jobs back.

    Each statement commits by itself: while many rows are held, no other is waited for.
    """
    picked = yield from _pick(schema, which, MOVES[Move.CANCEL][0], limit)
    if not picked:
        return []
    rows = list((yield Statement(schema.cancel, [schema.now, schema.channel, picked, reason, False])))
    for seq in sorted(set(picked) - {row[0] for row in rows}):
        rows += yield Statement(schema.cancel, [schema.now, schema.channel, [seq], reason, True])
    return changed_of(rows)


def replay(schema: Schema, which: JobFilter, limit: int) -> Plan[list[Changed]]:
    """Give ended jobs a new life."""
    picked = yield from _pick(schema, which, MOVES[Move.REPLAY][0], limit)
    if not picked:
        return []
    return changed_of((yield Statement(schema.replay, [schema.now, schema.channel, picked])))


def delete(schema: Schema, which: JobFilter, limit: int) -> Plan[list[Changed]]:
    """Remove jobs that nobody holds."""
    picked = yield from _pick(schema, which, WAITING | FINISHED, limit)
    if not picked:
        return []
    return changed_of((yield Statement(schema.delete, [picked])))


def _pick(schema: Schema, which: JobFilter, sources: frozenset[JobStatus], limit: int) -> Plan[list[int]]:
    condition = Condition(which)
    # By no index: those that have ended are of these states, nearly all, and the planner may not know that yet.
    condition.add("status || '' = any ({}::text[])", sorted(sources))
    order = f"order by seq limit {condition.value(limit)}::bigint"
    parts = []
    if condition.states & sources - FINISHED:
        parts.append(f"(select seq from onward.live where {condition.live()} {order})")  # noqa: S608 - ours only
    if condition.states & sources & FINISHED:
        parts.append(f"(select seq from onward.history where {condition.ended()} {order})")  # noqa: S608
    if not parts:
        return []
    rows = yield Statement(schema.insert_schema_name(union_all(parts, order)), condition.values)
    return [row[0] for row in rows]


def changed_of(rows: Sequence[Row]) -> list[Changed]:
    """Read which jobs were moved, and the state that each had."""
    return [Changed(JobRef(queue, job_id), JobStatus(before)) for _, queue, job_id, before in sorted(rows)]


def edit(schema: Schema, ref: JobRef, change: JobChange) -> Plan[Job | None]:
    """Change a job that waits."""
    job = yield from queries.get(schema, ref)
    if job is None or job.status in FINISHED | HELD:
        return None
    run_at = None if change.run_at is UNSET else micros_of(change.run_at)
    if run_at is not None and job.status is not JobStatus.SCHEDULED:
        raise InvalidValue("run_at", change.run_at, f"can be changed of a scheduled job only, this one is {job.status}")
    values = [
        None if change.priority is UNSET else change.priority,
        None if change.payload is UNSET else change.payload,
        run_at,
        None if change.max_attempts is UNSET else change.max_attempts,
    ]
    if not (yield Statement(schema.edit, [schema.now, ref.id, ref.queue, *values])):
        return None
    yield Statement(schema.notify, [schema.channel, f"{ALL_QUEUES},{DUE}"])
    return (yield from queries.get(schema, ref))


def configure(schema: Schema, queue: str, change: QueueChange) -> Plan[None]:
    """Change what a queue is told to do."""
    columns = msgspec.json.encode(_columns(change)).decode()
    yield Statement(schema.configure, [schema.now, schema.channel, queue, columns])


def _columns(change: QueueChange) -> dict[str, Any]:
    """Lay out what is changed; the names are those of our own columns."""
    columns: dict[str, Any] = {}
    for field in ("paused", "pause_reason", "paused_by", "global_concurrency", "weight", "max_attempts", "backoff"):
        value = getattr(change, field)
        if value is not UNSET:
            columns[field] = value
    if change.rate is not UNSET:
        columns |= _rate_columns(change.rate)
    if change.lease is not UNSET:
        columns["lease"] = _interval(optional_micros(change.lease))
    if isinstance(change.retention, Retention):
        retention = change.retention
        columns |= {
            "keep_completed": _interval(optional_micros(retention.completed)),
            "keep_completed_count": retention.completed_count,
            "keep_failed": _interval(optional_micros(retention.failed)),
            "keep_failed_count": retention.failed_count,
            "keep_cancelled": _interval(optional_micros(retention.cancelled)),
            "keep_archived": _interval(optional_micros(retention.archived)),
        }
    return columns


def _rate_columns(rate: Rate | None) -> dict[str, Any]:
    """Write a rate, and what follows from it: see docs/explain/rates.md."""
    if rate is None:
        return dict.fromkeys(("rate_count", "rate_period", "rate_burst", "spacing", "credit", "reach"))
    pace = Pace.of(rate)
    return {
        "rate_count": rate.count,
        "rate_period": _interval(optional_micros(rate.period)),
        "rate_burst": rate.burst,
        "spacing": _interval(pace.spacing),
        "credit": _interval(pace.credit),
        "reach": _interval(pace.reach),
    }


def _interval(micros: int | None) -> str | None:
    if micros is None:
        return None
    seconds, rest = divmod(micros, 1_000_000)
    return f"{seconds}.{rest:06} seconds"
