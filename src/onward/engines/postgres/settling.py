"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from onward.clock import MICROSECOND
from onward.engine.values import Claim, Exchange, Exchanged, Settlement, Token
from onward.engines.postgres.claiming import Round, claim, read_answer
from onward.engines.postgres.rows import failure_text, ranges_of
from onward.engines.postgres.schema import Schema
from onward.lifecycle import Bury, Cancel, Complete, Fail, Failure, Release, Retry, Snooze, State
from onward.postgresql.plans import Plan, Row, Statement


def settle(schema: Schema, settlements: Sequence[Settlement]) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    rows = yield Statement(schema.settle, [schema.now, schema.channel, *_columns(settlements)])
    return _tokens(rows)


def start(schema: Schema, claims: Sequence[Claim]) -> Plan[frozenset[Token]]:
    """Record that handlers start; answer the claims that were lost, or whose job has expired."""
    rows = yield Statement(schema.start, [schema.now, *_by_token(claims)])
    return _tokens(rows)


def exchange(schema: Schema, wanted: Exchange, round_: Round) -> Plan[Exchanged]:
    """Settle, start and claim, in that order: what is settled makes room in limited queues for what is claimed."""
    request = wanted.request
    if request is not None and request.alone:  # a rare one: nothing is gained by a statement for it
        lost: frozenset[Token] = frozenset()
        if wanted.settlements:
            lost |= yield from settle(schema, wanted.settlements)
        if wanted.starts:
            lost |= yield from start(schema, wanted.starts)
        return Exchanged(lost=lost, claimed=(yield from claim(schema, request, round_)))
    values = [schema.now, schema.channel, *_columns(wanted.settlements), *_by_token(wanted.starts)]
    if request is None:
        values += [None] * 8
    else:
        firsts, ends = ranges_of(request.queues)
        values += [
            request.worker_id,
            firsts,
            ends,
            request.slots,
            request.soon + request.ahead,
            request.lease // MICROSECOND,
        ]
        values += [round_.next_name, round_.turn_left]
    rows = yield Statement(schema.exchange, values)
    lost, claimed = read_answer(rows, round_)
    return Exchanged(lost=lost, claimed=claimed)


def _columns(settlements: Sequence[Settlement]) -> list[list[Any]]:
    """Lay outcomes out in columns, those that end a job apart from those after which it goes on.

    In the order of the jobs' numbers, in which everybody locks them.
    """
    ended: list[tuple[Any, ...]] = []
    back: list[tuple[Any, ...]] = []
    for settlement in settlements:
        token = settlement.claim.token
        match settlement.outcome:
            case Complete(result):
                ended.append((*token, State.COMPLETED, result, None, None))
            case Fail(failure):
                ended.append((*token, State.FAILED, None, *_told(failure)))
            case Bury(failure):
                ended.append((*token, State.DEAD_LETTER, None, *_told(failure)))
            case Cancel(reason):
                ended.append((*token, State.CANCELLED, None, reason, None))
            case Retry(delay, failure):
                back.append((*token, "retry", delay // MICROSECOND, *_told(failure)))
            case Snooze(delay):
                back.append((*token, "snooze", delay // MICROSECOND, None, None))
            case Release():
                back.append((*token, "release", None, None, None))
            case _:
                assert_never(settlement.outcome)
    return _turned(ended) + _turned(back)


def _turned(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    if not rows:
        return [[] for _ in range(6)]
    rows.sort(key=lambda row: row[:2])
    return [list(column) for column in zip(*rows, strict=True)]


def _told(failure: Failure) -> tuple[str, str]:
    return str(failure), failure_text(failure)


def _by_token(claims: Sequence[Claim]) -> list[list[Any]]:
    tokens = sorted(claim.token for claim in claims)
    return [[token[0] for token in tokens], [token[1] for token in tokens]]


def _tokens(rows: Sequence[Row]) -> frozenset[Token]:
    return frozenset((seq, claim_no) for seq, claim_no in rows)
