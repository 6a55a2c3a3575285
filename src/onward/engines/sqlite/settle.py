"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_never

from onward.clock import MICROSECOND
from onward.engine.values import Claim, Exchange, Exchanged, Settlement, Token
from onward.engines.sqlite import batches, claims
from onward.engines.sqlite.enqueue import ensure_queues_open
from onward.engines.sqlite.rows import failed_attempt, json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import NeedsOwnTransaction, Transaction
from onward.lifecycle import Bury, Cancel, Complete, Fail, Failure, Release, Retry, Snooze


def exchange(transaction: Transaction, wanted: Exchange) -> Exchanged:
    """Settle, start and claim, in that order: what is settled makes room in limited queues for what is claimed."""
    lost: frozenset[Token] = frozenset()
    if wanted.settlements:
        lost |= settle(transaction, wanted.settlements)
    if wanted.starts:
        lost |= start(transaction, wanted.starts)
    if wanted.request is None:
        return Exchanged(lost=lost)
    return Exchanged(lost=lost, claimed=claims.claim(transaction, wanted.request))


def settle(transaction: Transaction, settlements: Sequence[Settlement]) -> frozenset[Token]:
    """Record outcomes; answer the claims that were lost."""
    completed = [s for s in settlements if isinstance(s.outcome, Complete)]
    lost = _complete(transaction, completed) if completed else set()
    ready: set[str] = set()
    for settlement in settlements:
        if isinstance(settlement.outcome, Complete):
            continue
        if not _settle_one(transaction, settlement):
            lost.add(settlement.claim.token)
        elif isinstance(settlement.outcome, Release):
            ready.add(settlement.claim.ref.queue)
    freed = {s.claim.ref.queue for s in settlements}
    transaction.execute(SQL.queue_reopen_freed, {"names": json_text(list(freed))})
    if ready:
        ensure_queues_open(transaction, ready)
    batches.advance(transaction)
    return frozenset(lost)


def start(transaction: Transaction, claims: Sequence[Claim]) -> frozenset[Token]:
    """Record that handlers start; answer the claims that were lost, or whose job has expired."""

    def started(some: Sequence[Claim]) -> int:
        tokens = json_text([claim.token for claim in some])
        return transaction.execute(SQL.start_many, {"claims": tokens, "now": transaction.now}).rowcount

    lost = _lost_of(transaction, claims, started)
    for claim in lost:
        seq, claim_no = claim.token
        transaction.execute(SQL.expire_claimed, {"seq": seq, "claim_no": claim_no, "now": transaction.now})
    if lost:
        batches.advance(transaction)
    return frozenset(claim.token for claim in lost)


def _complete(transaction: Transaction, settlements: Sequence[Settlement]) -> set[Token]:
    def completed(some: Sequence[Settlement]) -> int:
        rows = [(*s.claim.token, s.outcome.result) for s in some if isinstance(s.outcome, Complete)]
        return transaction.execute(SQL.complete_many, {"claims": json_text(rows), "now": transaction.now}).rowcount

    return {settlement.claim.token for settlement in _lost_of(transaction, settlements, completed)}


def _lost_of(transaction: Transaction, items: Sequence[Any], write: Callable[[Sequence[Any]], int]) -> list[Any]:
    """Write many at once; if not all could be written, undo that and find out one by one which."""
    if len(items) == 1:
        return [] if write(items) == 1 else list(items)
    connection = transaction.connection
    if transaction.is_exclusive:
        connection.execute("savepoint many")
    if write(items) == len(items):
        if transaction.is_exclusive:
            connection.execute("release many")
        return []
    if not transaction.is_exclusive:
        raise NeedsOwnTransaction
    connection.execute("rollback to many")
    connection.execute("release many")
    return [item for item in items if write([item]) != 1]


def _settle_one(transaction: Transaction, settlement: Settlement) -> bool:
    seq, claim_no = settlement.claim.token
    named = {"seq": seq, "claim_no": claim_no, "now": transaction.now}
    execute = transaction.execute
    match settlement.outcome:
        case Complete():
            message = "completions are written together"
            raise AssertionError(message)
        case Retry(delay, failure):
            done = execute(SQL.retry, named | _failed(transaction, failure) | {"delay_us": delay // MICROSECOND})
        case Fail(failure):
            done = execute(SQL.fail, named | _failed(transaction, failure))
        case Bury(failure):
            done = execute(SQL.bury, named | _failed(transaction, failure))
        case Snooze(delay, is_put_back):
            done = execute(SQL.snooze, named | {"delay_us": delay // MICROSECOND, "is_put_back": is_put_back})
        case Release():
            done = execute(SQL.release, named)
        case Cancel(reason):
            done = execute(SQL.cancel_held, named | {"last_error": reason})
        case _:
            assert_never(settlement.outcome)
    return done.rowcount == 1


def _failed(transaction: Transaction, failure: Failure) -> dict[str, Any]:
    entry = failed_attempt(failure, at=transaction.now)
    return {"last_error": str(failure), "error": entry}
