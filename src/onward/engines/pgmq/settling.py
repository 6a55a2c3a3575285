"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onward.engine.values import Exchange, Exchanged, Settlement, Token
from onward.engines.pgmq.claiming import Round, asked, read_answer
from onward.engines.pgmq.manner import Manner
from onward.engines.pgmq.notes import Settled, settled
from onward.engines.pgmq.schema import SQL
from onward.lifecycle import Complete
from onward.postgresql.arrays import NOTHING, numbers, texts
from onward.postgresql.batches import Batches
from onward.postgresql.plans import Plan, Statement


def settle(settlements: Sequence[Settlement], manner: Manner, columns: str) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    rows = yield Statement(SQL.settle, _laid_out(settlements, manner, columns))
    return _tokens(settlements, {(msg_id, read_ct, queue) for queue, msg_id, read_ct in rows})


def exchange(wanted: Exchange, manner: Manner, columns: str, round_: Round, batches: Batches) -> Plan[Exchanged]:
    """Settle, then claim. Nothing is ever claimed without being started, so there is nothing to start."""
    values = _laid_out(wanted.settlements, manner, columns) + asked(wanted.request, manner, round_, batches)
    rows = yield Statement(SQL.exchange, values)
    lost, claimed = read_answer(rows, wanted.request, manner, round_)
    missed = _tokens(wanted.settlements, lost) if lost else frozenset()
    return Exchanged(lost=missed | {claim.token for claim in wanted.starts}, claimed=claimed)


def _tokens(settlements: Sequence[Settlement], lost: Collection[tuple[int, int, str]]) -> frozenset[Token]:
    return frozenset(each.claim.token for each in settlements if each.claim.token[:3] in lost) if lost else frozenset()


def _laid_out(settlements: Sequence[Settlement], manner: Manner, columns: str) -> list[Any]:
    """Lay outcomes out for the store: those that are only done apart from those that have more to say."""
    done: dict[tuple[str, int, str], list[int]] = {}
    rows = []
    for each in settlements:
        outcome = each.outcome
        if type(outcome) is Complete and outcome.result is None:
            msg_id, read_ct, queue, worker, *_ = each.claim.token
            done.setdefault((queue, read_ct, worker), []).append(msg_id)  # type: ignore[arg-type]
        else:
            rows.append(settled(each, done=manner.completed))
    return [*_done(done), *_more(rows), columns, manner.completed == "delete"]


def _done(done: Mapping[tuple[str, int, str], list[int]]) -> list[str]:
    if not done:
        return [NOTHING] * 4
    queues, counts, workers = zip(*done, strict=True)
    return [texts(queues), numbers(counts), texts(workers), texts([numbers(sorted(ids)) for ids in done.values()])]


def _more(rows: list[Settled]) -> list[str]:
    if not rows:
        return [NOTHING] * 7
    rows.sort(key=lambda row: row[:3])  # the order in which everybody locks
    queues, ids, counts, ends, delays, notes, failures = zip(*rows, strict=True)
    return [texts(queues), numbers(ids), numbers(counts), texts(ends), numbers(delays), texts(notes), texts(failures)]
