"""Takes jobs: fair across queues, within their limits.

A claim looks at *open* queues only: those where, as far as is known, a job could be taken now. It goes round them by
name from where it left off, takes from each as many as its weight says, and closes those in which it finds nothing, or
nothing yet. So a million jobs in one queue do not delay the first of another, and ten thousand queues that are paused,
limited, full or empty cost a claim nothing.

The rate (:class:`~onward.engine.values.Rate`): a limited queue has one number, the moment of its next permit. Taking a
permit at *t* moves it to ``max(permit, t - credit) + spacing``. With the spacing of ``Rate`` no window of the period
can hold more than ``count`` handler starts, provided that each starts within ``start_within`` of its permit; see
docs/explain/rates.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from onward.clock import MICROSECOND
from onward.engine.claim_number import new_claim_no
from onward.engine.limits import Pace
from onward.engine.values import Claim, ClaimRequest, Claims, Rate
from onward.engines.sqlite.round_robin import RoundRobin, successor
from onward.engines.sqlite.rows import backoff_of, json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.engines.sqlite.unreadable import READ_ERRORS, fail_unreadable, is_unreadable
from onward.job import JobRef

_LAST_NAME = "\U0010ffff"
_MAX_INLINE_PAYLOAD: Final = 65_536
"""Characters of a payload that comes with its row; a longer one is read by itself, if it is claimed."""
_MAX_CLAIM_SIZE: Final = 32 * 1024 * 1024
"""Characters of payload in one claim. More jobs are left for the next one, which follows at once."""
_MAX_ROWS: Final = 1024
"""A queue whose payloads have become short is no longer looked at in so few rows."""

Ranges = list[tuple[str, str]]


class _Queue(msgspec.Struct, array_like=True):
    name: str
    weight: int
    lease_us: int | None
    global_concurrency: int | None
    rate_count: int | None
    rate_period_us: int | None
    rate_burst: int | None
    next_permit_at: int

    @property
    def rate(self) -> Rate | None:
        if self.rate_count is None or self.rate_period_us is None or self.rate_burst is None:
            return None
        return Rate(self.rate_count, timedelta(microseconds=self.rate_period_us), self.rate_burst)


class _ReadyJob(msgspec.Struct, array_like=True):
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
    ready_at: int
    trace: str | None
    long_payload: int
    """Characters of a payload that did not come with the row; 0: it did."""


class _Suspect(msgspec.Struct, array_like=True):
    """A suspect and its queue: a row of ``sql/claim_pick_suspect.sql``."""

    job: _ReadyJob
    queue: _Queue


_queues_decoder = msgspec.json.Decoder(list[_Queue])
_ready_job_decoder = msgspec.json.Decoder(_ReadyJob)
_ready_jobs_decoder = msgspec.json.Decoder(list[_ReadyJob])
_suspects_decoder = msgspec.json.Decoder(list[_Suspect])


@dataclass(slots=True)
class _PickedJobs:
    """The jobs of one queue that a claim has picked."""

    queue: str
    jobs: list[_ReadyJob]
    lease_us: int
    started: bool
    start_within: float | None


@dataclass(slots=True)
class _Capacity:
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
    ranges = []
    for pattern in patterns:
        if pattern == "*":
            ranges.append(("", _LAST_NAME))
        elif pattern.endswith("/*"):
            ranges.append((pattern[:-1], pattern[:-2] + "0"))  # "0" comes right after "/"
        else:
            ranges.append((pattern, successor(pattern)))
    merged: Ranges = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


def claim(transaction: Transaction, request: ClaimRequest) -> Claims:
    """Take what the request has room for."""
    round_robin = transaction.round_robins.setdefault(request.queues, RoundRobin())
    ranges = ranges_of(request.queues)
    if request.alone:
        return _claim_suspect(transaction, request, ranges)
    claim_pass = _ClaimPass(transaction, request, ranges, round_robin)
    has_suspects = claim_pass.run()
    claims = _claim_picked(transaction, request, claim_pass.picked)
    retry_after = _next_permit_in(transaction, ranges) if claim_pass.capacity.left else None
    if claim_pass.is_cut_short:
        retry_after = 0.0
    return Claims(claims=tuple(claims), has_suspects=has_suspects, retry_after=retry_after)


class _ClaimPass:
    """One claim on its way round the open queues."""

    def __init__(
        self, transaction: Transaction, request: ClaimRequest, ranges: Ranges, round_robin: RoundRobin
    ) -> None:
        self.capacity = _Capacity(request.slots, request.prefetch_started, request.prefetch_claimed)
        self.picked: list[_PickedJobs] = []
        self.is_cut_short = False
        """More could have been taken, but for the size of the payloads: ask again at once."""
        self._size_left = _MAX_CLAIM_SIZE
        self._transaction = transaction
        self._request = request
        self._ranges = json_text(ranges)
        self._round_robin = round_robin

    def run(self) -> bool:
        """Give each queue its turn, then let those with more to give fill what room is left.

        Answers whether a suspect waits.
        """
        if not self.capacity.left:
            return False
        queues, due, has_suspects = self._open_queues("", self.capacity.left)
        if due:
            self._transaction.execute(SQL.queue_reopen_due, {"now": self._transaction.now})
            queues, _, _ = self._open_queues("", self.capacity.left)
        not_exhausted: list[_Queue] = []
        if len(queues) < self.capacity.left:  # that is all there are
            turns = max(1, self.capacity.left // sum(queue.weight for queue in queues)) if queues else 1
            self._give_turns(self._rotated(queues), turns, not_exhausted)
        else:
            self._give_turns(self._page_round(), 1, not_exhausted)
        for queue in not_exhausted:
            if not self.capacity.left:
                break
            self._pick_from(queue, self.capacity.left)
            self._round_robin.advance_past(queue.name)
        return has_suspects

    def _give_turns(self, queues: Iterable[_Queue], turns: int, not_exhausted: list[_Queue]) -> None:
        """Take each queue's turn; where the room ends within one, the next claim goes on there."""
        for queue in queues:
            turn = self._round_robin.turn_size(queue.name, queue.weight * turns)
            count, has_more = self._pick_from(queue, turn)
            self._round_robin.advance_past(queue.name)
            if not self.capacity.left:
                if has_more and count < turn:
                    self._round_robin.resume_at(queue.name, turn - count)
                not_exhausted.clear()
                return
            if has_more:
                not_exhausted.append(queue)

    def _rotated(self, queues: list[_Queue]) -> Iterator[_Queue]:
        """Begin a full list with the queue whose turn it is."""
        first = self._round_robin.next_name
        yield from (queue for queue in queues if queue.name >= first)
        yield from (queue for queue in queues if queue.name < first)

    def _page_round(self) -> Iterator[_Queue]:
        """Go round the open queues from where the last claim ended, no further than there is room."""
        first = self._round_robin.next_name
        yield from self._page_range(first, None)
        if first:
            yield from self._page_range("", first)

    def _page_range(self, first: str, end: str | None) -> Iterator[_Queue]:
        while self.capacity.left:
            limit = self.capacity.left
            queues, _, _ = self._open_queues(first, limit)
            for queue in queues:
                if end is not None and queue.name >= end:
                    return
                yield queue
            if len(queues) < limit:
                return
            first = successor(queues[-1].name)

    def _open_queues(self, first: str, limit: int) -> tuple[list[_Queue], bool, bool]:
        """List open queues from a name on; say whether a rate permit has come due, and whether a suspect waits."""
        listed, due, has_suspects = self._transaction.execute(
            SQL.claim_open_queues,
            {"ranges": self._ranges, "first": first, "limit": limit, "now": self._transaction.now},
        ).fetchone()
        return _queues_decoder.decode(listed), bool(due), bool(has_suspects)

    def _pick_from(self, queue: _Queue, turn: int) -> tuple[int, bool]:
        """Pick at most ``turn`` jobs of a queue; answer how many, and whether it may have more.

        A queue from which no more is to be had for now is closed.
        """
        transaction, rate = self._transaction, queue.rate
        # A limited queue is never claimed ahead of a free slot.
        wanted = min(
            turn, self.capacity.left if rate is None and queue.global_concurrency is None else self.capacity.slots
        )
        if wanted == 0:
            return 0, False
        already_picked = sum(len(batch.jobs) for batch in self.picked if batch.queue == queue.name)
        permitted, reopens_at = _permitted(transaction, queue, rate, wanted, already_picked)
        jobs = self._pick_to_size(queue.name, permitted, already_picked) if permitted else []
        if jobs and rate is not None:
            reopens_at = _use_permits(transaction, queue, rate, len(jobs))
        self._add_picked(queue, rate, jobs)
        if self.is_cut_short:  # the queue stays open
            self.capacity = _Capacity(0, 0, 0)
            return len(jobs), True
        if len(jobs) == wanted and reopens_at is None:
            return len(jobs), True
        is_limited = len(jobs) == permitted  # and not by its number of jobs
        closed = {"name": queue.name, "reopens_at": reopens_at if is_limited else None}
        transaction.execute(SQL.queue_close, closed)
        return len(jobs), False

    def _pick_to_size(self, queue: str, limit: int, already_picked: int) -> list[_ReadyJob]:
        """Pick jobs, with their payloads, until these become too much for one claim; one job is never too much."""
        row_limits = self._round_robin.row_limits
        rows = min(limit, row_limits.get(queue, limit))
        found = _pick(self._transaction, queue, rows, already_picked)
        jobs: list[_ReadyJob] = []
        for job in found:
            size = job.long_payload or len(job.payload)
            if size > self._size_left and (jobs or self.picked):
                self.is_cut_short = True
                break
            self._size_left -= size
            if job.long_payload and not _load_payload(self._transaction, job):
                self.is_cut_short = True
                continue
            jobs.append(job)
        if self.is_cut_short:
            row_limits[queue] = max(2 * len(jobs), 2)
        elif queue in row_limits and len(found) == rows:
            self.is_cut_short = rows < limit
            row_limits[queue] = rows * 2
            if row_limits[queue] >= _MAX_ROWS:
                del row_limits[queue]
        return jobs

    def _add_picked(self, queue: _Queue, rate: Rate | None, jobs: list[_ReadyJob]) -> None:
        started = self.capacity.take(len(jobs))
        lease_us = queue.lease_us or self._request.lease // MICROSECOND
        if started:
            start_within = None if rate is None else Pace.of(rate).start_within
            self.picked.append(
                _PickedJobs(queue.name, jobs[:started], lease_us, started=True, start_within=start_within)
            )
        if jobs[started:]:
            self.picked.append(_PickedJobs(queue.name, jobs[started:], lease_us, started=False, start_within=None))


