"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.engine.values import Exchange, Exchanged, Settlement, Token
from onward.engines.pgmq.claiming import Batches, Round, asked, read_answer
from onward.engines.pgmq.manner import Manner
from onward.engines.pgmq.notes import settled
from onward.engines.pgmq.schema import SQL
from onward.postgresql.plans import Plan, Statement


def settle(settlements: Sequence[Settlement], manner: Manner, columns: str) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    rows = yield Statement(SQL.settle, [*_laid_out(settlements, manner), columns])
    recorded = {tuple(row) for row in rows}
    return frozenset(each.claim.token for each in settlements if each.claim.token[:3] not in recorded)


def exchange(wanted: Exchange, manner: Manner, columns: str, round_: Round, batches: Batches) -> Plan[Exchanged]:
    """Settle, then claim. Nothing is ever claimed without being started, so there is nothing to start."""
    values = [*_laid_out(wanted.settlements, manner), columns, *asked(wanted.request, manner, round_, batches)]
    rows = yield Statement(SQL.exchange, values)
    lost, claimed = read_answer(rows, wanted.request, manner, round_)
    missed = {each.claim.token for each in wanted.settlements if lost and each.claim.token[:3] in lost}
    return Exchanged(lost=frozenset(missed | {claim.token for claim in wanted.starts}), claimed=claimed)


def _laid_out(settlements: Sequence[Settlement], manner: Manner) -> list[list[Any]]:
    """Lay outcomes out in columns, in the order in which everybody locks."""
    if not settlements:
        return [[] for _ in range(7)]
    rows = [settled(each, done=manner.completed) for each in settlements]
    rows.sort(key=lambda row: row[:3])
    return [list(column) for column in zip(*rows, strict=True)]
