"""Takes jobs. What makes a claim fair and keeps it within limits is in the store: ``migrations/0004_claims.sql``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Any, Final

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.postgres.rows import backoff_of, ranges_of
from onward.engines.postgres.schema import Schema
from onward.job import JobRef
from onward.pg import arrays
from onward.pg.listener import ALL_QUEUES, CANCELLED, DUE, SETTINGS_CHANGED
from onward.pg.plans import Plan, Row, Statement
from onward.validation import matches

_ANYWHERE: Final = frozenset({ALL_QUEUES, SETTINGS_CHANGED})
_NO_NAMES: Final = frozenset({DUE, CANCELLED})
_MOST_NEWS: Final = 100
"""Queues with news that are kept in mind."""
_MOST_VISITS: Final = 150
"""Lanes in one claim, on the average: a visit costs as much as ten jobs, and meanwhile the first job of another queue
waits."""
_BRIEF_APART: Final = 0.1
"""Seconds between two claims of nothing but one job: whoever enqueues all the time must not slow down the tour."""
_MOST_AT_ONCE: Final = 10_000
"""Jobs in one claim: more than anybody asks for."""
_LOOK_AGAIN: Final = 0.5
"""Seconds for which a look at all queues that found nothing more is good: until then only those with news are asked."""
_LOOK_AGAIN_LATEST: Final = 2.0
_TOUR_SHARE: Final = 100
"""Of a worker's time that goes into such looks, one part in so many, unless it would look later than that."""
_LONG_TOUR: Final = 0.003
"""Seconds from which on a look at all queues is long: there are hundreds of them."""


@dataclass(slots=True)
class Round:
    """Where a worker is on its way round some queues. Kept in memory: each worker goes its own way round."""

    next_name: str = ""
    turn_left: int = 0
    """What the queue at ``next_name`` may still have of its turn; 0: its whole turn."""
    news: dict[str, None] = field(default_factory=dict)
    """Queues that were told to have new jobs: each gives one before the tour goes on, however far away it is."""
    room: int = 0
    """How many jobs were asked for last."""
    has_more: bool = False
    """Whether so many came: then there may be queues that the tour has not come to."""
    most: int = _MOST_AT_ONCE
    """How many jobs to ask for at most, by how many each visit gave the last time."""
    is_cut: bool = False
    """Whether more would have been welcome."""
    brief_at: float = -math.inf
    """When nothing was last asked for but a job of a queue with news."""
    is_told: bool = False
    """Whether somebody listens: who does not hears of nothing new."""
    is_news_anywhere: bool = True
    """Whether it was told that there is work, and not where. It is told, too, when somebody begins to listen."""
    looked_at: float = -math.inf
    """When all queues were last looked at, if that found less than there was room for, and nothing to wait for."""
    asked_at: float = -math.inf
    """When a claim was last sent."""
    is_whole: bool = True
    """Whether that was for all queues."""
    took: float = 0.0
    """Seconds that the last look at all queues took."""

    def hear(self, patterns: Sequence[str], names: Sequence[str]) -> None:
        """Take in which queues have new jobs."""
        for name in names:
            if name in _ANYWHERE:
                self.is_news_anywhere = True
            elif name not in self.news and name not in _NO_NAMES and any(matches(each, name) for each in patterns):
                if len(self.news) < _MOST_NEWS:
                    self.news[name] = None
                else:
                    self.is_news_anywhere = True
                    return  # the rest makes no difference any more

    def places(self, *, waits: bool) -> tuple[str, ...] | None:
        """Take out the queues where there can be something new; None: it may be in any, or it pays to ask all of them.

        It does not where a look at all of them takes long, or where a worker ``waits`` and is told of one.
        """
        if not self.is_told or self.is_news_anywhere or self.look_again_in() <= 0:
            return None
        if self.took <= _LONG_TOUR and not (waits and len(self.news) == 1):
            return None
        names, self.news = self.news, {}  # what is heard from now on is for the next claim
        return tuple(sorted(names))

    def look_again_in(self) -> float:
        """Say for how many seconds more there is no need for a tour."""
        apart = min(max(_LOOK_AGAIN, self.took * _TOUR_SHARE), _LOOK_AGAIN_LATEST)
        return self.looked_at + apart - monotonic()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """If the claim fails in this block, nobody has looked where there was news: it may be anywhere."""
        try:
            yield
        except BaseException:
            self.is_news_anywhere = True
            raise

    def next_news(self) -> str | None:
        """Take out a queue that has new jobs; None: there is none, or the tour comes to all of them anyway."""
        if not self.has_more:
            self.news.clear()
        name = next(iter(self.news), None)
        if name is not None:
            del self.news[name]
        return name