def _pick(transaction: Transaction, queue: str, limit: int, already_picked: int) -> list[_ReadyJob]:
    named = {"queue": queue, "limit": limit + already_picked, "now": transaction.now, "max_inline": _MAX_INLINE_PAYLOAD}
    while True:
        try:
            jobs = _ready_jobs_decoder.decode(transaction.execute(SQL.claim_pick, named).fetchone()[0])
            for job in jobs:
                if job.backoff is not None:
                    backoff_of(job.backoff)
        except READ_ERRORS as error:
            if not is_unreadable(error) or not _fail_unreadable_jobs(transaction, named):
                raise
        else:
            return jobs[already_picked:]


def _load_payload(transaction: Transaction, job: _ReadyJob) -> bool:
    """Read a payload that did not come with its row; False: it cannot be read, and the job has been failed."""
    try:
        job.payload = transaction.execute(SQL.claim_pick_payload, {"seq": job.seq}).fetchone()[0]
    except READ_ERRORS as error:
        if not is_unreadable(error):
            raise
        fail_unreadable(transaction, job.seq, error)
        return False
    return True


def _fail_unreadable_jobs(transaction: Transaction, named: Mapping[str, Any]) -> int:
    """Look at the next jobs of a queue one by one, and fail those that cannot be read; answer how many."""
    failed = 0
    for (seq,) in transaction.execute(SQL.claim_pick_seqs, named).fetchall():
        try:
            job = _ready_job_decoder.decode(transaction.execute(SQL.claim_pick_one, {"seq": seq}).fetchone()[0])
            backoff_of(job.backoff)
        except READ_ERRORS as error:
            if not is_unreadable(error):
                raise
            fail_unreadable(transaction, seq, error)
            failed += 1
    return failed


