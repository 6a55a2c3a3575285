"""Takes ready jobs: one script call for up to two hundred queues, fair across them."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final, Literal

from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.bullmq import rows, schedules
from onward.engines.bullmq.cron_pattern import UnreadablePattern
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Command, Interleaved, Plan, script
from onward.engines.bullmq.queue_registry import QueueRegistry, is_pattern

_MAX_QUEUES: Final = 200
"""Queues that one script call looks at: Redis does nothing else meanwhile."""
MAX_JOBS: Final = 200
"""Jobs that one question takes."""
BATCH_SIZE: Final = 25
"""Jobs that are moved in one go: Redis does nothing else meanwhile, half a millisecond or so. A larger batch is moved
in several, and whoever waits has a turn between them (B10)."""

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of jobs that are moved in one go, or one job: at most :data:`MAX_JOBS` / :data:`BATCH_SIZE` times as much comes
with one answer."""

_MIN_DEFERRAL: Final = 5_000
_MAX_DEFERRAL: Final = 300_000
"""Milliseconds for which a job whose schedule only Node can read is left to Node's workers, at first and at most."""
log = logging.getLogger("onward.engines.bullmq")

PrecededBy = Literal["", "outcomes", "marker"]


class Rotation:
    """Whose turn it is among the queues of a claim, from one claim to the next."""

    def __init__(self) -> None:
        self.next_queue = ""
        self.turn_remaining = 0
        self.has_backlog = False
        """Whether the last question had all that it asked for. Where it had not, the next asks for as much as is moved
        in one go, and for the rest only if that comes: nobody idle sends for two hundred jobs to find one."""


class ClaimResult:
    """What one claim has given so far."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.unrunnable: list[tuple[str, str, str, str]] = []
        """Jobs that must be failed at once: queue, id, token, and why."""
        self.scheduled: list[schedules.ScheduledJob] = []
        """Jobs of a scheduler: the next one is to be made."""
        self.deferred: list[tuple[str, str, str, int]] = []
        """Jobs of schedules that only Node can read, put off for it: queue, id, token, milliseconds."""
        self.retry_after: float | None = None
        self.now = 0
        """The store's time, in microseconds."""
        self.generation = 0
        """The counter of names, as the store has it."""

    @property
    def count(self) -> int:
        """How many jobs that is."""
        return len(self.claims) + len(self.unrunnable) + len(self.deferred)


def claim(
    keys: Keys,
    registry: QueueRegistry,
    request: ClaimRequest,
    rotation: Rotation,
    *,
    before: Sequence[Command] = (),
    preceded_by: PrecededBy = "",
) -> Plan[tuple[list[Any], ClaimResult]]:
    """Take jobs; ``before`` goes ahead in the same round trip, and its answers are given with the claims.

    ``preceded_by`` says what that is: see ``lua/claim.lua``.
    """
    queues = yield from registry.matching(request.queues)
    has_patterns = any(is_pattern(pattern) for pattern in request.queues)
    result = ClaimResult()
    answers: list[Any] = []
    leading = list(before)
    tries = 0
    while True:
        order = _rotated(queues, rotation.next_queue)
        generation = registry.generation
        for first in range(0, len(order), _MAX_QUEUES):
            some = order[first : first + _MAX_QUEUES]
            got = result.count
            slots = min(max(request.slots - got, 0), MAX_JOBS)
            prefetch_started = min(
                max(request.slots + request.prefetch_started - max(got, request.slots), 0), MAX_JOBS - slots
            )
            if slots + prefetch_started == 0:
                break
            batches = list(_batches(slots, prefetch_started))
            replies = yield from _claim_batches(keys, request, some, batches, rotation, result, leading, preceded_by)
            answers, leading = answers or replies, []
            generation = result.generation
        if has_patterns and not order:
            *replies, known = yield [*leading, ("GET", keys.generation)]
            answers, leading, generation = answers or replies, [], int(known or 0)
        elif leading:
            answers, leading = (yield leading), []
        tries += 1
        if has_patterns and generation != registry.generation and tries == 1:
            yield from registry.refresh()
            queues = yield from registry.matching(request.queues)
            continue
        return answers, result


