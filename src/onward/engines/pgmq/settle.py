"""Records how runs ended. Every statement matches the claim: a lost one changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from onward.engine.values import Settlement, Token
from onward.engines.pgmq.headers import SettledRow, completed_patch, settled_row
from onward.engines.pgmq.settings import GROUPED_MODES, PgmqSettings
from onward.engines.pgmq.statements import SQL
from onward.lifecycle import Complete
from onward.pg.arrays import EMPTY, numbers, texts
from onward.pg.plan_runner import Plan, Statement


def settle(settlements: Sequence[Settlement], settings: PgmqSettings, columns: str) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    rows = yield Statement(SQL.settle, _columns(settlements, settings, columns))
    if not rows:
        return frozenset()
    lost = {(msg_id, read_ct, queue, stamp) for queue, msg_id, read_ct, stamp in rows}
    return frozenset(each.claim.token for each in settlements if each.claim.token[:4] in lost)


def can_exchange_concurrently(
    settlements: Sequence[Settlement], settings: PgmqSettings, limited: Container[str]
) -> bool:
    """Say whether what there is to claim is the same before and after: nothing comes back, or makes room for others."""
    if not all(isinstance(each.outcome, Complete) for each in settlements):
        return False
    if any(each.claim.ref.queue in limited for each in settlements):
        return False
    return not settings.read_modes or GROUPED_MODES.isdisjoint(
        {settings.read_mode(each.claim.ref.queue) for each in settlements}
    )


def _columns(settlements: Sequence[Settlement], settings: PgmqSettings, columns: str) -> list[Any]:
    """Lay outcomes out for the store: those that are only done apart from those that have more to say."""
    done: dict[tuple[Any, ...], list[int]] = {}
    rows = []
    for each in settlements:
        outcome = each.outcome
        if type(outcome) is Complete and outcome.result is None:
            msg_id, read_ct, queue, stamp, _, worker, _ = each.claim.token
            done.setdefault((queue, read_ct, stamp, worker, each.claim.attempts), []).append(msg_id)  # type: ignore[arg-type]
        else:
            rows.append(settled_row(each, completed_action=settings.completed))
    return [*_completed_columns(done), *_outcome_columns(rows), columns, settings.completed == "delete"]


def _completed_columns(done: Mapping[tuple[Any, ...], list[int]]) -> list[str]:
    if not done:
        return [EMPTY] * 5
    queues, counts, stamps, workers, attempts = zip(*done, strict=True)
    patches = [completed_patch(*each) for each in zip(attempts, counts, workers, strict=True)]
    id_lists = [numbers(sorted(ids)) for ids in done.values()]
    return [texts(queues), numbers(counts), numbers(stamps), texts(patches), texts(id_lists)]


def _outcome_columns(rows: list[SettledRow]) -> list[str]:
    if not rows:
        return [EMPTY] * 8
    rows.sort(key=lambda row: row[:3])  # the order in which everybody locks
    queues, ids, counts, stamps, actions, delays, patches, failures = zip(*rows, strict=True)
    return [
        texts(queues),
        numbers(ids),
        numbers(counts),
        numbers(stamps),
        texts(actions),
        numbers(delays),
        texts(patches),
        texts(failures),
    ]
