"""What one worker does for all: each statement matches the leader's term."""

from __future__ import annotations

from datetime import timedelta

from onward.clock import MICROSECOND
from onward.engine.values import MaintenanceResult, Term
from onward.engines.pgmq.statements import SQL
from onward.pg.plan_runner import Plan, Statement


def promote(term: Term, limit: int) -> Plan[MaintenanceResult]:
    """Tell of messages whose time has come."""
    ((promoted, queues, examined, next_in),) = yield Statement(SQL.promote, [term.number, term.leader_id, limit])
    return MaintenanceResult(
        changed=promoted,
        queues=frozenset(queues),
        more=examined >= limit,
        next_in=None if next_in is None else max(0.0, next_in),
    )


def rescue(term: Term, lease: timedelta, limit: int) -> Plan[MaintenanceResult]:
    """Give back what dead workers held; forget the workers."""
    values = [term.number, term.leader_id, lease // MICROSECOND, limit]
    ((rescued, queues),) = yield Statement(SQL.rescue, values)
    return MaintenanceResult(changed=rescued, queues=frozenset(queues), more=rescued >= limit)


def prune(term: Term, limit: int) -> Plan[MaintenanceResult]:
    """Remove archived messages that need not be kept."""
    ((pruned,),) = yield Statement(SQL.prune, [term.number, term.leader_id, limit])
    return MaintenanceResult(changed=pruned, more=pruned >= limit)
