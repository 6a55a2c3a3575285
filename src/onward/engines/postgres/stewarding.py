"""What one worker does for all: each statement matches the leader's term."""

from __future__ import annotations

from datetime import timedelta

from onward.clock import MICROSECOND, moment_of
from onward.engine.values import Batch, Term
from onward.engines.postgres.plans import Plan, Statement
from onward.engines.postgres.schema import Schema


def elect(schema: Schema, candidate: str, lease: timedelta, holding: Term | None) -> Plan[Term | None]:
    """Become or stay leader."""
    values = [schema.now, candidate, lease // MICROSECOND]
    if holding is None:
        rows = yield Statement(schema.elect, values)
    else:
        rows = yield Statement(schema.elect_again, [*values, holding.number])
    if not rows:
        return None
    number, leader_id, until = rows[0]
    return Term(number, leader_id, moment_of(until))


def resign(schema: Schema, term: Term) -> Plan[None]:
    """End a term before its time."""
    yield Statement(schema.resign, [schema.now, term.number, term.leader_id])


def promote(schema: Schema, term: Term, limit: int) -> Plan[Batch]:
    """Make due jobs ready; cancel expired ones."""
    values = [schema.now, schema.channel, term.number, term.leader_id, limit]
    ((promoted, expired, queues, next_in),) = yield Statement(schema.promote, values)
    return Batch(
        changed=promoted + expired,
        queues=frozenset(queues),
        more=limit in {promoted, expired},
        next_in=None if next_in is None else max(0.0, next_in),
    )


def rescue(schema: Schema, term: Term, worker_timeout: timedelta, max_crashes: int, limit: int) -> Plan[Batch]:
    """Give back what dead workers held; forget the workers."""
    values = [
        schema.now,
        schema.channel,
        term.number,
        term.leader_id,
        worker_timeout // MICROSECOND,
        max_crashes,
        limit,
    ]
    ((rescued, buried, queues),) = yield Statement(schema.rescue, values)
    changed = rescued + buried
    return Batch(changed=changed, queues=frozenset(queues), more=changed == limit, buried=buried)


def prune(schema: Schema, term: Term, limit: int) -> Plan[Batch]:
    """Remove ended jobs that are no longer kept."""
    ((pruned,),) = yield Statement(schema.prune, [schema.now, term.number, term.leader_id, limit])
    return Batch(changed=pruned, more=pruned >= limit)