def _permitted(
    transaction: Transaction, queue: _Queue, rate: Rate | None, wanted: int, already_picked: int = 0
) -> tuple[int, int | None]:
    """Say how many jobs the queue's limits let go now, and when the rate lets the next one go if that is later.

    ``already`` jobs of it have been picked by this claim and are not yet written.
    """
    reopens_at = None
    if queue.global_concurrency is not None:
        held = transaction.execute(SQL.held_count, {"queue": queue.name}).fetchone()[0]
        wanted = min(wanted, max(0, queue.global_concurrency - held - already_picked))
    if rate is not None:
        _clamp_next_permit(transaction, queue, rate)
        wanted, reopens_at = _free_permits(queue, rate, wanted, transaction.now)
    return wanted, reopens_at


def _free_permits(queue: _Queue, rate: Rate, wanted: int, now: int) -> tuple[int, int | None]:
    """Count the permits that are free now, up to ``wanted``; say when the next one comes, where that is later."""
    pace = Pace.of(rate)
    count = pace.free(queue.next_permit_at, now, wanted)
    due_at = pace.due_at(pace.take(queue.next_permit_at, now, count), now)
    return count, (due_at if due_at > now else None)


def _use_permits(transaction: Transaction, queue: _Queue, rate: Rate, count: int) -> int | None:
    """Use up so many permits; answer when the next one comes, where that is later than now."""
    now, pace = transaction.now, Pace.of(rate)
    queue.next_permit_at = pace.take(queue.next_permit_at, now, count)
    transaction.execute(SQL.queue_set_next_permit, {"name": queue.name, "next_permit_at": queue.next_permit_at})
    due_at = pace.due_at(queue.next_permit_at, now)
    return due_at if due_at > now else None


