"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, assert_never

import msgspec

from onward.clock import MICROSECOND
from onward.engine.values import Claim, Claims, Exchange, Exchanged, Settlement, Token
from onward.engines.postgres.claims import RoundRobin, claim, claim_values, no_claims, read_claims
from onward.engines.postgres.rows import failure_text
from onward.engines.postgres.statements import Schema
from onward.errors import WrongIsolation
from onward.lifecycle import Bury, Cancel, Complete, Fail, Failure, JobStatus, Release, Retry, Snooze
from onward.pg import arrays
from onward.pg.listener import DUE
from onward.pg.plan_runner import Plan, Row, Statement

_FIRST: Final = itemgetter(0)
_lost_decoder: Final = msgspec.json.Decoder(list[tuple[int, int]])

BATCH_CHANGED: Final[Token] = (0, 0)
"""Among the claims that were lost: jobs of a batch have ended."""
DEPENDENCY_ENDED: Final[Token] = (0, 1)
"""Among the claims that were lost: a job has ended that others wait for."""


def settle(schema: Schema, settlements: Sequence[Settlement]) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost, and with them whether there is news of a batch."""
    rows = yield Statement(schema.settle, [schema.now, schema.channel, *_columns(settlements)])
    return _tokens(rows)


def settle_and_notify(schema: Schema, settlements: Sequence[Settlement]) -> Plan[frozenset[Token]]:
    """Record outcomes in a caller's transaction. Its commit notifies the leader of batch changes.

    Raises:
        WrongIsolation: the transaction is REPEATABLE READ or SERIALIZABLE; it can go on.
    """
    rows = yield Statement(schema.settle_in_transaction, [schema.now, schema.channel, *_columns(settlements)])
    if rows and (isolation := rows[0][2]) is not None:
        raise WrongIsolation(isolation)
    lost = frozenset((seq, claim_no) for seq, claim_no, _ in rows)
    if lost & {BATCH_CHANGED, DEPENDENCY_ENDED}:
        yield Statement(schema.notify, [schema.channel, DUE])
    return lost - {BATCH_CHANGED, DEPENDENCY_ENDED}


def settle_available(
    schema: Schema, settlements: Sequence[Settlement]
) -> Plan[tuple[frozenset[Token], frozenset[Token]]]:
    """Record outcomes of jobs that nobody else holds; answer the claims that were lost, and those that were left."""
    ((held,),) = yield Statement(schema.lock_available, [arrays.numbers([each.claim.token[0] for each in settlements])])
    left = frozenset(each.claim.token for each in settlements if each.claim.token[0] in held)
    free = [each for each in settlements if each.claim.token not in left]
    return (yield from settle(schema, free)) if free else frozenset(), left


def start(schema: Schema, claims: Sequence[Claim]) -> Plan[frozenset[Token]]:
    """Record that handlers start; answer the claims that were lost, or whose job has expired."""
    rows = yield Statement(schema.start, [schema.now, *_by_token(claims)])
    return _tokens(rows)


def exchange(schema: Schema, wanted: Exchange, rotation: RoundRobin) -> Plan[Exchanged]:
    """Settle, start and claim, in that order: what is settled makes room in limited queues for what is claimed."""
    request = wanted.request
    if request is not None and not wanted.settlements and not wanted.starts:
        return Exchanged(claimed=(yield from claim(schema, request, rotation)))
    if request is not None and request.alone:  # a rare one: nothing is gained by a statement for it
        done = yield from exchange(schema, msgspec.structs.replace(wanted, request=None), rotation)
        return Exchanged(lost=done.lost, claimed=(yield from claim(schema, request, rotation)))
    values = [schema.now, schema.channel, *_columns(wanted.settlements), *_by_token(wanted.starts)]
    queues_to_check = None if request is None else rotation.queues_to_check(is_idle=False)
    values += (
        [None] * 10 if request is None or queues_to_check == () else claim_values(request, rotation, queues_to_check)
    )
    with rotation.rescan_on_failure():
        ((lost, *answer),) = yield Statement(schema.exchange, values)
    claimed = Claims()
    if request is not None:
        claimed = (
            no_claims(rotation) if queues_to_check == () else (yield from read_claims(schema, tuple(answer), rotation))
        )
    return Exchanged(lost=frozenset() if lost is None else frozenset(_lost_decoder.decode(lost)), claimed=claimed)


def _columns(settlements: Sequence[Settlement]) -> list[str]:
    """Lay outcomes out in columns: those that complete a job, that end it otherwise, and after which it goes on.

    In the order of the jobs' numbers, in which everybody locks them.
    """
    done: list[tuple[Token, str | None]] = []
    ended: list[tuple[Any, ...]] = []
    returned: list[tuple[Any, ...]] = []
    for settlement in settlements:
        token, outcome = settlement.claim.token, settlement.outcome
        if isinstance(outcome, Complete):  # ahead of the others, which are few
            done.append((token, outcome.result))
            continue
        match outcome:
            case Fail(failure):
                ended.append((*token, JobStatus.FAILED, *_error_columns(failure)))
            case Bury(failure):
                ended.append((*token, JobStatus.DEAD_LETTER, *_error_columns(failure)))
            case Cancel(reason):
                ended.append((*token, JobStatus.CANCELLED, reason, None))
            case Retry(delay, failure):
                returned.append((*token, "retry", delay // MICROSECOND, *_error_columns(failure)))
            case Snooze(delay, is_put_back):
                move = "put_back" if is_put_back else "snooze"
                returned.append((*token, move, delay // MICROSECOND, None, None))
            case Release():
                returned.append((*token, "release", None, None, None))
            case _:
                assert_never(outcome)
    return [*_completed(done), *_encode_columns(ended, _ENDED), *_encode_columns(returned, _RETURNED)]


_WHOLE, _NUMBERS, _TEXTS = arrays.whole, arrays.numbers, arrays.texts
_ENDED: Final = (_WHOLE, _WHOLE, _TEXTS, _TEXTS, _TEXTS)
_RETURNED: Final = (_WHOLE, _WHOLE, _TEXTS, _NUMBERS, _TEXTS, _TEXTS)


def _completed(done: list[tuple[Token, str | None]]) -> list[str]:
    """Write what is by far the most of them, and must cost the least."""
    if not done:
        return [arrays.EMPTY] * 3
    done.sort(key=_FIRST)
    tokens, results = zip(*done, strict=True)
    seqs, claim_nos = zip(*tokens, strict=True)
    return [_WHOLE(seqs), _WHOLE(claim_nos), _TEXTS(results)]


def _encode_columns(rows: list[tuple[Any, ...]], encoders: Sequence[Any]) -> list[str]:
    if not rows:
        return [arrays.EMPTY] * len(encoders)
    rows.sort(key=_FIRST)
    return [encode(column) for encode, column in zip(encoders, zip(*rows, strict=True), strict=True)]


def _error_columns(failure: Failure) -> tuple[str, str]:
    return str(failure), failure_text(failure)


def _by_token(claims: Sequence[Claim]) -> list[str]:
    if not claims:
        return [arrays.EMPTY] * 2
    seqs, claim_nos = zip(*sorted(claim.token for claim in claims), strict=True)
    return [arrays.whole(seqs), arrays.whole(claim_nos)]


def _tokens(rows: Sequence[Row]) -> frozenset[Token]:
    return frozenset((seq, claim_no) for seq, claim_no in rows)