class _Unusual(msgspec.Struct, array_like=True):
    """What is not as it is with most jobs."""

    seq: int
    claim_no: int
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
    waited: list[float]
    unusual: list[_Unusual] | None
    payloads: list[msgspec.Raw]


_visits: Final = msgspec.json.Decoder(list[_Visit])


def claim(schema: Schema, request: ClaimRequest, round_: Round) -> Plan[Claims]:
    """Take what the request has room for."""
    if request.alone:
        lease = request.lease // MICROSECOND
        values = [schema.now, request.worker_id, *_ranges(request.queues), lease]
        ((jobs, has_suspects, retry_after, *_),) = yield Statement(schema.claim_suspect, values)
        (claims,) = _visited(jobs) or [[]]  # it is no step of the tour
        return Claims(claims=tuple(claims), has_suspects=has_suspects, retry_after=retry_after)
    places = round_.places(waits=True)
    if places == ():
        return nothing_new(round_)
    with round_.failing():
        if places is not None and len(places) == 1 and request.slots and not request.prefetch_claimed:
            alone = yield from _claim_of(schema, request, round_, places[0])
            if alone is not None:
                return alone
            places = None
        (answer,) = yield Statement(schema.claim, [schema.now, *asked(request, round_, places)])
    return claims_of(answer, round_)


def nothing_new(round_: Round) -> Claims:
    """Answer a claim for which no queue needs to be asked."""
    return Claims(retry_after=max(round_.look_again_in(), 0.0))


def _claim_of(schema: Schema, request: ClaimRequest, round_: Round, queue: str) -> Plan[Claims | None]:
    """Take jobs of a single queue; None: something is said of that queue, so that it takes a tour."""
    room = request.slots + request.prefetch_started
    rows = yield for_queue(schema, request, queue, room)
    return from_queue(queue, room, rows, round_)


