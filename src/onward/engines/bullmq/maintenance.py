"""What one worker does for all, in the queues that Onward serves: each script matches the leader's term."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from onward.clock import MICROSECOND, moment_of
from onward.engine.values import MaintenanceResult, Retention, Term
from onward.engines.bullmq import rows
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Plan, script
from onward.engines.bullmq.queue_registry import QueueRegistry

_MAX_QUEUES: Final = 100
"""Queues that are looked after in one round trip."""
_SECOND_CHECK_DELAY: Final = 1.0
"""Seconds after which a job without a lock is looked at again, and given back."""
_MAX_KEYS_SCANNED: Final = 500
"""Idempotency keys looked at by one pruning: those whose job somebody else removed are freed."""


def elect(keys: Keys, candidate: str, lease: timedelta, current_term: Term | None) -> Plan[Term | None]:
    """Become or stay leader."""
    number = "" if current_term is None else current_term.number
    (answer,) = yield [script("elect", keys, [keys.leader], candidate, lease // MICROSECOND, number)]
    if answer is None:
        return None
    return Term(int(answer[0]), candidate, moment_of(int(answer[1])))


def resign(keys: Keys, term: Term) -> Plan[None]:
    """End a term before its time."""
    yield [script("resign", keys, [keys.leader], term.number, term.leader_id)]


def promote(keys: Keys, registry: QueueRegistry, term: Term, limit: int) -> Plan[MaintenanceResult]:
    """Make due jobs ready."""
    answers = yield from _run_for_each_queue("promote", keys, registry, term, limit)
    next_in = None
    if dues := [answer[1] for _, answer in answers if answer[1] >= 0]:
        (now,) = yield [script("server_time", keys, [keys.workers])]
        next_in = max(0.0, min(dues) / 1e3 - int(now) / 1e6)
    return MaintenanceResult(
        changed=sum(answer[0] for _, answer in answers),
        queues=frozenset(name for name, answer in answers if answer[0]),
        more=any(answer[0] >= limit for _, answer in answers),
        next_in=next_in,
    )


def rescue(
    keys: Keys, registry: QueueRegistry, term: Term, lease: timedelta, max_crashes: int, limit: int
) -> Plan[MaintenanceResult]:
    """Give back what dead workers held, at the second look at it; forget the workers."""
    yield [
        script(
            "remove_dead_workers",
            keys,
            [keys.workers, keys.worker_commands],
            term.number,
            term.leader_id,
            lease // MICROSECOND,
        )
    ]
    answers = yield from _run_for_each_queue("rescue", keys, registry, term, limit, max_crashes)
    changed = sum(answer[0] for _, answer in answers)
    return MaintenanceResult(
        changed=changed,
        queues=frozenset(name for name, answer in answers if answer[0]),
        more=any(answer[0] >= limit for _, answer in answers),
        next_in=_SECOND_CHECK_DELAY if any(answer[2] for _, answer in answers) else None,
        buried=sum(answer[1] for _, answer in answers),
    )


class Sweep:
    """How far the look through the idempotency keys has come."""

    def __init__(self) -> None:
        self.cursor = "0"


def prune(keys: Keys, registry: QueueRegistry, term: Term, limit: int, sweep: Sweep) -> Plan[MaintenanceResult]:
    """Remove finished jobs that are no longer kept."""
    kept = Retention().completed
    age = "" if kept is None else rows.milliseconds(kept)
    answers = yield from _run_for_each_queue(
        "prune", keys, registry, term, limit, age, "1" if registry.can_scan else ""
    )
    (sweep.cursor,) = yield [
        script(
            "free_idempotency_keys",
            keys,
            [keys.idempotency_keys],
            term.number,
            term.leader_id,
            sweep.cursor,
            _MAX_KEYS_SCANNED,
        )
    ]
    sweep.cursor = sweep.cursor or "0"
    return MaintenanceResult(
        changed=sum(answer for _, answer in answers), more=any(answer >= limit for _, answer in answers)
    )


def _run_for_each_queue(
    verb: str, keys: Keys, registry: QueueRegistry, term: Term, *values: Any
) -> Plan[list[tuple[str, Any]]]:
    registered = yield from registry.registered()
    answers: list[tuple[str, Any]] = []
    for first in range(0, len(registered), _MAX_QUEUES):
        some: Sequence[str] = registered[first : first + _MAX_QUEUES]
        replies = yield [script(verb, keys, [keys.meta(name)], term.number, term.leader_id, *values) for name in some]
        answers += [(name, reply) for name, reply in zip(some, replies, strict=True) if reply is not None]
    return answers
