"""What one worker does for all: each statement matches the leader's term.

Giving back what our own dead workers held is always done. The rest is the work of pg-boss's supervisor, which every
Node instance does by itself: it is done here only where that is asked for, because no Node runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from onward.engine.values import MaintenanceResult, Term
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.statements import Schema
from onward.pg.plan_runner import Plan, Row


def promote(schema: Schema, queue_cache: QueueCache) -> Plan[MaintenanceResult]:
    """Say when the next job is due: it is ready then, without anybody doing anything."""
    queues = yield from queue_cache.cached()
    ((next_in,),) = yield schema.statement("next_due", [list(queues)])
    return MaintenanceResult(next_in=None if next_in is None else max(0.0, next_in))


def rescue(
    schema: Schema, term: Term, lease: timedelta, max_crashes: int, limit: int, *, supervises: bool
) -> Plan[MaintenanceResult]:
    """Give back what dead workers held; forget the workers; where asked for, expire what has run for too long."""
    batch = _maintenance_result(
        (yield schema.statement("rescue", [term.number, term.leader_id, max_crashes, limit])), limit
    )
    yield schema.statement("delete_lease_batches", [term.number, term.leader_id])
    yield from schema.companion.delete_silent_workers(term, lease)
    if supervises:
        expired = _maintenance_result((yield schema.statement("expire", [term.number, term.leader_id, limit])), limit)
        batch = MaintenanceResult(
            changed=batch.changed + expired.changed,
            buried=batch.buried + expired.buried,
            queues=batch.queues | expired.queues,
            more=batch.more or expired.more,
        )
    return batch


def unblock(schema: Schema, term: Term, limit: int) -> Plan[MaintenanceResult]:
    """Let go what waited for other jobs, where there are such flows."""
    if not schema.has("job_dependency.child_id"):
        return MaintenanceResult()
    return _maintenance_result((yield schema.statement("unblock", [term.number, term.leader_id, limit])), limit)


def prune(schema: Schema, term: Term, limit: int) -> Plan[MaintenanceResult]:
    """Remove what pg-boss keeps no longer."""
    rows = yield schema.statement("prune", [term.number, term.leader_id, limit])
    if schema.has("archive.archived_on"):
        yield schema.statement("clear_archive", [term.number, term.leader_id])
    return MaintenanceResult(changed=len(rows), more=len(rows) == limit)


def _maintenance_result(rows: Sequence[Row], limit: int) -> MaintenanceResult:
    ((picked, changed, buried, queues),) = rows
    return MaintenanceResult(changed=changed, buried=buried, queues=frozenset(queues), more=picked == limit)
