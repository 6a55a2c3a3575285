"""Takes jobs: one queue or many, each by the rules of its policy, and fairly where there are many.

A claim over several queues first looks how much each has ready, up to what was asked for. Then each is given its share,
in turns that go on where the last claim ended, and no more rows are locked than are taken.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import msgspec

from onward.engine.values import Claim, ClaimRequest, Claims, Token
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.rows import Queue, claim_of, failure_of, fences_of, token_of
from onward.engines.pgboss.statements import Schema
from onward.lifecycle import Failure, JobStatus
from onward.pg import arrays
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan, Row

log = logging.getLogger("onward.engines.pgboss")

_CLAIM_VARIANTS: Final = {"singleton": "one_per_key", "stately": "one_per_key", "key_strict_fifo": "strict_fifo"}
"""How jobs are taken by the policy of their queue; by any other, by priority and age alone."""
POLICIES_LIMITING_ACTIVE: Final = frozenset(_CLAIM_VARIANTS)
"""Policies by which an outcome makes room for another job to be taken."""
MAX_CLAIM_BYTES: Final = 32 * 1024 * 1024
"""Bytes of data that one claim takes from the queues of one table, or one job."""
_PARTITIONED_TABLE: Final = "job"
"""The table of which the tables of queues are parts."""


@dataclass(slots=True)
class RoundRobin:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    next_name: str = ""


def claim(
    schema: Schema, queue_cache: QueueCache, request: ClaimRequest, round_robin: RoundRobin, batches: OpenClaims
) -> Plan[Claims]:
    """Take what the request has room for."""
    wanted = request.slots + request.prefetch_started
    queues = yield from queue_cache.matching(request.queues)
    if not wanted or not queues:
        return Claims()
    shares = {queues[0]: wanted}
    if len(queues) > 1:
        shares = yield from _shares(schema, queues, wanted, round_robin)
    claims: list[Claim] = []
    is_full = False
    for (variant, table), some in _groups(shares).items():
        values = [
            [queue.name for queue in some],
            list(some.values()),
            [queue_cache.lease_of(queue.name, request.lease) for queue in some],
            request.worker_id,
            batches.take_finished(),
            schema.claim_offset(),
            MAX_CLAIM_BYTES,
        ]
        rows = yield schema.statement("claim", values, table=table, variant=variant)
        readable, unreadable = _read(rows)
        if unreadable:
            stately = {queue.name for queue in some if queue.policy == "stately"}
            yield schema.statement("settle", _failures(unreadable, stately), table=table)
        claims += readable
        is_full = is_full or any(row[-1] for row in rows) or bool(unreadable)
    batches.add_claimed(claims)
    if is_full:
        return Claims(claims=tuple(claims), retry_after=0.0)
    retry_after = None if len(claims) >= wanted else (yield from _next_due_in(schema, queues))
    return Claims(claims=tuple(claims), retry_after=retry_after)


def _read(rows: Sequence[Row]) -> tuple[list[Claim], list[tuple[Token, Failure]]]:
    """Read what a claim answered: the jobs, and those that cannot be read, with the reason."""
    claims: list[Claim] = []
    unreadable: list[tuple[Token, Failure]] = []
    for *row, _ in rows:
        try:
            claims.append(claim_of(row))
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
            log.warning("a job cannot be read, so it is failed: %s", error, extra={"queue": row[0], "job_id": row[1]})
            unreadable.append((token_of(row), Failure("UnreadableJob", f"its row cannot be read: {error}")))
    return claims, unreadable


def _failures(unreadable: Sequence[tuple[Token, Failure]], stately: Container[str]) -> list[str]:
    """Write the values of ``sql/settle.sql`` that fail jobs."""
    return [
        *fences_of([token for token, _ in unreadable]),
        arrays.words(["failed"] * len(unreadable)),
        arrays.numbers([None] * len(unreadable)),
        arrays.texts([failure_of(failure, end=JobStatus.FAILED) for _, failure in unreadable]),
        arrays.numbers([False] * len(unreadable)),
        arrays.numbers([token[0] in stately for token, _ in unreadable]),
    ]


def _next_due_in(schema: Schema, queues: Iterable[Queue]) -> Plan[float | None]:
    """Say in how many seconds the next job of some queues is due; None: none is known to be."""
    ((seconds,),) = yield schema.statement("next_due", [[queue.name for queue in queues]])
    return None if seconds is None else max(seconds, 0.0)


def _groups(shares: Mapping[Queue, int]) -> dict[tuple[str, str], dict[Queue, int]]:
    """Sort queues by the way in which jobs are taken from them, and by their table."""
    groups: dict[tuple[str, str], dict[Queue, int]] = {}
    for queue, count in shares.items():
        if count:
            groups.setdefault((_CLAIM_VARIANTS.get(queue.policy, ""), queue.table), {})[queue] = count
    return groups


def _shares(schema: Schema, queues: Sequence[Queue], wanted: int, round_robin: RoundRobin) -> Plan[dict[Queue, int]]:
    """Deal what is asked for out to the queues that have something, in turns."""
    tables = {queue.table for queue in queues}
    table = tables.pop() if len(tables) == 1 else _PARTITIONED_TABLE
    ready: dict[str, int] = dict(
        (yield schema.statement("ready_counts", [[queue.name for queue in queues], wanted], table=table))
    )
    first = next((at for at, queue in enumerate(queues) if queue.name >= round_robin.next_name), 0)
    waiting = [queue for queue in [*queues[first:], *queues[:first]] if ready.get(queue.name)]
    shares = dict.fromkeys(waiting, 0)
    for queue in cycle(waiting):
        if not wanted or not any(shares[each] < ready[each.name] for each in waiting):
            round_robin.next_name = queue.name
            break
        if shares[queue] < ready[queue.name]:
            shares[queue] += 1
            wanted -= 1
    return shares
