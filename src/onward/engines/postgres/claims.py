"""Takes jobs. What makes a claim fair and keeps it within limits is in the store: ``migrations/0004_claims.sql``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from onward.backoff import Backoff
from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims, Token
from onward.engines.postgres.rows import backoff_of, failure_text, ranges_of
from onward.engines.postgres.statements import Schema
from onward.job import JobRef
from onward.lifecycle import Failure
from onward.pg import arrays
from onward.pg.listener import ALL_QUEUES, CANCELLED, DUE, SETTINGS_CHANGED
from onward.pg.plan_runner import Plan, Row, Statement
from onward.validation import matches

log = logging.getLogger("onward.engines.postgres")

_ANY_QUEUE: Final = frozenset({ALL_QUEUES, SETTINGS_CHANGED})
_NOT_QUEUES: Final = frozenset({DUE, CANCELLED})
_MAX_NOTIFIED: Final = 100
"""Queues with news that are kept in mind."""
MAX_CLAIM_SIZE: Final = 2 * 1024 * 1024
"""Bytes of payload in one claim: ``onward.max_claim_size``. An answer that is longer may have been cut short."""
_READ_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading a job may raise that was written by hand."""
_MAX_VISITS: Final = 150
"""Lanes in one claim, on the average: a visit costs as much as ten jobs, and meanwhile the first job of another queue
waits."""
_SINGLE_CLAIM_INTERVAL: Final = 0.1
"""Seconds between two claims of nothing but one job: whoever enqueues all the time must not slow down the tour."""
_MAX_CLAIM: Final = 10_000
"""Jobs in one claim: more than anybody asks for."""
_FULL_SCAN_INTERVAL: Final = 0.5
"""Seconds for which a look at all queues that found nothing more is good: until then only those with news are asked."""
_MAX_FULL_SCAN_INTERVAL: Final = 2.0
_FULL_SCAN_FACTOR: Final = 100
"""Of a worker's time that goes into such looks, one part in so many, unless it would look later than that."""
_SLOW_FULL_SCAN: Final = 0.003
"""Seconds from which on a look at all queues is long: there are hundreds of them."""


@dataclass(slots=True)
class RoundRobin:
    """Where a worker is on its way round some queues. Kept in memory: each worker goes its own way round."""

    next_name: str = ""
    turn_left: int = 0
    """What the queue at ``next_name`` may still have of its turn; 0: its whole turn."""
    notified: dict[str, None] = field(default_factory=dict)
    """Queues that were told to have new jobs: each gives one before the tour goes on, however far away it is."""
    room: int = 0
    """How many jobs were asked for last."""
    has_more: bool = False
    """Whether so many came: then there may be queues that the tour has not come to."""
    max_jobs: int = _MAX_CLAIM
    """How many jobs to ask for at most, by how many each visit gave the last time."""
    is_capped: bool = False
    """Whether more would have been welcome."""
    single_claim_at: float = -math.inf
    """When nothing was last asked for but a job of a queue with news."""
    is_listening: bool = False
    """Whether somebody listens: who does not hears of nothing new."""
    needs_full_scan: bool = True
    """Whether it was told that there is work, and not where. It is told, too, when somebody begins to listen."""
    full_scan_at: float = -math.inf
    """When all queues were last looked at, if that found less than there was room for, and nothing to wait for."""
    sent_at: float = -math.inf
    """When a claim was last sent."""
    is_full_scan: bool = True
    """Whether that was for all queues."""
    full_scan_time: float = 0.0
    """Seconds that the last look at all queues took."""

    def add_notice(self, patterns: Sequence[str], names: Sequence[str]) -> None:
        """Take in which queues have new jobs."""
        for name in names:
            if name in _ANY_QUEUE:
                self.needs_full_scan = True
            elif (
                name not in self.notified and name not in _NOT_QUEUES and any(matches(each, name) for each in patterns)
            ):
                if len(self.notified) < _MAX_NOTIFIED:
                    self.notified[name] = None
                else:
                    self.needs_full_scan = True
                    return  # the rest makes no difference any more

    def queues_to_check(self, *, is_idle: bool) -> tuple[str, ...] | None:
        """Take out the queues where there can be something new; None: it may be in any, or it pays to ask all of them.

        It does not where a look at all of them takes long, or where a worker ``is_idle`` and is told of one.
        """
        if not self.is_listening or self.needs_full_scan or self.next_full_scan_in() <= 0:
            return None
        if self.full_scan_time <= _SLOW_FULL_SCAN and not (is_idle and len(self.notified) == 1):
            return None
        names, self.notified = self.notified, {}  # what is heard from now on is for the next claim
        return tuple(sorted(names))

    def next_full_scan_in(self) -> float:
        """Say for how many seconds more there is no need for a tour."""
        interval = min(max(_FULL_SCAN_INTERVAL, self.full_scan_time * _FULL_SCAN_FACTOR), _MAX_FULL_SCAN_INTERVAL)
        return self.full_scan_at + interval - monotonic()

    @contextmanager
    def rescan_on_failure(self) -> Iterator[None]:
        """If the claim fails in this block, nobody has looked where there was news: it may be anywhere."""
        try:
            yield
        except BaseException:
            self.needs_full_scan = True
            raise

    def next_notified(self) -> str | None:
        """Take out a queue that has new jobs; None: there is none, or the tour comes to all of them anyway."""
        if not self.has_more:
            self.notified.clear()
        name = next(iter(self.notified), None)
        if name is not None:
            del self.notified[name]
        return name


