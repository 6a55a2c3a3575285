"""Takes jobs: fair across queues, within their limits.

A claim looks at *open* queues only: those where, as far as is known, a job could be taken now. It goes round them by
name from where it left off, takes from each as many as its weight says, and closes those in which it finds nothing, or
nothing yet. So a million jobs in one queue do not delay the first of another, and ten thousand queues that are paused,
limited, full or empty cost a claim nothing.

The rate (:class:`~onward.engine.values.Rate`): a limited queue has one number, the moment of its next slot. Taking a
slot at *t* moves it to ``max(slot, t - credit) + spacing``. With the spacing of ``Rate`` no window of the period can
hold more than ``count`` handler starts, provided that each starts within ``start_within`` of its slot; see
docs/explain/rates.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims, Rate
from onward.engines.sqlite.lane import Transaction
from onward.engines.sqlite.rows import backoff_of, json_text
from onward.engines.sqlite.statements import SQL
from onward.job import JobRef

_LAST_NAME = "\U0010ffff"

Ranges = list[tuple[str, str]]


class Round:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    def __init__(self) -> None:
        self.next_name = ""
        self.turns_left = 0
        """What the queue at ``next_name`` may still have of its turn; 0: its whole turn."""


class _Queue(msgspec.Struct, array_like=True):
    name: str
    weight: int
    lease_us: int | None
    concurrency: int | None
    rate_count: int | None
    rate_period_us: int | None
    rate_burst: int | None
    next_slot_at: int

    @property
    def rate(self) -> Rate | None:
        if self.rate_count is None or self.rate_period_us is None or self.rate_burst is None:
            return None
        return Rate(self.rate_count, timedelta(microseconds=self.rate_period_us), self.rate_burst)


class _Ready(msgspec.Struct, array_like=True):
    """A job that can be taken: a row of ``sql/claim_pick.sql``."""

    seq: int
    id: str
    type: str
    payload: str
    attempts: int
    max_attempts: int
    crashes: int
    suspect: int
    org_id: str | None
    priority: int
    backoff: str | None
    claim_no: int
    ready_at: int


class _Suspect(msgspec.Struct, array_like=True):
    """A suspect and its queue: a row of ``sql/claim_pick_suspect.sql``."""

    job: _Ready
    queue: _Queue


_queues_decoder = msgspec.json.Decoder(list[_Queue])
_ready_decoder = msgspec.json.Decoder(list[_Ready])
_suspects_decoder = msgspec.json.Decoder(list[_Suspect])


@dataclass(slots=True)
class _Taken:
    """The jobs of one queue that a claim has picked."""

    queue: str
    jobs: list[_Ready]
    lease_us: int
    started: bool
    start_within: float | None


@dataclass(slots=True)
class _Room:
    """What a worker can still take: the free slots first, then what it may claim ahead."""

    slots: int
    ahead: int

    @property
    def left(self) -> int:
        return self.slots + self.ahead

    def take(self, count: int) -> int:
        """Use room up; answer how many of these start at once."""
        started = min(count, self.slots)
        self.slots -= started
        self.ahead -= count - started
        return started


@dataclass(slots=True)
class _Visit:
    """What a claim found in one queue."""

    got: int
    closed: bool


def ranges_of(patterns: Iterable[str]) -> Ranges:
    """Turn names and patterns into ranges of names that do not overlap."""
    spans = []
    for pattern in patterns:
        if pattern == "*":
            spans.append(("", _LAST_NAME))
        elif pattern.endswith("/*"):
            spans.append((pattern[:-1], pattern[:-2] + "0"))  # "0" comes right after "/"
        else:
            spans.append((pattern, after(pattern)))
    merged: Ranges = []
    for first, end in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


def after(name: str) -> str:
    """Give a text that sorts right after a queue's name: no name has a character as low as this."""
    return f"{name}!"


def claim(transaction: Transaction, request: ClaimRequest, round_: Round) -> Claims:
    """Take what the request has room for."""
    ranges = ranges_of(request.queues)
    if request.alone:
        return _claim_suspect(transaction, request, ranges)
    room = _Room(request.slots, request.ahead)
    taken: list[_Taken] = []
    while True:
        queues, suspects_wait = _open_queues(transaction, ranges, room.left, round_)
        closed = _go_round(transaction, request, queues, round_, room, taken)
        if not room.left or not closed:  # else queues that had run empty may have hidden others
            break
    claims = _take(transaction, request, taken, alone=False)
    again_in = _next_slot_in(transaction, ranges) if room.left else None
    return Claims(claims=tuple(claims), suspects_wait=suspects_wait, again_in=again_in)


