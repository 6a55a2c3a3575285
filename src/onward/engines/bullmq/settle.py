"""Records how runs ended. Every script matches the lock: a lost claim changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, assert_never

from onward.engine.values import Exchange, Exchanged, Settlement, Token
from onward.engines.bullmq import claims, leases, rows
from onward.engines.bullmq.commands import Command, InTurns, Plan, script
from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.queue_registry import Names
from onward.lifecycle import Bury, Cancel, Complete, Fail, Outcome, Release, Retry, Snooze

_AT_ONCE: Final = timedelta(milliseconds=1)

Row = tuple[Any, ...]


def settle(layout: Layout, settlements: Sequence[Settlement], *, metrics: int = 0) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    commands, tokens = _commands(layout, settlements, metrics=metrics)
    return _lost(tokens, (yield InTurns(layout, commands)))


def exchange(
    layout: Layout, names: Names, wanted: Exchange, round_: claims.Round, *, metrics: int = 0
) -> Plan[tuple[Exchanged, claims.Taken]]:
    """Settle, look what may start, and claim, in one round trip."""
    request = wanted.request
    commands, tokens = _commands(layout, wanted.settlements, metrics=metrics, then_claims=request is not None)
    starts = [claim.token for claim in wanted.starts]
    if starts:
        commands.append(leases.held(layout, starts))
        tokens.append(starts)
    if request is None:
        return Exchanged(lost=_lost(tokens, (yield InTurns(layout, commands)))), claims.Taken()
    what: claims.Before = "outcomes" if commands else ""
    answers, taken = yield from claims.claim(layout, names, request, round_, before=commands, what=what)
    return Exchanged(lost=_lost(tokens, answers), claimed=claims.answer_of(taken)), taken


def fail_unfit(layout: Layout, taken: claims.Taken) -> Plan[None]:
    """Fail jobs that came, and that no handler must see: damaged ones, and those that BullMQ has marked so (defa)."""
    by_queue: dict[str, list[Row]] = {}
    for queue, id, token, why in taken.unfit:
        by_queue.setdefault(queue, []).append((id, token, "fail", why, ""))
    yield [_command(layout, queue, items) for queue, items in by_queue.items()]


def _commands(
    layout: Layout, settlements: Sequence[Settlement], *, metrics: int = 0, then_claims: bool = False
) -> tuple[list[Command], list[list[Token]]]:
    by_queue: dict[str, tuple[list[Row], list[Token]]] = {}
    for settlement in settlements:
        token = settlement.claim.token
        queue = str(token[0])
        if (group := by_queue.get(queue)) is None:
            group = by_queue[queue] = ([], [])
        group[0].append((token[1], token[2], *_said(settlement.outcome)))
        group[1].append(token)
    commands, tokens = [], []
    for queue, (items, named) in by_queue.items():
        for first in range(0, len(items), claims.AT_ONCE):
            last = first + claims.AT_ONCE
            commands.append(_command(layout, queue, items[first:last], claims=then_claims, metrics=metrics))
            tokens.append(named[first:last])
    return commands, tokens


def _command(layout: Layout, queue: str, items: Sequence[Row], *, claims: bool = False, metrics: int = 0) -> Command:
    flat = [value for item in items for value in item]
    return script("settle", layout, [layout.meta(queue)], "1" if claims else "", metrics or "", *flat)


def _said(outcome: Outcome) -> tuple[str, str, str]:
    match outcome:
        case Complete(result):
            return "complete", "null" if result is None else result, ""
        case Fail(failure) | Bury(failure):
            return "fail", str(failure), rows.stack_text(failure)
        case Retry(delay, failure):
            wait = 0 if delay < _AT_ONCE else rows.milliseconds(delay)
            return "retry", f"{wait}:{failure}", rows.stack_text(failure)
        case Snooze(delay):
            return "snooze", str(rows.milliseconds(delay)), ""
        case Release():
            return "release", "", ""
        case Cancel():
            return "cancel", "", ""
        case _:
            assert_never(outcome)


def _lost(tokens: Sequence[Sequence[Token]], answers: Sequence[Sequence[int]]) -> frozenset[Token]:
    return frozenset(named[place - 1] for named, places in zip(tokens, answers, strict=True) for place in places)