def _clamp_next_permit(transaction: Transaction, queue: _Queue, rate: Rate) -> None:
    """Write a permit down that was brought closer: see :meth:`Pace.clamp`."""
    clamped = Pace.of(rate).clamp(queue.next_permit_at, transaction.now)
    if clamped != queue.next_permit_at:
        queue.next_permit_at = clamped
        transaction.execute(SQL.queue_set_next_permit, {"name": queue.name, "next_permit_at": clamped})


def _claim_picked(transaction: Transaction, request: ClaimRequest, picked: Sequence[_PickedJobs]) -> list[Claim]:
    """Make the picked jobs ours, in the store's own statement."""
    claim_no = new_claim_no()
    groups: dict[tuple[int, bool], list[int]] = {}
    for batch in picked:
        groups.setdefault((batch.lease_us, batch.started), []).extend(job.seq for job in batch.jobs)
    for (lease_us, started), seqs in groups.items():
        transaction.execute(
            SQL.claim,
            {
                "seqs": json_text(seqs),
                "claim_no": claim_no,
                "worker_id": request.worker_id,
                "lease_us": lease_us,
                "started": int(started),
                "now": transaction.now,
            },
        )
    return [_claim_of(job, batch, claim_no, transaction.now) for batch in picked for job in batch.jobs]


def _claim_of(job: _ReadyJob, batch: _PickedJobs, claim_no: int, now: int) -> Claim:
    return Claim(
        ref=JobRef(batch.queue, job.id),
        token=(job.seq, claim_no),
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
        wait_seconds=max(0, now - job.ready_at) / 1e6,  # the clock may have been set back
        start_within=batch.start_within,
    )


def _claim_suspect(transaction: Transaction, request: ClaimRequest, ranges: Ranges) -> Claims:
    """Take the suspect that has waited longest and that its queue lets go now."""
    text = transaction.execute(
        SQL.claim_pick_suspect,
        {"ranges": json_text(ranges), "now": transaction.now, "max_inline": _MAX_INLINE_PAYLOAD},
    ).fetchone()[0]
    suspects = _suspects_decoder.decode(text)
    for suspect in suspects:
        queue = suspect.queue
        rate = queue.rate
        permitted, _ = _permitted(transaction, queue, rate, 1)
        if not permitted or (suspect.job.long_payload and not _load_payload(transaction, suspect.job)):
            continue
        start_within = None
        if rate is not None:
            _use_permits(transaction, queue, rate, 1)
            start_within = Pace.of(rate).start_within
        lease_us = queue.lease_us or request.lease // MICROSECOND
        batch = _PickedJobs(queue.name, [suspect.job], lease_us, started=True, start_within=start_within)
        claims = _claim_picked(transaction, request, [batch])
        return Claims(claims=tuple(claims), has_suspects=len(suspects) > 1)
    return Claims(has_suspects=bool(suspects), retry_after=_next_permit_in(transaction, ranges))


def _next_permit_in(transaction: Transaction, ranges: Ranges) -> float | None:
    found = transaction.execute(SQL.claim_next_permit, {"ranges": json_text(ranges)}).fetchone()
    return None if found is None else max(0, found[0] - transaction.now) / 1e6