def _open_queues(transaction: Transaction, ranges: Ranges, room: int, round_: Round) -> tuple[list[_Queue], bool]:
    """List the open queues in the order in which it is their turn, as many as could each give a job."""
    if room < 1:
        return [], False
    queues, due, suspects_wait = _look(transaction, ranges, "", room)
    if due:
        transaction.connection.execute(SQL.queue_open_due, {"now": transaction.now})
        queues, _, suspects_wait = _look(transaction, ranges, "", room)
    if not round_.next_name or not queues:
        return queues, suspects_wait
    if len(queues) < room:  # all there are: turn them so that the next one comes first
        ahead = [queue for queue in queues if queue.name >= round_.next_name]
        return ahead + queues[: len(queues) - len(ahead)], suspects_wait
    ahead, _, _ = _look(transaction, ranges, round_.next_name, room)
    return ahead + [queue for queue in queues if queue.name < round_.next_name][: room - len(ahead)], suspects_wait


def _look(transaction: Transaction, ranges: Ranges, first: str, limit: int) -> tuple[list[_Queue], bool, bool]:
    listed, due, suspects_wait = transaction.connection.execute(
        SQL.claim_look, {"ranges": json_text(ranges), "first": first, "limit": limit, "now": transaction.now}
    ).fetchone()
    return _queues_decoder.decode(listed), bool(due), bool(suspects_wait)