class _Unusual(msgspec.Struct, array_like=True):
    """What is not as it is with most jobs."""

    seq: int
    attempts: int
    max_attempts: int
    crashes: int
    org_id: str | None
    backoff: Backoff | None
    trace: str | None


class _Visit(msgspec.Struct, array_like=True):
    """What one lane gave, as the store writes it: see the type ``onward.answer``."""

    queue: str
    priority: int
    started: bool
    start_within: float | None
    is_suspect: bool
    seqs: str
    ids: str
    types: str | list[str]
    wait_seconds: list[float]
    unusual: list[_Unusual] | None
    payloads: list[msgspec.Raw]


_visits_decoder: Final = msgspec.json.Decoder(list[_Visit])
_payload_decoder: Final = msgspec.json.Decoder(msgspec.Raw)


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A claimed job whose row was written by hand so that it cannot be read here."""

    token: Token
    ref: JobRef
    reason: str


def fail_unreadable(schema: Schema, jobs: Sequence[UnreadableJob]) -> Plan[None]:
    """Fail jobs that cannot be read, each with its reason, so that they stop no other."""
    for job in jobs:
        log.error("job failed: its row cannot be read", extra={"job_id": job.ref.id, "queue": job.ref.queue})
    jobs = sorted(jobs, key=lambda job: job.token)
    failures = [Failure("UnreadableJob", f"its row cannot be read: {job.reason}") for job in jobs]
    seqs, claim_nos = zip(*[job.token for job in jobs], strict=True)
    texts = [arrays.texts([str(failure) for failure in failures]), arrays.texts(list(map(failure_text, failures)))]
    values = [schema.now, schema.channel, arrays.whole(seqs), arrays.whole(claim_nos), *texts]
    yield Statement(schema.fail_unreadable, values)


def claim(schema: Schema, request: ClaimRequest, rotation: RoundRobin) -> Plan[Claims]:
    """Take what the request has room for."""
    if request.alone:
        lease = request.lease // MICROSECOND
        values = [schema.now, request.worker_id, *_ranges(request.queues), lease]
        ((jobs, has_suspects, retry_after, *_, claim_no),) = yield Statement(schema.claim_suspect, values)
        (claims,) = (yield from _read_visits(schema, jobs, claim_no)) or [[]]  # it is no step of the tour
        return Claims(claims=tuple(claims), has_suspects=has_suspects, retry_after=retry_after)
    queues_to_check = rotation.queues_to_check(is_idle=True)
    if queues_to_check == ():
        return no_claims(rotation)
    with rotation.rescan_on_failure():
        if queues_to_check is not None and len(queues_to_check) == 1 and request.slots and not request.prefetch_claimed:
            found = yield from _claim_queue(schema, request, rotation, queues_to_check[0])
            if found is not None:
                return found
            queues_to_check = None
        (answer,) = yield Statement(schema.claim, [schema.now, *claim_values(request, rotation, queues_to_check)])
    return (yield from read_claims(schema, answer, rotation))


def no_claims(rotation: RoundRobin) -> Claims:
    """Answer a claim for which no queue needs to be asked."""
    return Claims(retry_after=max(rotation.next_full_scan_in(), 0.0))


def _claim_queue(schema: Schema, request: ClaimRequest, rotation: RoundRobin, queue: str) -> Plan[Claims | None]:
    """Take jobs of a single queue; None: something is said of that queue, so that it takes a tour."""
    room = request.slots + request.prefetch_started
    rows = yield queue_claim_statement(schema, request, queue, room)
    found, unreadable = read_queue_claims(queue, room, rows, rotation)
    if unreadable:
        yield from fail_unreadable(schema, unreadable)
    return found


def queue_claim_statement(schema: Schema, request: ClaimRequest, queue: str, room: int) -> Statement:
    """Ask for jobs of a single queue."""
    return Statement(schema.claim_queue, [schema.now, request.worker_id, queue, room, request.lease // MICROSECOND])


def read_queue_claims(
    queue: str, room: int, rows: Sequence[Row], rotation: RoundRobin
) -> tuple[Claims | None, list[UnreadableJob]]:
    """Read what a single queue gave, and what of it cannot be read; None: its settings say that it takes a tour."""
    if rows and rows[0][0] is None:
        return None, []
    claims, unreadable = _read_rows((queue, row) for row in rows)
    claims.sort(key=lambda claim: (-claim.priority, -claim.wait_seconds, claim.token))
    rotation.is_full_scan = False
    if len(rows) >= room or sum(len(claim.payload) for claim in claims) >= MAX_CLAIM_SIZE:
        rotation.full_scan_at = -math.inf  # there may be more, and elsewhere too
    return Claims(claims=tuple(claims), retry_after=max(rotation.next_full_scan_in(), 0.0)), unreadable


def _read_rows(rows: Iterable[tuple[str, Row]]) -> tuple[list[Claim], list[UnreadableJob]]:
    """Read jobs that came as rows, each with its queue."""
    claims: list[Claim] = []
    unreadable: list[UnreadableJob] = []
    for queue, row in rows:
        try:
            claims.append(_claim_from_row(queue, row))
        except _READ_ERRORS as error:
            unreadable.append(_unreadable(queue, row, error))
    return claims, unreadable


def _unreadable(queue: str, row: Row, error: Exception) -> UnreadableJob:
    reason = str(error).encode("utf-8", "replace").decode().replace("\0", "?")[:500]
    return UnreadableJob((row[0], row[1]), JobRef(queue, row[2]), reason)


def _claim_from_row(queue: str, row: Row) -> Claim:
    seq, claim_no, job_id, type_, priority, wait_seconds, attempts, max_attempts, crashes, org_id, *more = row
    backoff, trace, payload = more
    return Claim(
        ref=JobRef(queue, job_id),
        token=(seq, claim_no),
        type=type_,
        payload=payload,
        attempts=attempts,
        started=True,
        max_attempts=max_attempts,
        crashes=crashes,
        org_id=org_id,
        priority=priority,
        backoff=backoff_of(backoff),
        trace=trace,
        wait_seconds=wait_seconds,
    )


def claim_values(
    request: ClaimRequest, rotation: RoundRobin, queues_to_check: tuple[str, ...] | None = None
) -> list[Any]:
    """Lay a request out as the store wants it; for some of its queues only, where ``queues_to_check`` are given."""
    rotation.is_full_scan = queues_to_check is None
    notified = rotation.next_notified() if rotation.is_full_scan else None
    wanted = request.slots + request.prefetch_started + request.prefetch_claimed
    max_jobs = rotation.max_jobs
    if (
        notified is not None
        and max_jobs < wanted
        and (now := monotonic()) - rotation.single_claim_at > _SINGLE_CLAIM_INTERVAL
    ):
        max_jobs, rotation.single_claim_at = 1, now  # in a long tour, its job does not wait for others
    slots = min(request.slots, max_jobs)
    prefetch_started = min(request.prefetch_started, max_jobs - slots)
    prefetch_claimed = min(request.prefetch_claimed, max_jobs - slots - prefetch_started)
    rotation.room = slots + prefetch_started + prefetch_claimed
    rotation.is_capped = rotation.room < wanted
    rotation.sent_at = monotonic()
    if rotation.is_full_scan:
        rotation.needs_full_scan = False
        rotation.full_scan_at = -math.inf
    return [
        request.worker_id,
        *_ranges(queues_to_check or request.queues),
        slots,
        prefetch_started,
        prefetch_claimed,
        request.lease // MICROSECOND,
        rotation.next_name,
        rotation.turn_left,
        notified,
    ]


@lru_cache
def _ranges(queues: tuple[str, ...]) -> tuple[str, str]:
    firsts, ends = ranges_of(queues)
    return arrays.texts(firsts), arrays.texts(ends)


def read_claims(schema: Schema, answer: Row, rotation: RoundRobin) -> Plan[Claims]:
    """Read what was claimed: see the type ``onward.claim_result``."""
    jobs, has_suspects, retry_after, next_name, turn_left, is_shared_load, claim_no = answer
    if next_name is not None:
        rotation.next_name, rotation.turn_left = next_name, turn_left
    visits = yield from _read_visits(schema, jobs, claim_no)
    claims = [claim for visit in visits for claim in visit]
    is_cut_short = jobs is not None and len(jobs) >= MAX_CLAIM_SIZE
    rotation.has_more = 0 < rotation.room <= len(claims) or is_cut_short
    rotation.max_jobs = max(_MAX_VISITS * len(claims) // len(visits), 1) if rotation.has_more else _MAX_CLAIM
    if (rotation.has_more and rotation.is_capped) or is_cut_short:
        retry_after = 0.0
    is_over = not rotation.has_more and not has_suspects and retry_after is None
    if rotation.is_full_scan:
        now = monotonic()
        rotation.full_scan_time = now - rotation.sent_at
        rotation.full_scan_at = now if is_over else -math.inf
    elif is_over:
        retry_after = max(rotation.next_full_scan_in(), 0.0)
    else:
        rotation.full_scan_at = -math.inf
    return Claims(
        claims=tuple(claims),
        has_suspects=bool(has_suspects),
        retry_after=retry_after,
        is_shared_load=bool(is_shared_load),
    )


def _read_visits(schema: Schema, jobs: str | None, claim_no: int) -> Plan[list[list[Claim]]]:
    """Read what each lane gave that was visited."""
    if jobs is None:
        return []
    try:
        return [_claims_of(visit, claim_no) for visit in _visits_decoder.decode(jobs)]
    except _READ_ERRORS:  # one job spoils the text of all
        return [(yield from _read_one_by_one(schema, claim_no))]


def _read_one_by_one(schema: Schema, claim_no: int) -> Plan[list[Claim]]:
    """Read the jobs of a claim row by row, and fail those that cannot be read."""
    rows = yield Statement(schema.claimed_jobs, [schema.now, claim_no])
    claims: list[Claim] = []
    unreadable: list[UnreadableJob] = []
    for *columns, queue, started, is_suspect, start_within in rows:
        row = tuple(columns)
        try:
            _payload_decoder.decode(row[-1])
            claim = _claim_from_row(queue, row)
        except _READ_ERRORS as error:
            unreadable.append(_unreadable(queue, row, error))
        else:
            claims.append(replace(claim, started=started, is_suspect=is_suspect, start_within=start_within))
    if unreadable:
        yield from fail_unreadable(schema, unreadable)
    return claims


def _claims_of(visit: _Visit, claim_no: int) -> list[Claim]:
    """Make claims of what a lane gave: the longer ready comes first, though the store gives them as they lie there."""
    queue, priority, started, start_within = visit.queue, visit.priority, visit.started, visit.start_within
    is_suspect = visit.is_suspect
    unusual = {} if visit.unusual is None else {details.seq: details for details in visit.unusual}
    seqs = list(map(int, visit.seqs[1:-1].split(",")))
    types = visit.types if isinstance(visit.types, list) else [visit.types] * len(seqs)
    wait_times = visit.wait_seconds
    jobs = list(zip(seqs, wait_times, visit.ids[1:-1].split(","), types, visit.payloads, strict=True))
    if sorted(seqs) != seqs or sorted(wait_times, reverse=True) != wait_times:  # cheaper than to sort what is in order
        jobs.sort(key=_sort_key)
    attempts = int(started)
    claims: list[Claim] = []
    for seq, wait_seconds, job_id, type_, payload in jobs:
        details = unusual.get(seq)
        claims.append(
            Claim(
                ref=JobRef(queue, job_id),
                token=(seq, claim_no),
                type=type_,
                payload=str(payload, "utf-8"),
                attempts=attempts,
                started=started,
                is_suspect=is_suspect,
                priority=priority,
                wait_seconds=wait_seconds,
                start_within=start_within,
            )
            if details is None
            else Claim(
                ref=JobRef(queue, job_id),
                token=(seq, claim_no),
                type=type_,
                payload=str(payload, "utf-8"),
                attempts=details.attempts,
                started=started,
                max_attempts=details.max_attempts,
                crashes=details.crashes,
                is_suspect=is_suspect,
                org_id=details.org_id,
                priority=priority,
                backoff=details.backoff,
                trace=details.trace,
                wait_seconds=wait_seconds,
                start_within=start_within,
            )
        )
    return claims


def _sort_key(job: tuple[int, float, str, str, msgspec.Raw]) -> tuple[float, int]:
    return -job[1], job[0]
