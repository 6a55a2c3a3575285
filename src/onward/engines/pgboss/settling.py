"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import assert_never

import msgspec

from onward.clock import MICROSECOND
from onward.engine.values import Claim, Settlement, Token
from onward.engines.pgboss.claiming import POLICIES_WITH_ROOM
from onward.engines.pgboss.enqueueing import tell
from onward.engines.pgboss.rows import Queue, columns_of, failure_of, output_of, token_of
from onward.engines.pgboss.schema import Schema
from onward.engines.pgboss.shelf import Shelf
from onward.lifecycle import Bury, Cancel, Complete, Fail, Outcome, Release, Retry, Snooze, State
from onward.postgresql import arrays
from onward.postgresql.plans import Plan

Ended = tuple[str, timedelta | None, str | None, bool]
"""How a run ended that did not end well: pg-boss's state, the delay, the output, whether the run is given back."""


def settle(schema: Schema, shelf: Shelf, settlements: Sequence[Settlement], *, notify: bool) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    queues = yield from shelf.known()
    done: dict[str, list[Settlement]] = {}
    others: dict[str, list[Settlement]] = {}
    for settlement in settlements:
        kind = done if isinstance(settlement.outcome, Complete) else others
        kind.setdefault(_table_of(settlement.claim, queues), []).append(settlement)
    lost: set[Token] = set()
    for table, some in done.items():
        lost |= yield from _complete(schema, some, table)
    for table, some in others.items():
        ended = zip(*(_ended(each.claim, each.outcome) for each in some), strict=True)
        stately = [shelf.policy_of(each.claim.ref.queue) == "stately" for each in some]
        states, delays, outputs, given_back = ended
        values = [
            *columns_of([each.claim.token for each in some]),
            arrays.words(states),
            arrays.numbers([None if delay is None else delay // MICROSECOND for delay in delays]),
            arrays.texts(outputs),
            arrays.numbers(given_back),
            arrays.numbers(stately),
        ]
        lost.update(map(token_of, (yield schema.statement("settle", values, table=table))))
    if notify:
        yield from tell(schema, {each.claim.ref.queue for each in settlements if isinstance(each.outcome, Release)})
    return frozenset(lost)


def _complete(schema: Schema, settlements: Sequence[Settlement], table: str) -> Plan[frozenset[Token]]:
    """Record that runs ended well; answer the claims that were lost."""
    rows = yield schema.statement("complete", _done(settlements), table=table, way="by_place")
    if not rows:
        return frozenset()
    missed = frozenset(map(token_of, rows))
    again = [each for each in settlements if each.claim.token in missed]
    return frozenset(map(token_of, (yield schema.statement("complete", _done(again), table=table))))


def change_nothing_to_claim(shelf: Shelf, settlements: Sequence[Settlement]) -> bool:
    """Say whether what there is to claim is the same before and after: nothing comes back, or makes room for others."""
    return all(
        isinstance(each.outcome, Complete) and shelf.policy_of(each.claim.ref.queue) not in POLICIES_WITH_ROOM
        for each in settlements
    )


def _done(settlements: Sequence[Settlement]) -> list[str]:
    outputs = [output_of(each.outcome.result) for each in settlements if isinstance(each.outcome, Complete)]
    return [*columns_of([each.claim.token for each in settlements]), arrays.texts(outputs)]


def start(claims: Sequence[Claim]) -> Plan[frozenset[Token]]:
    """Answer which claims are lost: pg-boss starts a job with its claim, and nobody claims ahead."""
    yield from ()
    return frozenset(each.token for each in claims)


def _ended(claim: Claim, outcome: Outcome) -> Ended:
    used_up = claim.attempts >= claim.max_attempts
    match outcome:
        case Retry(delay, failure):
            return "retry", delay, failure_of(failure), False
        case Fail(failure):
            return "failed", None, failure_of(failure, end=State.FAILED if used_up else None), False
        case Bury(failure):
            return "failed", None, failure_of(failure, end=None if used_up else State.DEAD_LETTER), False
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


def _table_of(claim: Claim, queues: Mapping[str, Queue]) -> str:
    queue = queues.get(claim.ref.queue)
    return "job" if queue is None else queue.table
