"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.engine.values import Settlement, Token
from onward.engines.pgmq.headers import Settled, completed, settled
from onward.engines.pgmq.schema import SQL
from onward.engines.pgmq.settings import GROUPED, Manner
from onward.lifecycle import Complete
from onward.pg.arrays import EMPTY, numbers, texts
from onward.pg.plans import Plan, Statement


def settle(settlements: Sequence[Settlement], manner: Manner, columns: str) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    rows = yield Statement(SQL.settle, _laid_out(settlements, manner, columns))
    if not rows:
        return frozenset()
    lost = {(msg_id, read_ct, queue) for queue, msg_id, read_ct in rows}
    return frozenset(each.claim.token for each in settlements if each.claim.token[:3] in lost)


def can_exchange_concurrently(settlements: Sequence[Settlement], manner: Manner) -> bool:
    """Say whether what there is to claim is the same before and after: nothing comes back, or makes room for others."""
    if not all(isinstance(each.outcome, Complete) for each in settlements):
        return False
    return not manner.reads or GROUPED.isdisjoint({manner.way(each.claim.ref.queue) for each in settlements})


def _laid_out(settlements: Sequence[Settlement], manner: Manner, columns: str) -> list[Any]:
    """Lay outcomes out for the store: those that are only done apart from those that have more to say."""
    done: dict[tuple[Any, ...], list[int]] = {}
    rows = []
    for each in settlements:
        outcome = each.outcome
        if type(outcome) is Complete and outcome.result is None:
            msg_id, read_ct, queue, worker, *_ = each.claim.token
            done.setdefault((queue, read_ct, worker, each.claim.attempts), []).append(msg_id)  # type: ignore[arg-type]
        else:
            rows.append(settled(each, done=manner.completed))
    return [*_done(done), *_more(rows), columns, manner.completed == "delete"]


def _done(done: Mapping[tuple[Any, ...], list[int]]) -> list[str]:
    if not done:
        return [EMPTY] * 4
    queues, counts, workers, attempts = zip(*done, strict=True)
    notes = [completed(*each) for each in zip(attempts, counts, workers, strict=True)]
    return [texts(queues), numbers(counts), texts(notes), texts([numbers(sorted(ids)) for ids in done.values()])]


def _more(rows: list[Settled]) -> list[str]:
    if not rows:
        return [EMPTY] * 7
    rows.sort(key=lambda row: row[:3])  # the order in which everybody locks
    queues, ids, counts, ends, delays, notes, failures = zip(*rows, strict=True)
    return [texts(queues), numbers(ids), numbers(counts), texts(ends), numbers(delays), texts(notes), texts(failures)]
