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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims, Rate
from onward.engines.sqlite.rows import backoff_of, json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.job import JobRef

_LAST_NAME = "\U0010ffff"

Ranges = list[tuple[str, str]]


class Round:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    def __init__(self) -> None:
        self.next_name = ""
        self._turn_left = 0
        """What the queue at ``next_name`` may still have of its turn; 0: its whole turn."""

    def turn_of(self, name: str, whole: int) -> int:
        """Say how many jobs a queue may give in its turn, or in what is left of it."""
        return self._turn_left if self._turn_left and name == self.next_name else whole

    def go_on_after(self, name: str) -> None:
        """A queue has had its turn."""
        self.next_name, self._turn_left = after(name), 0

    def go_on_at(self, name: str, left: int) -> None:
        """A queue has had a part of its turn."""
        self.next_name, self._turn_left = name, left


class _Queue(msgspec.Struct, array_like=True):
    name: str
    weight: int
    lease_us: int | None
    concurrency: int | None
    rate_count: int | None
    rate_period_us: int | None
    rate_burst: int | None
    next_permit_at: int

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
    trace: str | None


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
    """What a worker can still take: the free slots first, then those free in a moment, then what it may claim ahead."""

    slots: int
    prefetch_started: int
    prefetch_claimed: int

    @property
    def left(self) -> int:
        return self.slots + self.prefetch_started + self.prefetch_claimed

    def take(self, count: int) -> int:
        """Use room up; answer how many of these start at once."""
        now = min(count, self.slots)
        prefetch_started = min(count - now, self.prefetch_started)
        self.slots -= now
        self.prefetch_started -= prefetch_started
        self.prefetch_claimed -= count - now - prefetch_started
        return now + prefetch_started


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
    tour = _Tour(transaction, request, ranges, round_)
    has_suspects = tour.run()
    claims = _take(transaction, request, tour.taken, isolated=False)
    retry_after = _next_slot_in(transaction, ranges) if tour.room.left else None
    return Claims(claims=tuple(claims), has_suspects=has_suspects, retry_after=retry_after)


