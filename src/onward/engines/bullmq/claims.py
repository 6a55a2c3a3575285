"""Takes ready jobs: one script call for up to two hundred queues, fair across them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from secrets import token_hex
from typing import Any, Final, Literal

from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.bullmq import rows
from onward.engines.bullmq.commands import Command, InTurns, Plan, script
from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.queue_registry import Names, is_pattern

_MOST_QUEUES: Final = 200
"""Queues that one script call looks at: Redis does nothing else meanwhile."""
MOST_JOBS: Final = 200
"""Jobs that one question takes."""
AT_ONCE: Final = 25
"""Jobs that are moved in one go: Redis does nothing else meanwhile, half a millisecond or so. A larger batch is moved
in several, and whoever waits has a turn between them (B10)."""

Before = Literal["", "outcomes", "marker"]


class Round:
    """Whose turn it is among the queues of a claim, from one claim to the next."""

    def __init__(self) -> None:
        self.next_name = ""
        self.turn_left = 0
        self.has_plenty = False
        """Whether the last question had all that it asked for. Where it had not, the next asks for as much as is moved
        in one go, and for the rest only if that comes: nobody idle sends for two hundred jobs to find one."""


class Taken:
    """What one claim has given so far."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.unfit: list[tuple[str, str, str, str]] = []
        """Jobs that must be failed at once: queue, id, token, and why."""
        self.scheduled: list[tuple[Claim, str, str]] = []
        """Jobs of a scheduler, with its name and their options: the next one is to be made."""
        self.again: float | None = None
        self.now = 0
        """The store's time, in microseconds."""
        self.generation = 0
        """The counter of names, as the store has it."""

    @property
    def count(self) -> int:
        """How many jobs that is."""
        return len(self.claims) + len(self.unfit)


def claim(
    layout: Layout,
    names: Names,
    request: ClaimRequest,
    round_: Round,
    *,
    before: Sequence[Command] = (),
    what: Before = "",
) -> Plan[tuple[list[Any], Taken]]:
    """Take jobs; ``before`` goes ahead in the same round trip, and its answers are given with the claims.

    ``what`` that is matters to the claim: see ``lua/claim.lua``.
    """
    queues = yield from names.matching(request.queues)
    yield from names.serve(queues)  # before a job is taken: where nobody serves, nobody looks for lost ones
    has_patterns = any(is_pattern(pattern) for pattern in request.queues)
    taken = Taken()
    answers: list[Any] = []
    ahead = list(before)
    tries = 0
    while True:
        order = _from(queues, round_.next_name)
        generation = names.generation
        for first in range(0, len(order), _MOST_QUEUES):
            some = order[first : first + _MOST_QUEUES]
            got = taken.count
            slots = min(max(request.slots - got, 0), MOST_JOBS)
            prefetch_started = min(
                max(request.slots + request.prefetch_started - max(got, request.slots), 0), MOST_JOBS - slots
            )
            if slots + prefetch_started == 0:
                break
            goes = list(_goes(slots, prefetch_started))
            replies = yield from _take(layout, request, some, goes, round_, taken, ahead, what)
            answers, ahead = answers or replies, []
            generation = taken.generation
        if has_patterns and not order:
            *replies, known = yield [*ahead, ("GET", layout.generation)]
            answers, ahead, generation = answers or replies, [], int(known or 0)
        elif ahead:
            answers, ahead = (yield ahead), []
        tries += 1
        if has_patterns and generation != names.generation and tries == 1:
            yield from names.read()
            queues = yield from names.matching(request.queues)
            yield from names.serve(queues)
            continue
        return answers, taken


def _take(
    layout: Layout,
    request: ClaimRequest,
    queues: list[str],
    goes: list[tuple[int, int]],
    round_: Round,
    taken: Taken,
    ahead: list[Command],
    what: Before,
) -> Plan[list[Any]]:
    """Take from some queues, go by go, until they have no more; give the answers to what went ahead."""
    answers: list[Any] = []
    turn, left = 1, round_.turn_left if queues[0] == round_.next_name else 0
    while goes:
        # Where queues take turns, a go must know whose turn it was when the last one ended.
        count = len(goes) if round_.has_plenty and len(queues) == 1 else 1
        together, goes = goes[:count], goes[count:]
        keys, tokens = [layout.meta(name) for name in queues], [token_hex(8) for _ in together]
        commands = list(ahead)
        for token, (now, later) in zip(tokens, together, strict=True):
            asked = (token, rows.milliseconds(request.lease), now, later, left, what)
            commands.append(script("claim", layout, keys, request.worker_id, *asked))
            left = 0
            what = "" if what == "outcomes" else what
        replies = yield InTurns(layout, commands)
        answers += replies[: len(ahead)]
        wanted = taken.count + sum(map(sum, together))
        for token, reply in zip(tokens, replies[len(ahead) :], strict=True):
            turn, left = _read(reply, queues, token, taken, round_)
        ahead = []
        queues = queues[turn - 1 :] + queues[: turn - 1]
        round_.has_plenty = taken.count == wanted
        if not round_.has_plenty:
            break
    return answers


def _goes(slots: int, prefetch_started: int) -> Iterator[tuple[int, int]]:
    """Part what is asked for into what is moved in one go."""
    while slots + prefetch_started:
        now = min(slots, AT_ONCE)
        later = min(prefetch_started, AT_ONCE - now)
        yield now, later
        slots, prefetch_started = slots - now, prefetch_started - later


def _from(queues: list[str], first: str) -> list[str]:
    at = bisect_left(queues, first)
    return queues[at:] + queues[:at] if at < len(queues) else queues


def _read(answer: list[Any], queues: list[str], token: str, taken: Taken, round_: Round) -> tuple[int, int]:
    """Read what one go has given; say whose turn is next, and what is left of it."""
    taken.generation, again, turn, left, taken.now = answer[:5]
    if again >= 0:
        taken.again = again / 1e6 if taken.again is None else min(taken.again, again / 1e6)
    # A turn that has ended leads to whatever comes next, a queue made meanwhile too.
    round_.next_name, round_.turn_left = queues[turn - 1] if left else queues[turn - 2] + "\0", left
    for number, at in enumerate(range(5, len(answer), 5), start=1):
        at_queue, id, lease, within, fields = answer[at : at + 5]
        queue, own = queues[at_queue - 1], f"{token}:{number}"
        job = dict(zip(fields[::2], fields[1::2], strict=True))
        if (why := job.get("defa")) is not None:
            taken.unfit.append((queue, id, own, why))
            continue
        try:
            claim = rows.claim_of(queue, id, own, lease, within, job, taken.now)
        except rows.Damaged as error:
            taken.unfit.append((queue, id, own, f"the job cannot be read: {error}"))
            continue
        taken.claims.append(claim)
        if (scheduler := job.get("rjk")) is not None:
            taken.scheduled.append((claim, scheduler, job["opts"]))
    return turn, left


def answer_of(taken: Taken) -> Claims:
    """Hand the claims over."""
    return Claims(claims=tuple(taken.claims), retry_after=taken.again)