def _claim_batches(
    keys: Keys,
    request: ClaimRequest,
    queues: list[str],
    batches: list[tuple[int, int]],
    rotation: Rotation,
    result: ClaimResult,
    leading: list[Command],
    preceded_by: PrecededBy,
) -> Plan[list[Any]]:
    """Take from some queues, go by go, until they have no more; give the answers to what went ahead."""
    answers: list[Any] = []
    turn, left = 1, rotation.turn_remaining if queues[0] == rotation.next_queue else 0
    while batches:
        # Where queues take turns, a go must know whose turn it was when the last one ended.
        count = len(batches) if rotation.has_backlog and len(queues) == 1 else 1
        group, batches = batches[:count], batches[count:]
        meta_keys, tokens = [keys.meta(name) for name in queues], [token_hex(8) for _ in group]
        commands = list(leading)
        for token, (now, later) in zip(tokens, group, strict=True):
            arguments = (token, rows.milliseconds(request.lease), now, later, left, preceded_by, MAX_BATCH_BYTES)
            commands.append(script("claim", keys, meta_keys, request.worker_id, *arguments))
            left = 0
            preceded_by = "" if preceded_by == "outcomes" else preceded_by
        replies = yield Interleaved(keys, commands)
        answers += replies[: len(leading)]
        wanted = result.count + sum(map(sum, group))
        for token, reply in zip(tokens, replies[len(leading) :], strict=True):
            turn, left = _parse(reply, queues, token, result, rotation)
        leading = []
        queues = queues[turn - 1 :] + queues[: turn - 1]
        rotation.has_backlog = result.count == wanted
        if not rotation.has_backlog:
            break
    return answers


def _batches(slots: int, prefetch_started: int) -> Iterator[tuple[int, int]]:
    """Part what is asked for into what is moved in one go."""
    while slots + prefetch_started:
        now = min(slots, BATCH_SIZE)
        later = min(prefetch_started, BATCH_SIZE - now)
        yield now, later
        slots, prefetch_started = slots - now, prefetch_started - later


def _rotated(queues: list[str], first: str) -> list[str]:
    at = bisect_left(queues, first)
    return queues[at:] + queues[:at] if at < len(queues) else queues


def _parse(
    answer: list[Any], queues: list[str], token: str, result: ClaimResult, rotation: Rotation
) -> tuple[int, int]:
    """Read what one go has given; say whose turn is next, and what is left of it."""
    result.generation, retry_after, turn, left, result.now = answer[:5]
    if retry_after >= 0:
        result.retry_after = (
            retry_after / 1e6 if result.retry_after is None else min(result.retry_after, retry_after / 1e6)
        )
    # A turn that has ended leads to whatever comes next, a queue made meanwhile too.
    rotation.next_queue, rotation.turn_remaining = queues[turn - 1] if left else queues[turn - 2] + "\0", left
    number = 0
    for at in range(5, len(answer), 5):
        queue_number, id, lease, start_within, fields = answer[at : at + 5]
        queue = queues[queue_number - 1]
        if isinstance(fields, str):
            log.error(
                "a job's key is no hash, so it was taken off its queue: %s",
                fields,
                extra={"queue": queue, "job_id": id},
            )
            continue
        number += 1
        claim_token = f"{token}:{number}"
        job = dict(zip(fields[::2], fields[1::2], strict=True))
        if (scheduler := job.get("rjk")) is not None:
            opts = job.get("opts", "")
            try:
                if schedules.repeat_of(opts) is not None:
                    schedules.compute_next(scheduler, opts, result.now // 1000)
            except (UnreadablePattern, TypeError, ValueError, OverflowError) as error:
                result.deferred.append((queue, id, claim_token, _deferral(scheduler, queue, job, error)))
                continue
            result.scheduled.append(schedules.ScheduledJob(queue, id, scheduler, opts))
        if (reason := job.get("defa")) is not None:
            result.unrunnable.append((queue, id, claim_token, reason))
            continue
        try:
            claim = rows.claim_of(queue, id, claim_token, lease, start_within, job, result.now)
        except rows.UnreadableJob as error:
            result.unrunnable.append((queue, id, claim_token, f"the job cannot be read: {error}"))
            continue
        result.claims.append(claim)
    return turn, left


def _deferral(scheduler: str, queue: str, job: Mapping[str, str], error: Exception) -> int:
    """Choose for how many milliseconds a job is left to Node's workers: longer each time it came back."""
    started = int(text) if (text := job.get("ats", "")).isdecimal() else 0
    delay = min(_MIN_DEFERRAL << min(started, 10), _MAX_DEFERRAL)
    log.warning(
        "the schedule cannot be read here (%s); its job is left to Node workers for %s s",
        error,
        delay // 1000,
        extra={"scheduler": scheduler, "queue": queue},
    )
    return delay


def claims_of(result: ClaimResult) -> Claims:
    """Hand the claims over."""
    return Claims(claims=tuple(result.claims), retry_after=result.retry_after)
