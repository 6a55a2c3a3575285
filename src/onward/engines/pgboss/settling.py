"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import assert_never

import msgspec

from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims, Exchange, Exchanged, Settlement, Token
from onward.engines.pgboss.claiming import POLICIES_WITH_ROOM, Round, claim, new_number, soon, taking
from onward.engines.pgboss.enqueueing import tell
from onward.engines.pgboss.rows import Queue, claim_of, columns_of, failure_of, output_of, token_of
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
        lost.update(map(token_of, (yield schema.statement("complete", _done(some), table=table))))
    for table, some in others.items():
        ended = zip(*(_ended(each.claim, each.outcome) for each in some), strict=True)
        stately = [_policy_of(each.claim, queues) == "stately" for each in some]
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


def exchange(schema: Schema, shelf: Shelf, wanted: Exchange, round_: Round, *, notify: bool) -> Plan[Exchanged]:
    """Settle and claim, in that order: what is given back can be taken again."""
    if wanted.request is None:
        return Exchanged(lost=(yield from settle(schema, shelf, wanted.settlements, notify=notify)))
    queue = yield from _only_queue(shelf, wanted)
    if queue is not None:
        return (yield from _at_once(schema, shelf, wanted.settlements, wanted.request, queue))
    lost: frozenset[Token] = frozenset()
    if wanted.settlements:
        lost = yield from settle(schema, shelf, wanted.settlements, notify=notify)
    return Exchanged(lost=lost, claimed=(yield from claim(schema, shelf, wanted.request, round_)))


def _only_queue(shelf: Shelf, wanted: Exchange) -> Plan[Queue | None]:
    """Give the queue that all is about, where one statement can do all: it has no policy that outcomes make room in."""
    if not wanted.settlements or not all(isinstance(each.outcome, Complete) for each in wanted.settlements):
        return None
    assert wanted.request is not None  # noqa: S101 - who calls has looked
    matching = yield from shelf.matching(wanted.request.queues)
    if len(matching) != 1 or matching[0].policy in POLICIES_WITH_ROOM:
        return None
    (queue,) = matching
    return queue if all(each.claim.ref.queue == queue.name for each in wanted.settlements) else None


def _at_once(
    schema: Schema, shelf: Shelf, settlements: Sequence[Settlement], request: ClaimRequest, queue: Queue
) -> Plan[Exchanged]:
    number = new_number()
    wanted = request.slots + request.soon
    values = [*_done(settlements), *taking(shelf, {queue: wanted}, request, number)]
    rows = yield schema.statement("exchange", values, table=queue.table)
    lost = frozenset((row[0], row[1], row[3], row[5], row[2]) for row in rows if row[4] is None)
    claims = tuple([claim_of(row, number) for row in rows if row[4] is not None])
    again_in = None if len(claims) >= wanted else (yield from soon(schema, [queue]))
    return Exchanged(lost=lost, claimed=Claims(claims=claims, again_in=again_in))


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


def _policy_of(claim: Claim, queues: Mapping[str, Queue]) -> str | None:
    queue = queues.get(claim.ref.queue)
    return None if queue is None else queue.policy
