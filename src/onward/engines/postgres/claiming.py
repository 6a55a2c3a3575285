"""Takes jobs. What makes a claim fair and keeps it within limits is in the store: ``migrations/0004_claiming.sql``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.postgres.rows import ranges_of
from onward.engines.postgres.schema import Schema
from onward.job import JobRef
from onward.postgresql import arrays
from onward.postgresql.plans import Plan, Row, Statement


@dataclass(slots=True)
class Round:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    next_name: str = ""
    turn_left: int = 0
    """What the queue at ``next_name`` may still have of its turn; 0: its whole turn."""


class _Job(msgspec.Struct, array_like=True):
    """A job that was taken, as the store writes it: see the type ``onward.answer``."""

    seq: int
    claim_no: int
    id: str
    type: str
    payload: msgspec.Raw
    attempts: int
    max_attempts: int
    crashes: int
    org_id: str | None
    backoff: Backoff | None
    waited: float


class _Visit(msgspec.Struct, array_like=True):
    """What one lane gave."""

    queue: str
    priority: int
    started: bool
    start_within: float | None
    suspect: bool
    jobs: list[_Job]


_visits: Final = msgspec.json.Decoder(list[_Visit])


def claim(schema: Schema, request: ClaimRequest, round_: Round) -> Plan[Claims]:
    """Take what the request has room for."""
    if request.alone:
        lease = request.lease // MICROSECOND
        values = [schema.now, request.worker_id, *_ranges(request.queues), lease]
        (answer,) = yield Statement(schema.claim_suspect, values)
    else:
        (answer,) = yield Statement(schema.claim, [schema.now, *asked(request, round_)])
    return claims_of(answer, round_)


def asked(request: ClaimRequest, round_: Round) -> list[Any]:
    """Lay a request out as the store wants it."""
    return [
        request.worker_id,
        *_ranges(request.queues),
        request.slots,
        request.soon,
        request.ahead,
        request.lease // MICROSECOND,
        round_.next_name,
        round_.turn_left,
    ]


@cache
def _ranges(queues: tuple[str, ...]) -> tuple[str, str]:
    firsts, ends = ranges_of(queues)
    return arrays.texts(firsts), arrays.texts(ends)


def claims_of(answer: Row, round_: Round) -> Claims:
    """Read what was claimed: see the type ``onward.answer``."""
    jobs, suspects_wait, again_in, next_name, turn_left = answer
    if next_name is not None:
        round_.next_name, round_.turn_left = next_name, turn_left
    claims: list[Claim] = []
    if jobs is not None:
        for visit in _visits.decode(jobs):
            if len(visit.jobs) > 1:  # the store gives them as it finds them on its pages: the longer ready comes first
                visit.jobs.sort(key=_place)
            claims += _claims_of(visit)
    return Claims(claims=tuple(claims), suspects_wait=bool(suspects_wait), again_in=again_in)


def _place(job: _Job) -> tuple[float, int]:
    return -job.waited, job.seq


def _claims_of(visit: _Visit) -> list[Claim]:
    queue, started, priority, start_within = visit.queue, visit.started, visit.priority, visit.start_within
    is_suspect = visit.suspect
    return [
        Claim(
            ref=JobRef(queue, job.id),
            token=(job.seq, job.claim_no),
            type=job.type,
            payload=str(job.payload, "utf-8"),
            attempts=job.attempts,
            started=started,
            max_attempts=job.max_attempts,
            crashes=job.crashes,
            is_suspect=is_suspect,
            org_id=job.org_id,
            priority=priority,
            backoff=job.backoff,
            waited=job.waited,
            start_within=start_within,
        )
        for job in visit.jobs
    ]
