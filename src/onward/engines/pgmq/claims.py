"""Takes messages. What makes a claim fair, and keeps it off what others hold, is in ``0005_claims.sql``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.pgmq.headers import JobHeader, header_of
from onward.engines.pgmq.settings import PgmqSettings
from onward.engines.pgmq.statements import SQL
from onward.job import JobRef
from onward.lifecycle import MAX_ATTEMPTS
from onward.pg.arrays import numbers, texts
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan, Row, Statement

_backoffs = msgspec.json.Decoder(Backoff)


@dataclass(slots=True)
class RoundRobin:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    last_name: str = ""


def claim(
    request: ClaimRequest, settings: PgmqSettings, columns: str, round_robin: RoundRobin, batches: OpenClaims
) -> Plan[Claims]:
    """Take what the request has room for. No more are read than there are free hands, so that a read means a run."""
    names, prefixes = names_and_prefixes(request.queues)
    values = [
        columns,
        request.worker_id,
        "*" in request.queues,
        texts(names),
        texts(prefixes),
        round_robin.last_name,
        request.slots,
        request.lease // MICROSECOND,
        request.alone,
        settings.max_reads,
        settings.read_modes_json,
        numbers(batches.take_finished()),
    ]
    claims = _claims_of((yield Statement(SQL.claim, values)), request.worker_id, settings, round_robin)
    batches.add_claimed(claims.claims)
    return claims


def names_and_prefixes(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tell names from what names begin with. A queue may be called like a pattern: then both are meant."""
    names = [pattern for pattern in patterns if pattern != "*"]
    return names, [pattern[:-1] for pattern in names if pattern.endswith("/*")]


def _claims_of(rows: Sequence[Row], worker: str, settings: PgmqSettings, round_robin: RoundRobin) -> Claims:
    """Read what a claim answered: see the type ``onward.claim_row``."""
    claims: list[Claim] = []
    has_suspects = False
    batch = _NO_BATCH
    for kind, number, read_ct, wait_seconds, text, header, crashes, stamp in rows:
        if kind == "m":
            claims.append(
                _claim_of(
                    batch, (number, read_ct, stamp), wait_seconds, text, header_of(header), crashes or 0, settings
                )
            )
        elif kind == "b":
            lease, max_attempts, backoff = _batches.decode(header)
            kept = None if backoff is None else _backoffs.decode(backoff)
            batch = _ClaimBatch(number, text, worker, lease, max_attempts, kept, is_isolated=bool(read_ct))
        else:
            has_suspects, round_robin.last_name = bool(read_ct), text
    return Claims(claims=tuple(claims), has_suspects=has_suspects)


@dataclass(frozen=True, slots=True)
class _ClaimBatch:
    """What was taken from one queue at once."""

    id: int
    queue: str
    worker: str
    lease: int
    max_attempts: int | None
    backoff: Backoff | None
    is_isolated: bool


_NO_BATCH: Final = _ClaimBatch(0, "", "", 0, None, None, is_isolated=False)
_batches = msgspec.json.Decoder(tuple[int, int | None, str | None])


def _claim_of(
    batch: _ClaimBatch,
    read: tuple[int, int, int],
    wait_seconds: float,
    payload: str,
    header: JobHeader,
    crashes: int,
    settings: PgmqSettings,
) -> Claim:
    queue = batch.queue
    msg_id, read_ct, stamp = read
    type_, payload = settings.decode_message(queue, payload, header.type)
    return Claim(
        ref=JobRef(queue, str(msg_id)),
        # The first four are the fence; the rest is what we want to know of the claim later.
        token=(msg_id, read_ct, queue, stamp, batch.id, batch.worker, batch.lease),
        type=type_,
        payload=payload,
        attempts=header.attempts + 1,
        started=True,
        max_attempts=header.max_attempts or batch.max_attempts or MAX_ATTEMPTS,
        crashes=crashes,
        is_suspect=batch.is_isolated,
        org_id=header.org_id,
        backoff=header.backoff or batch.backoff,
        trace=header.trace,
        put_backs=header.put_backs,
        wait_seconds=wait_seconds,
    )