def _go_round(
    transaction: Transaction,
    request: ClaimRequest,
    queues: Sequence[_Queue],
    round_: Round,
    room: _Room,
    taken: list[_Taken],
) -> int:
    """Give each queue its turn, then let those with more fill what room is left; answer how many have closed."""
    if not queues:
        return 0
    turns = max(1, room.left // sum(queue.weight for queue in queues))
    willing: list[_Queue] = []
    closed = 0
    for queue in queues:
        turn = queue.weight * turns
        if queue.name == round_.next_name and round_.turns_left:
            turn = round_.turns_left
        visit = _visit(transaction, request, queue, turn, room, taken)
        closed += visit.closed
        if not room.left:
            stays = not visit.closed and visit.got < turn
            round_.turns_left = turn - visit.got if stays else 0
            round_.next_name = queue.name if stays else after(queue.name)
            return closed
        if not visit.closed:
            willing.append(queue)
    round_.turns_left = 0
    for queue in willing:
        closed += _visit(transaction, request, queue, room.left, room, taken).closed
        round_.next_name = after(queue.name)
        if not room.left:
            break
    return closed


def _visit(
    transaction: Transaction, request: ClaimRequest, queue: _Queue, turn: int, room: _Room, taken: list[_Taken]
) -> _Visit:
    """Pick at most ``turn`` jobs of a queue; close it if there is no more to be had from it for now."""
    rate = queue.rate
    limited = rate is not None or queue.concurrency is not None
    wanted = min(turn, room.slots if limited else room.left)  # a limited queue is never claimed ahead of a free slot
    if wanted == 0:
        return _Visit(0, closed=False)
    already = sum(len(batch.jobs) for batch in taken if batch.queue == queue.name)
    allowed, reopens_at = _allowed(transaction, queue, rate, wanted, already)
    jobs = _pick(transaction, queue.name, allowed, already) if allowed else []
    if jobs and rate is not None:
        reopens_at = _advance(transaction, queue, rate, len(jobs))
    started = room.take(len(jobs))
    lease_us = queue.lease_us or request.lease // MICROSECOND
    start_within = None if rate is None else (rate.slack / 2).total_seconds()
    if started:
        taken.append(_Taken(queue.name, jobs[:started], lease_us, started=True, start_within=start_within))
    if jobs[started:]:
        taken.append(_Taken(queue.name, jobs[started:], lease_us, started=False, start_within=None))
    used_up = len(jobs) == allowed  # by its limits, not by its jobs
    if len(jobs) == wanted and reopens_at is None:
        return _Visit(len(jobs), closed=False)
    closed = {"name": queue.name, "reopens_at": reopens_at if used_up else None}
    transaction.connection.execute(SQL.queue_close, closed)
    return _Visit(len(jobs), closed=True)


def _pick(transaction: Transaction, queue: str, limit: int, already: int) -> list[_Ready]:
    text = transaction.connection.execute(
        SQL.claim_pick, {"queue": queue, "limit": limit + already, "now": transaction.now}
    ).fetchone()[0]
    return _ready_decoder.decode(text)[already:]


def _allowed(
    transaction: Transaction, queue: _Queue, rate: Rate | None, wanted: int, already: int = 0
) -> tuple[int, int | None]:
    """Say how many jobs the queue's limits let go now, and when the rate lets the next one go if that is later.

    ``already`` jobs of it have been picked by this claim and are not yet written.
    """
    reopens_at = None
    if queue.concurrency is not None:
        held = transaction.connection.execute(SQL.held_count, {"queue": queue.name}).fetchone()[0]
        wanted = min(wanted, max(0, queue.concurrency - held - already))
    if rate is not None:
        slots, reopens_at = _slots(queue, rate, wanted, transaction.now)
        wanted = slots
    return wanted, reopens_at


def _slots(queue: _Queue, rate: Rate, wanted: int, now: int) -> tuple[int, int | None]:
    """Count the slots that are free now, up to ``wanted``."""
    slot = _slot(queue, rate, now)
    spacing, credit, burst = _terms(rate)
    count = 0
    while count < wanted and slot - burst <= now:
        slot = max(slot, now - credit) + spacing
        count += 1
    return count, (slot - burst if slot - burst > now else None)


def _advance(transaction: Transaction, queue: _Queue, rate: Rate, count: int) -> int | None:
    """Use up so many slots; answer when the next one comes, where that is later than now."""
    now = transaction.now
    slot = _slot(queue, rate, now)
    spacing, credit, burst = _terms(rate)
    for _ in range(count):
        slot = max(slot, now - credit) + spacing
    queue.next_slot_at = slot
    transaction.connection.execute(SQL.queue_slot, {"name": queue.name, "next_slot_at": slot})
    return slot - burst if slot - burst > now else None


def _slot(queue: _Queue, rate: Rate, now: int) -> int:
    """Read the next slot. None is ever further away than a full burst, unless the clock went back or the rate rose."""
    spacing, _, burst = _terms(rate)
    return min(queue.next_slot_at, now + spacing + burst)


def _terms(rate: Rate) -> tuple[int, int, int]:
    """Spacing, rounded up so as never to be too fast; what a late taker may catch up; how far a burst reaches ahead."""
    spacing = -(-(rate.period + rate.slack) // (MICROSECOND * (rate.count - rate.burst + 1)))
    return spacing, (rate.slack / 2) // MICROSECOND, (rate.burst - 1) * spacing


def _take(transaction: Transaction, request: ClaimRequest, taken: Sequence[_Taken], *, alone: bool) -> list[Claim]:
    """Make the picked jobs ours, in the store's own statement."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for batch in taken:
        groups.setdefault((batch.lease_us, batch.started), []).extend(job.seq for job in batch.jobs)
    for (lease_us, started), seqs in groups.items():
        transaction.connection.execute(
            SQL.claim,
            {
                "seqs": json_text(seqs),
                "worker_id": request.worker_id,
                "lease_us": lease_us,
                "started": int(started),
                "alone": int(alone),
                "now": transaction.now,
            },
        )
    return [_claim_of(job, batch, transaction.now) for batch in taken for job in batch.jobs]


def _claim_of(job: _Ready, batch: _Taken, now: int) -> Claim:
    return Claim(
        ref=JobRef(batch.queue, job.id),
        token=(job.seq, job.claim_no + 1),
        type=job.type,
        payload=job.payload,
        attempts=job.attempts + batch.started,
        started=batch.started,
        max_attempts=job.max_attempts,
        crashes=job.crashes,
        is_suspect=bool(job.suspect),
        org_id=job.org_id,
        priority=job.priority,
        backoff=backoff_of(job.backoff),
        waited=(now - job.ready_at) / 1e6,
        start_within=batch.start_within,
    )


def _claim_suspect(transaction: Transaction, request: ClaimRequest, ranges: Ranges) -> Claims:
    """Take the suspect that has waited longest and that its queue lets go now."""
    text = transaction.connection.execute(
        SQL.claim_pick_suspect, {"ranges": json_text(ranges), "now": transaction.now}
    ).fetchone()[0]
    suspects = _suspects_decoder.decode(text)
    for suspect in suspects:
        queue = suspect.queue
        rate = queue.rate
        allowed, _ = _allowed(transaction, queue, rate, 1)
        if not allowed:
            continue
        start_within = None
        if rate is not None:
            _advance(transaction, queue, rate, 1)
            start_within = (rate.slack / 2).total_seconds()
        lease_us = queue.lease_us or request.lease // MICROSECOND
        batch = _Taken(queue.name, [suspect.job], lease_us, started=True, start_within=start_within)
        claims = _take(transaction, request, [batch], alone=True)
        return Claims(claims=tuple(claims), suspects_wait=len(suspects) > 1)
    return Claims(suspects_wait=bool(suspects), again_in=_next_slot_in(transaction, ranges))


def _next_slot_in(transaction: Transaction, ranges: Ranges) -> float | None:
    found = transaction.connection.execute(SQL.claim_next_slot, {"ranges": json_text(ranges)}).fetchone()
    return None if found is None else max(0, found[0] - transaction.now) / 1e6