def for_queue(schema: Schema, request: ClaimRequest, queue: str, room: int) -> Statement:
    """Ask for jobs of a single queue."""
    return Statement(schema.claim_queue, [schema.now, request.worker_id, queue, room, request.lease // MICROSECOND])


def from_queue(queue: str, room: int, rows: Sequence[Row], round_: Round) -> Claims | None:
    """Read what a single queue gave; None: something is said of it, so that it takes a tour."""
    if rows and rows[0][0] is None:
        return None
    claims = [_claim_in(queue, row) for row in rows]
    claims.sort(key=lambda claim: (-claim.priority, -claim.waited, claim.token))
    round_.is_whole = False
    if len(claims) >= room:
        round_.looked_at = -math.inf  # there may be more, and elsewhere too
    return Claims(claims=tuple(claims), retry_after=max(round_.look_again_in(), 0.0))


def _claim_in(queue: str, row: Row) -> Claim:
    seq, claim_no, job_id, type_, priority, waited, attempts, max_attempts, crashes, org_id, *more = row
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
        waited=waited,
    )


def asked(request: ClaimRequest, round_: Round, places: tuple[str, ...] | None = None) -> list[Any]:
    """Lay a request out as the store wants it; for some of its queues only, where ``places`` are given."""
    round_.is_whole = places is None
    news = round_.next_news() if round_.is_whole else None
    wanted = request.slots + request.prefetch_started + request.prefetch_claimed
    most = round_.most
    if news is not None and most < wanted and (now := monotonic()) - round_.brief_at > _BRIEF_APART:
        most, round_.brief_at = 1, now  # in a long tour, its job does not wait for others
    slots = min(request.slots, most)
    prefetch_started = min(request.prefetch_started, most - slots)
    prefetch_claimed = min(request.prefetch_claimed, most - slots - prefetch_started)
    round_.room = slots + prefetch_started + prefetch_claimed
    round_.is_cut = round_.room < wanted
    round_.asked_at = monotonic()
    if round_.is_whole:
        round_.is_news_anywhere = False
        round_.looked_at = -math.inf
    return [
        request.worker_id,
        *_ranges(places or request.queues),
        slots,
        prefetch_started,
        prefetch_claimed,
        request.lease // MICROSECOND,
        round_.next_name,
        round_.turn_left,
        news,
    ]


@lru_cache
def _ranges(queues: tuple[str, ...]) -> tuple[str, str]:
    firsts, ends = ranges_of(queues)
    return arrays.texts(firsts), arrays.texts(ends)


def claims_of(answer: Row, round_: Round) -> Claims:
    """Read what was claimed: see the type ``onward.answer``."""
    jobs, has_suspects, retry_after, next_name, turn_left, is_shared_load = answer
    if next_name is not None:
        round_.next_name, round_.turn_left = next_name, turn_left
    visits = _visited(jobs)
    claims = [claim for visit in visits for claim in visit]
    round_.has_more = 0 < round_.room <= len(claims)
    round_.most = _MOST_VISITS * len(claims) // len(visits) if round_.has_more else _MOST_AT_ONCE
    if round_.has_more and round_.is_cut:
        retry_after = 0.0
    is_over = not round_.has_more and not has_suspects and retry_after is None
    if round_.is_whole:
        now = monotonic()
        round_.took = now - round_.asked_at
        round_.looked_at = now if is_over else -math.inf
    elif is_over:
        retry_after = max(round_.look_again_in(), 0.0)
    else:
        round_.looked_at = -math.inf
    return Claims(
        claims=tuple(claims),
        has_suspects=bool(has_suspects),
        retry_after=retry_after,
        is_shared_load=bool(is_shared_load),
    )


def _visited(jobs: str | None) -> list[list[Claim]]:
    """Read what each lane gave that was visited."""
    return [] if jobs is None else [_claims_of(visit) for visit in _visits.decode(jobs)]


def _claims_of(visit: _Visit) -> list[Claim]:
    """Make claims of what a lane gave: the longer ready comes first, though the store gives them as they lie there."""
    queue, priority, started, start_within = visit.queue, visit.priority, visit.started, visit.start_within
    is_suspect = visit.is_suspect
    unusual = {} if visit.unusual is None else {one.seq: one for one in visit.unusual}
    seqs = list(map(int, visit.seqs[1:-1].split(",")))
    types = visit.types if isinstance(visit.types, list) else [visit.types] * len(seqs)
    waits = visit.waited
    jobs = list(zip(seqs, waits, visit.ids[1:-1].split(","), types, visit.payloads, strict=True))
    if sorted(seqs) != seqs or sorted(waits, reverse=True) != waits:  # cheaper than to sort what is in order
        jobs.sort(key=_place)
    attempts = int(started)
    claims: list[Claim] = []
    for seq, waited, job_id, type_, payload in jobs:
        one = unusual.get(seq)
        claims.append(
            Claim(
                ref=JobRef(queue, job_id),
                token=(seq, 1),
                type=type_,
                payload=str(payload, "utf-8"),
                attempts=attempts,
                started=started,
                is_suspect=is_suspect,
                priority=priority,
                waited=waited,
                start_within=start_within,
            )
            if one is None
            else Claim(
                ref=JobRef(queue, job_id),
                token=(seq, one.claim_no),
                type=type_,
                payload=str(payload, "utf-8"),
                attempts=one.attempts,
                started=started,
                max_attempts=one.max_attempts,
                crashes=one.crashes,
                is_suspect=is_suspect,
                org_id=one.org_id,
                priority=priority,
                backoff=one.backoff,
                trace=one.trace,
                waited=waited,
                start_within=start_within,
            )
        )
    return claims


def _place(job: tuple[int, float, str, str, msgspec.Raw]) -> tuple[float, int]:
    return -job[1], job[0]
