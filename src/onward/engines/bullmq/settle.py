"""Records how runs ended. Every script matches the lock: a lost claim changes nothing and is answered as lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, assert_never

from onward.engine.values import Exchange, Exchanged, Settlement, Token
from onward.engines.bullmq import claims, leases, rows
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Command, Interleaved, Plan, script
from onward.engines.bullmq.queue_registry import QueueRegistry
from onward.lifecycle import Bury, Cancel, Complete, Fail, Outcome, Release, Retry, Snooze

_MIN_DELAY: Final = timedelta(milliseconds=1)

Row = tuple[Any, ...]


def settle(keys: Keys, settlements: Sequence[Settlement], *, metrics: int = 0) -> Plan[frozenset[Token]]:
    """Record outcomes; answer the claims that were lost."""
    commands, tokens = _commands(keys, settlements, metrics=metrics)
    return _lost(tokens, (yield Interleaved(keys, commands)))


def exchange(
    keys: Keys, registry: QueueRegistry, wanted: Exchange, rotation: claims.Rotation, *, metrics: int = 0
) -> Plan[tuple[Exchanged, claims.ClaimResult]]:
    """Settle, look what may start, and claim, in one round trip."""
    request = wanted.request
    commands, tokens = _commands(keys, wanted.settlements, metrics=metrics, is_claim_next=request is not None)
    starts = [claim.token for claim in wanted.starts]
    if starts:
        commands.append(leases.check_claims(keys, starts))
        tokens.append(starts)
    if request is None:
        return Exchanged(lost=_lost(tokens, (yield Interleaved(keys, commands)))), claims.ClaimResult()
    preceded_by: claims.PrecededBy = "outcomes" if commands else ""
    answers, result = yield from claims.claim(
        keys, registry, request, rotation, before=commands, preceded_by=preceded_by
    )
    return Exchanged(lost=_lost(tokens, answers), claimed=claims.claims_of(result)), result


def fail_unrunnable(keys: Keys, result: claims.ClaimResult) -> Plan[None]:
    """Fail jobs that came, and that no handler must see: damaged ones, and those that BullMQ has marked so (defa)."""
    by_queue: dict[str, list[Row]] = {}
    for queue, id, token, reason in result.unrunnable:
        by_queue.setdefault(queue, []).append((id, token, "fail", reason, ""))
    yield [_command(keys, queue, items) for queue, items in by_queue.items()]


def defer(keys: Keys, result: claims.ClaimResult) -> Plan[None]:
    """Put off jobs of schedules that only Node can read, at no cost, so that a Node worker may claim them."""
    yield [
        _command(keys, queue, [(id, token, "snooze", str(delay), "")]) for queue, id, token, delay in result.deferred
    ]


def _commands(
    keys: Keys, settlements: Sequence[Settlement], *, metrics: int = 0, is_claim_next: bool = False
) -> tuple[list[Command], list[list[Token]]]:
    by_queue: dict[str, tuple[list[Row], list[Token]]] = {}
    for settlement in settlements:
        token = settlement.claim.token
        queue = str(token[0])
        if (group := by_queue.get(queue)) is None:
            group = by_queue[queue] = ([], [])
        group[0].append((token[1], token[2], *_encode_outcome(settlement.outcome)))
        group[1].append(token)
    commands, tokens = [], []
    for queue, (items, group_tokens) in by_queue.items():
        for first in range(0, len(items), claims.BATCH_SIZE):
            last = first + claims.BATCH_SIZE
            commands.append(_command(keys, queue, items[first:last], claims=is_claim_next, metrics=metrics))
            tokens.append(group_tokens[first:last])
    return commands, tokens


def _command(keys: Keys, queue: str, items: Sequence[Row], *, claims: bool = False, metrics: int = 0) -> Command:
    flat = [value for item in items for value in item]
    return script("settle", keys, [keys.meta(queue)], "1" if claims else "", metrics or "", *flat)


def _encode_outcome(outcome: Outcome) -> tuple[str, str, str]:
    match outcome:
        case Complete(result):
            return "complete", "null" if result is None else result, ""
        case Fail(failure) | Bury(failure):
            return "fail", str(failure), rows.stack_text(failure)
        case Retry(delay, failure):
            wait = 0 if delay < _MIN_DELAY else rows.milliseconds(delay)
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
    return frozenset(
        group_tokens[position - 1]
        for group_tokens, positions in zip(tokens, answers, strict=True)
        for position in positions
    )
