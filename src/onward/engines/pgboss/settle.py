"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import assert_never

import msgspec

from onward.clock import MICROSECOND
from onward.engine.values import Claim, Settlement, Token
from onward.engines.pgboss.claims import POLICIES_LIMITING_ACTIVE
from onward.engines.pgboss.enqueue import notify_queues
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.rows import Queue, failure_of, fences_of, output_of
from onward.engines.pgboss.statements import Schema
from onward.lifecycle import Bury, Cancel, Complete, Fail, JobStatus, Outcome, Release, Retry, Snooze
from onward.pg import arrays
from onward.pg.plan_runner import Plan

OutcomeRow = tuple[str, timedelta | None, str | None, bool]
"""How a run ended that did not end well: pg-boss's state, the delay, the output, whether the run is released."""


def settle(
    schema: Schema, queue_cache: QueueCache, settlements: Sequence[Settlement], *, notify: bool
) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    queues = yield from queue_cache.cached()
    done: dict[str, list[Settlement]] = {}
    others: dict[str, list[Settlement]] = {}
    for settlement in settlements:
        name = settlement.claim.ref.queue
        if isinstance(settlement.outcome, Complete):
            done.setdefault(name, []).append(settlement)
        else:
            others.setdefault(_table_of(name, queues), []).append(settlement)
    lost: set[Token] = set()
    for name, some in done.items():
        lost |= yield from _complete(schema, name, _table_of(name, queues), some)
    for table, some in others.items():
        ended = zip(*(_outcome_row(each.claim, each.outcome) for each in some), strict=True)
        stately = [queue_cache.policy_of(each.claim.ref.queue) == "stately" for each in some]
        states, delays, outputs, released = ended
        values = [
            *fences_of([each.claim.token for each in some]),
            arrays.words(states),
            arrays.numbers([None if delay is None else delay // MICROSECOND for delay in delays]),
            arrays.texts(outputs),
            arrays.numbers(released),
            arrays.numbers(stately),
        ]
        rows = yield schema.statement("settle", values, table=table)
        lost.update(some[number].claim.token for (number,) in rows)
    if notify:
        yield from notify_queues(
            schema, {each.claim.ref.queue for each in settlements if isinstance(each.outcome, Release)}
        )
    return frozenset(lost)


def _complete(
    schema: Schema, queue: str, table: str, settlements: Sequence[Settlement], variant: str = "by_ctid"
) -> Plan[frozenset[Token]]:
    """Record that runs of one queue ended well; answer the claims that were lost."""
    _, ids, counts, started_at, _, ctids = zip(*[each.claim.token for each in settlements], strict=True)
    outputs = [output_of(each.outcome.result) for each in settlements if isinstance(each.outcome, Complete)]
    values = [
        queue,
        arrays.words(ids),
        arrays.numbers(counts),
        arrays.numbers(started_at),
        arrays.quoted(ctids),
        arrays.texts(outputs) if any(outputs) else arrays.EMPTY,
    ]
    rows = yield schema.statement("complete", values, table=table, variant=variant)
    not_found = [settlements[number] for (number,) in rows]
    if not_found and variant:
        return (yield from _complete(schema, queue, table, not_found, variant=""))
    return frozenset(each.claim.token for each in not_found)


def can_exchange_concurrently(queue_cache: QueueCache, settlements: Sequence[Settlement]) -> bool:
    """Say whether what there is to claim is the same before and after: nothing comes back, or makes room for others."""
    return all(
        isinstance(each.outcome, Complete)
        and queue_cache.policy_of(each.claim.ref.queue) not in POLICIES_LIMITING_ACTIVE
        and not queue_cache.settings_of(each.claim.ref.queue).is_limited
        for each in settlements
    )


def start(claims: Sequence[Claim]) -> Plan[frozenset[Token]]:
    """Answer which claims are lost: pg-boss starts a job with its claim, and nobody claims ahead."""
    yield from ()
    return frozenset(each.token for each in claims)


def _outcome_row(claim: Claim, outcome: Outcome) -> OutcomeRow:
    is_last_attempt = claim.attempts >= claim.max_attempts
    match outcome:
        case Retry(delay, failure):
            return "retry", delay, failure_of(failure), False
        case Fail(failure):
            return "failed", None, failure_of(failure, end=JobStatus.FAILED if is_last_attempt else None), False
        case Bury(failure):
            return "failed", None, failure_of(failure, end=None if is_last_attempt else JobStatus.DEAD_LETTER), False
        case Snooze(delay):
            return "retry", delay, None, True
        case Release():
            return "retry", None, None, True
        case Cancel(reason):
            return "cancelled", None, msgspec.json.encode({"message": reason}).decode(), False
        case Complete():
            raise AssertionError("it is recorded by another statement")
        case _:
            assert_never(outcome)


def _table_of(name: str, queues: Mapping[str, Queue]) -> str:
    queue = queues.get(name)
    return "job" if queue is None else queue.table
