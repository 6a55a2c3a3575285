"""Takes messages. What makes a claim fair, and keeps it off what others hold, is in ``0005_claims.sql``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims, Settlement, Token
from onward.engines.pgmq.headers import JobHeader, backoff_of, header_of
from onward.engines.pgmq.settings import PgmqSettings
from onward.engines.pgmq.settle import settle
from onward.engines.pgmq.statements import SQL
from onward.job import JobRef
from onward.lifecycle import MAX_ATTEMPTS, Fail, Failure
from onward.pg.arrays import numbers, texts
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan, Row, Statement

log = logging.getLogger("onward.engines.pgmq")

MAX_CLAIM_BYTES: Final = 32 * 1024 * 1024
"""Bytes of messages that one claim takes, but for the last message."""


@dataclass(slots=True)
class RoundRobin:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    last_name: str = ""


def claim(
    request: ClaimRequest,
    settings: PgmqSettings,
    columns: str,
    round_robin: RoundRobin,
    batches: OpenClaims,
    limited: set[str],
) -> Plan[Claims]:
    """Take what the request has room for. No more are read than there are free slots, so that a read means a run.

    Queues with limits are added to ``limited``, others removed from it.
    """
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
        MAX_CLAIM_BYTES,
    ]
    claims, unreadable = _claims_of(
        (yield Statement(SQL.claim, values)), request.worker_id, settings, round_robin, limited
    )
    batches.add_claimed(claims.claims)
    if unreadable:
        yield from settle(unreadable, settings, columns)
    return claims


def names_and_prefixes(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tell names from what names begin with. A queue may be called like a pattern: then both are meant."""
    names = [pattern for pattern in patterns if pattern != "*"]
    return names, [pattern[:-1] for pattern in names if pattern.endswith("/*")]


def _claims_of(
    rows: Sequence[Row], worker: str, settings: PgmqSettings, round_robin: RoundRobin, limited: set[str]
) -> tuple[Claims, list[Settlement]]:
    """Read what a claim answered, see the type ``onward.claim_row``; and the failures of what cannot be read."""
    claims: list[Claim] = []
    unreadable: list[Settlement] = []
    has_suspects = is_full = False
    next_permit: float | None = None
    batch = _NO_BATCH
    for kind, number, read_ct, wait_seconds, text, header, crashes, stamp in rows:
        if kind == "m":
            read = (number, read_ct, stamp)
            try:
                claims.append(_claim_of(batch, read, wait_seconds, text, header_of(header), crashes or 0, settings))
            except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
                names = {"queue": batch.queue, "job_id": str(number)}
                log.warning("a message cannot be read, so it is failed: %s", error, extra=names)
                failure = Failure("UnreadableJob", f"its message cannot be read: {error}")
                unreadable.append(Settlement(_unread_claim(batch, read), Fail(failure)))
        elif kind == "b":
            lease, max_attempts, backoff, start_within, is_limited = _batches.decode(header)
            (limited.add if is_limited else limited.discard)(text)
            kept = None if backoff is None else backoff_of(backoff)
            batch = _ClaimBatch(
                number, text, worker, lease, max_attempts, kept, is_isolated=bool(read_ct), start_within=start_within
            )
        else:
            is_full, has_suspects, round_robin.last_name = bool(number), bool(read_ct), text
            next_permit = wait_seconds
    retry_after = 0.0 if is_full or unreadable else next_permit
    return Claims(claims=tuple(claims), retry_after=retry_after, has_suspects=has_suspects), unreadable


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
    start_within: int | None
    """Microseconds within which a job of a queue with a rate must start."""


_NO_BATCH: Final = _ClaimBatch(0, "", "", 0, None, None, is_isolated=False, start_within=None)
_batches = msgspec.json.Decoder(tuple[int, int | None, str | None, int | None, bool])


def _token_of(batch: _ClaimBatch, read: tuple[int, int, int]) -> Token:
    """Give a claim's token: the first four are the fence; the rest is what we want to know of the claim later."""
    msg_id, read_ct, stamp = read
    return msg_id, read_ct, batch.queue, stamp, batch.id, batch.worker, batch.lease


def _unread_claim(batch: _ClaimBatch, read: tuple[int, int, int]) -> Claim:
    """Give the claim of a message that cannot be read: enough to settle it."""
    return Claim(
        ref=JobRef(batch.queue, str(read[0])),
        token=_token_of(batch, read),
        type=batch.queue,
        payload="null",
        attempts=1,
        started=True,
        max_attempts=MAX_ATTEMPTS,
    )


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
    msg_id = read[0]
    type_, payload = settings.decode_message(queue, payload, header.type)
    return Claim(
        ref=JobRef(queue, str(msg_id)),
        token=_token_of(batch, read),
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
        start_within=None if batch.start_within is None else batch.start_within / 1e6,
    )
