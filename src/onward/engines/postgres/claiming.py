"""Takes jobs. What makes a claim fair and keeps it within limits is in the store: ``migrations/0004_claiming.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims, Token
from onward.engines.postgres.rows import backoff_of, ranges_of
from onward.engines.postgres.schema import Schema
from onward.job import JobRef
from onward.postgresql.plans import Plan, Row, Statement


@dataclass(slots=True)
class Round:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    next_name: str = ""
    turn_left: int = 0
    """What the queue at ``next_name`` may still have of its turn; 0: its whole turn."""


def claim(schema: Schema, request: ClaimRequest, round_: Round) -> Plan[Claims]:
    """Take what the request has room for."""
    firsts, ends = ranges_of(request.queues)
    lease = request.lease // MICROSECOND
    if request.alone:
        values = [schema.now, request.worker_id, firsts, ends, lease]
        rows = yield Statement(schema.claim_suspect, values)
    else:
        values = [schema.now, request.worker_id, firsts, ends, request.slots, request.soon + request.ahead, lease]
        rows = yield Statement(schema.claim, [*values, round_.next_name, round_.turn_left])
    return read_answer(rows, round_)[1]


def read_answer(rows: Sequence[Row], round_: Round) -> tuple[frozenset[Token], Claims]:
    """Read what a claim or an exchange answered: see the type ``onward.answer``."""
    lost: set[Token] = set()
    taken: list[Row] = []
    suspects_wait, again_in = False, None
    for row in rows:
        if row[0] is not None:
            taken.append(row)
        elif row[1] is not None:
            lost.add((row[1], row[2]))
        else:
            suspects_wait, again_in = row[17], row[18]
            if row[19] is not None:
                round_.next_name, round_.turn_left = row[19], row[20]
    if len(taken) > 1:
        # The store gives rows as it finds them on its pages: by visit, then the higher priority, then the longer ready.
        taken.sort(key=itemgetter(1))
        taken.sort(key=_place)
    return frozenset(lost), Claims(
        claims=tuple(map(_claim_of, taken)), suspects_wait=bool(suspects_wait), again_in=again_in
    )


def _place(row: Row) -> tuple[int, int, float]:
    return row[0], -row[13], -row[15]


def _claim_of(row: Row) -> Claim:
    (_, seq, claim_no, queue, job_id, type_, payload, attempts, started, max_attempts, crashes, suspect, org_id,
     priority, backoff, waited, start_within, *_) = row  # fmt: skip
    return Claim(
        ref=JobRef(queue, job_id),
        token=(seq, claim_no),
        type=type_,
        payload=payload,
        attempts=attempts,
        started=started,
        max_attempts=max_attempts,
        crashes=crashes,
        is_suspect=suspect,
        org_id=org_id,
        priority=priority,
        backoff=backoff_of(backoff),
        waited=waited,
        start_within=start_within,
    )
