"""The buttons that people press. Each picks the messages that may be moved, then moves them by a guarded statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from onward.clock import micros_of
from onward.engine.values import Changed, JobChange, JobFilter, QueueChange, QueueInfo, Retention
from onward.engines.pgmq import queries
from onward.engines.pgmq.enqueue import check_new_name
from onward.engines.pgmq.settings import PgmqSettings
from onward.engines.pgmq.statements import NAME, SQL, with_schema_name
from onward.errors import InvalidValue
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, HELD, MOVES, WAITING, JobStatus, Move
from onward.pg.limits.queues import set_limits
from onward.pg.plan_runner import Plan, Row, Statement


def cancel(which: JobFilter, reason: str, limit: int, settings: PgmqSettings, columns: str) -> Plan[list[Changed]]:
    """Take jobs back."""
    picked = yield from _pick(which, MOVES[Move.CANCEL][0], limit, settings, columns)
    if not picked:
        return []
    return _changed((yield Statement(SQL.cancel, [*_queues_and_ids(picked), reason, columns])))


def replay(which: JobFilter, limit: int, settings: PgmqSettings, columns: str) -> Plan[list[Changed]]:
    """Give ended jobs a new life."""
    picked = yield from _pick(which, MOVES[Move.REPLAY][0], limit, settings, columns)
    if not picked:
        return []
    return _changed((yield Statement(SQL.replay, [*_queues_and_ids(picked), columns])))


def delete(which: JobFilter, limit: int, settings: PgmqSettings, columns: str) -> Plan[list[Changed]]:
    """Remove jobs that nobody holds."""
    picked = yield from _pick(which, WAITING | FINISHED, limit, settings, columns)
    if not picked:
        return []
    return _changed((yield Statement(SQL.delete, _queues_and_ids(picked))))


def _pick(
    which: JobFilter, sources: frozenset[JobStatus], limit: int, settings: PgmqSettings, columns: str
) -> Plan[Sequence[Row]]:
    states = sources if which.status is None else which.status & sources
    narrowed = msgspec.structs.replace(which, status=frozenset(states))
    query = queries.MessageQuery(narrowed, settings, columns, (yield from queries.names()))
    max_rows = query.value(limit)
    tables = query.tables(f"order by m.msg_id limit {max_rows}::bigint")
    if not tables:
        return []
    text = (
        f"select queue, msg_id from ({' union all '.join(tables)}) every "  # noqa: S608 - ours only
        f'order by enqueued_at, msg_id, queue collate "C" limit {max_rows}::bigint'
    )
    return (yield Statement(with_schema_name(text), query.values))


def _queues_and_ids(picked: Sequence[Row]) -> list[list[Any]]:
    return [[row[0] for row in picked], [row[1] for row in picked]]


def _changed(rows: Sequence[Row]) -> list[Changed]:
    return [Changed(JobRef(queue, str(msg_id)), JobStatus(before)) for queue, msg_id, before in sorted(rows)]


def edit(ref: JobRef, change: JobChange, settings: PgmqSettings, columns: str) -> Plan[Job | None]:
    """Change a job that waits."""
    job = yield from queries.get(ref, settings, columns)
    if job is None or job.status in FINISHED | HELD:
        return None
    run_at = None if change.run_at is UNSET else micros_of(change.run_at)
    if run_at is not None and job.status is not JobStatus.SCHEDULED:
        raise InvalidValue("run_at", change.run_at, f"can be changed of a scheduled job only, this one is {job.status}")
    patch = {} if change.max_attempts is UNSET else {"max_attempts": change.max_attempts}
    payload = None if change.payload is UNSET else change.payload
    values = [ref.queue, int(ref.id), payload, run_at, msgspec.json.encode(patch).decode()]
    ((changed,),) = yield Statement(SQL.edit, values)
    if not changed:
        return None
    yield Statement(SQL.notify, [ref.queue])
    return (yield from queries.get(ref, settings, columns))


def configure(queue: str, change: QueueChange, settings: PgmqSettings, columns: str) -> Plan[QueueInfo]:
    """Change what a queue is told to do; make it, if its name may be that of a new one (X5)."""
    if queue not in (yield from queries.names()):
        check_new_name(queue)
    changes = msgspec.json.encode(_columns(change)).decode()
    ((clash,),) = yield Statement(SQL.configure, [queue, changes])
    if clash is not None:
        raise InvalidValue("queue", queue, f"would share its tables with {clash}: PGMQ does not tell capitals apart")
    if (yield from set_limits(NAME, queue, change)):
        yield Statement(SQL.notify, [queue])
    (info,) = [info for info in (yield from queries.queues(queue, settings, columns)) if info.name == queue]
    return info


def _columns(change: QueueChange) -> dict[str, Any]:
    """Lay out what is changed; the names are those of our own columns."""
    columns: dict[str, Any] = {}
    for field in ("paused", "pause_reason", "paused_by", "max_attempts"):
        value = getattr(change, field)
        if value is not UNSET:
            columns[field] = value
    if change.backoff is not UNSET:
        columns["backoff"] = None if change.backoff is None else msgspec.json.encode(change.backoff).decode()
    if change.lease is not UNSET:
        columns["lease"] = _interval(change.lease)
    if isinstance(change.retention, Retention):
        kept = change.retention
        columns |= {
            "keep_completed": _interval(kept.completed),
            "keep_completed_count": kept.completed_count,
            "keep_failed": _interval(kept.failed),
            "keep_failed_count": kept.failed_count,
            "keep_cancelled": _interval(kept.cancelled),
        }
    return columns


def _interval(duration: Any) -> str | None:
    return None if duration is None else f"{duration.total_seconds():.6f} seconds"