class _Tour:
    """One claim on its way round the open queues."""

    def __init__(self, transaction: Transaction, request: ClaimRequest, ranges: Ranges, round_: Round) -> None:
        self.room = _Room(request.slots, request.prefetch_started, request.prefetch_claimed)
        self.taken: list[_Taken] = []
        self._transaction = transaction
        self._request = request
        self._ranges = json_text(ranges)
        self._round = round_

    def run(self) -> bool:
        """Give each queue its turn, then let those with more to give fill what room is left.

        Answers whether a suspect waits.
        """
        if not self.room.left:
            return False
        queues, due, has_suspects = self._look("", self.room.left)
        if due:
            self._transaction.execute(SQL.queue_reopen_due, {"now": self._transaction.now})
            queues, _, _ = self._look("", self.room.left)
        willing: list[_Queue] = []
        if len(queues) < self.room.left:  # that is all there are
            turns = max(1, self.room.left // sum(queue.weight for queue in queues)) if queues else 1
            self._give_turns(self._turned(queues), turns, willing)
        else:
            self._give_turns(self._all_round(), 1, willing)
        for queue in willing:
            if not self.room.left:
                break
            self._visit(queue, self.room.left)
            self._round.go_on_after(queue.name)
        return has_suspects

    def _give_turns(self, queues: Iterable[_Queue], turns: int, willing: list[_Queue]) -> None:
        """Take each queue's turn; where the room ends within one, the next claim goes on there."""
        for queue in queues:
            turn = self._round.turn_of(queue.name, queue.weight * turns)
            got, has_more = self._visit(queue, turn)
            self._round.go_on_after(queue.name)
            if not self.room.left:
                if has_more and got < turn:
                    self._round.go_on_at(queue.name, turn - got)
                willing.clear()
                return
            if has_more:
                willing.append(queue)

    def _turned(self, queues: list[_Queue]) -> Iterator[_Queue]:
        """Begin a full list with the queue whose turn it is."""
        first = self._round.next_name
        yield from (queue for queue in queues if queue.name >= first)
        yield from (queue for queue in queues if queue.name < first)

    def _all_round(self) -> Iterator[_Queue]:
        """Go round the open queues from where the last claim ended, no further than there is room."""
        first = self._round.next_name
        yield from self._onward(first, None)
        if first:
            yield from self._onward("", first)

    def _onward(self, first: str, end: str | None) -> Iterator[_Queue]:
        while self.room.left:
            limit = self.room.left
            queues, _, _ = self._look(first, limit)
            for queue in queues:
                if end is not None and queue.name >= end:
                    return
                yield queue
            if len(queues) < limit:
                return
            first = after(queues[-1].name)

    def _look(self, first: str, limit: int) -> tuple[list[_Queue], bool, bool]:
        """List open queues from a name on; say whether a rate slot has come due, and whether a suspect waits."""
        listed, due, has_suspects = self._transaction.execute(
            SQL.claim_open_queues,
            {"ranges": self._ranges, "first": first, "limit": limit, "now": self._transaction.now},
        ).fetchone()
        return _queues_decoder.decode(listed), bool(due), bool(has_suspects)

    def _visit(self, queue: _Queue, turn: int) -> tuple[int, bool]:
        """Pick at most ``turn`` jobs of a queue; answer how many, and whether it may have more.

        A queue from which no more is to be had for now is closed.
        """
        transaction, rate = self._transaction, queue.rate
        # A limited queue is never claimed ahead of a free slot.
        wanted = min(turn, self.room.left if rate is None and queue.concurrency is None else self.room.slots)
        if wanted == 0:
            return 0, False
        already = sum(len(batch.jobs) for batch in self.taken if batch.queue == queue.name)
        allowed, reopens_at = _allowed(transaction, queue, rate, wanted, already)
        jobs = _pick(transaction, queue.name, allowed, already) if allowed else []
        if jobs and rate is not None:
            reopens_at = _advance(transaction, queue, rate, len(jobs))
        self._keep(queue, rate, jobs)
        if len(jobs) == wanted and reopens_at is None:
            return len(jobs), True
        limited = len(jobs) == allowed  # and not by its number of jobs
        closed = {"name": queue.name, "reopens_at": reopens_at if limited else None}
        transaction.execute(SQL.queue_close, closed)
        return len(jobs), False

    def _keep(self, queue: _Queue, rate: Rate | None, jobs: list[_Ready]) -> None:
        started = self.room.take(len(jobs))
        lease_us = queue.lease_us or self._request.lease // MICROSECOND
        if started:
            start_within = None if rate is None else (rate.slack / 2).total_seconds()
            self.taken.append(_Taken(queue.name, jobs[:started], lease_us, started=True, start_within=start_within))
        if jobs[started:]:
            self.taken.append(_Taken(queue.name, jobs[started:], lease_us, started=False, start_within=None))


def _pick(transaction: Transaction, queue: str, limit: int, already: int) -> list[_Ready]:
    text = transaction.execute(
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
        held = transaction.execute(SQL.held_count, {"queue": queue.name}).fetchone()[0]
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
    queue.next_permit_at = slot
    transaction.execute(SQL.queue_set_next_permit, {"name": queue.name, "next_permit_at": slot})
    return slot - burst if slot - burst > now else None


def _slot(queue: _Queue, rate: Rate, now: int) -> int:
    """Read the next slot. None is ever further away than a full burst, unless the clock went back or the rate rose."""
    spacing, _, burst = _terms(rate)
    return min(queue.next_permit_at, now + spacing + burst)


def _terms(rate: Rate) -> tuple[int, int, int]:
    """Spacing, rounded up so as never to be too fast; what a late taker may catch up; how far a burst reaches ahead."""
    spacing = -(-(rate.period + rate.slack) // (MICROSECOND * (rate.count - rate.burst + 1)))
    return spacing, (rate.slack / 2) // MICROSECOND, (rate.burst - 1) * spacing


def _take(transaction: Transaction, request: ClaimRequest, taken: Sequence[_Taken], *, isolated: bool) -> list[Claim]:
    """Make the picked jobs ours, in the store's own statement."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for batch in taken:
        groups.setdefault((batch.lease_us, batch.started), []).extend(job.seq for job in batch.jobs)
    for (lease_us, started), seqs in groups.items():
        transaction.execute(
            SQL.claim,
            {
                "seqs": json_text(seqs),
                "worker_id": request.worker_id,
                "lease_us": lease_us,
                "started": int(started),
                "isolated": int(isolated),
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
        trace=job.trace,
        waited=(now - job.ready_at) / 1e6,
        start_within=batch.start_within,
    )


def _claim_suspect(transaction: Transaction, request: ClaimRequest, ranges: Ranges) -> Claims:
    """Take the suspect that has waited longest and that its queue lets go now."""
    text = transaction.execute(
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
        claims = _take(transaction, request, [batch], isolated=True)
        return Claims(claims=tuple(claims), has_suspects=len(suspects) > 1)
    return Claims(has_suspects=bool(suspects), retry_after=_next_slot_in(transaction, ranges))


def _next_slot_in(transaction: Transaction, ranges: Ranges) -> float | None:
    found = transaction.execute(SQL.claim_next_permit, {"ranges": json_text(ranges)}).fetchone()
    return None if found is None else max(0, found[0] - transaction.now) / 1e6
