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
_LOCKED_RETRY: Final = 0.01
"""Seconds after which to ask again for a queue with limits from which another claim takes at the moment."""
_PARTITIONED_TABLE: Final = "job"
"""The table of which the tables of queues are parts."""


@dataclass(slots=True)
class RoundRobin:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    next_name: str = ""
    last_limited: str = ""
    """The queue with limits that was served first by the last claim."""


def claim(
    schema: Schema,
    queue_cache: QueueCache,
    request: ClaimRequest,
    round_robin: RoundRobin,
    batches: OpenClaims,
    *,
    is_atomic: bool = False,
) -> Plan[Claims | None]:
    """Take what the request has room for.

    ``is_atomic``: the plan runs in one transaction. Only then can it take from queues with limits; None: it must.
    """
    wanted = request.slots + request.prefetch_started
    matching = yield from queue_cache.matching(request.queues)
    queues = [queue for queue in matching if not queue_cache.settings_of(queue.name).paused]
    if not wanted or not queues:
        return Claims()
    claiming = _Claiming(schema, queue_cache, request, batches)
    limited = [queue for queue in queues if queue_cache.settings_of(queue.name).is_limited]
    if limited:
        if not is_atomic:
            return None
        yield from claiming.take_limited(_rotated(limited, round_robin), share=max(1, request.slots // len(queues)))
        queues = [queue for queue in queues if queue not in limited]
    left = wanted - len(claiming.claims)
    shares = dict.fromkeys(queues[:1], left)
    if len(queues) > 1 and left:
        shares = yield from _shares(schema, queues, left, round_robin)
    yield from claiming.take(shares)
    batches.add_claimed(claiming.claims)
    claims = tuple(claiming.claims)
    if claiming.is_full:
        return Claims(claims=claims, retry_after=0.0)
    if len(claims) >= wanted:
        return Claims(claims=claims)
    due = [claiming.next_permit, (yield from _next_due_in(schema, [*queues, *limited]))]
    return Claims(claims=claims, retry_after=min((each for each in due if each is not None), default=None))


class _Claiming:
    """One claim on its way."""

    def __init__(self, schema: Schema, queue_cache: QueueCache, request: ClaimRequest, batches: OpenClaims) -> None:
        self.claims: list[Claim] = []
        self.is_full = False
        """More could be taken at once."""
        self.next_permit: float | None = None
        """Seconds until the next permit of a queue with a rate."""
        self._schema = schema
        self._queue_cache = queue_cache
        self._request = request
        self._batches = batches

    def take(self, shares: Mapping[Queue, int], *, has_permits: bool = False) -> Plan[int]:
        """Take so many jobs of each queue; answer how many were taken."""
        before = len(self.claims)
        for (variant, table), some in _groups(shares).items():
            values = [
                [queue.name for queue in some],
                list(some.values()),
                [self._queue_cache.lease_of(queue.name, self._request.lease) for queue in some],
                self._request.worker_id,
                self._batches.take_finished(),
                self._schema.claim_offset(),
                MAX_CLAIM_BYTES,
                has_permits,
            ]
            rows = yield self._schema.statement("claim", values, table=table, variant=variant)
            readable, unreadable = _read(rows)
            if unreadable:
                stately = {queue.name for queue in some if queue.policy == "stately"}
                yield self._schema.statement("settle", _failures(unreadable, stately), table=table)
            self.claims += readable
            self.is_full = self.is_full or any(row[-1] for row in rows) or bool(unreadable)
        return len(self.claims) - before

    def take_limited(self, queues: Sequence[Queue], share: int) -> Plan[None]:
        """Take from queues with limits, each up to its share and its permits, and never ahead of a free slot."""
        pending = list(queues)
        while pending and len(self.claims) < self._request.slots:
            queue = pending.pop(0)
            wanted = min(share, self._request.slots - len(self.claims))
            if (yield from self._take_permitted(queue, wanted)):
                pending.append(queue)

    def _take_permitted(self, queue: Queue, wanted: int) -> Plan[int]:
        """Take jobs of a queue with limits; answer how many if it may have more, else 0."""
        schema, now = self._schema, self._schema.now_micros
        ((is_limited, is_locked),) = yield schema.statement("lock_queue_limit", [queue.name])
        if not is_limited:
            return (yield from self.take({queue: wanted}))
        if not is_locked:
            self._retry_in(_LOCKED_RETRY)
            return 0
        ((permitted, retry_after, start_within, token),) = yield schema.statement(
            "take_queue_permits", [queue.name, wanted, now], table=queue.table
        )
        if retry_after is not None:
            self._retry_in(retry_after / 1e6)
        if not permitted:
            return 0
        first = len(self.claims)
        count = yield from self.take({queue: permitted}, has_permits=True)
        if start_within is not None:
            self.claims[first:] = [
                msgspec.structs.replace(claim, start_within=start_within / 1e6) for claim in self.claims[first:]
            ]
        if count < permitted:
            yield schema.statement("return_queue_permits", [token, queue.name, count, now])
        return count if count == permitted else 0

    def _retry_in(self, seconds: float) -> None:
        self.next_permit = seconds if self.next_permit is None else min(self.next_permit, seconds)


def _rotated(queues: Sequence[Queue], round_robin: RoundRobin) -> list[Queue]:
    """Begin with the queue whose turn it is, and move the turn on by one."""
    first = next((at for at, queue in enumerate(queues) if queue.name > round_robin.last_limited), 0)
    round_robin.last_limited = queues[first].name
    return [*queues[first:], *queues[:first]]


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
    """Group queues by the way in which jobs are taken from them, and by their table.

    In one order for all claims, so that two in transactions never wait for each other's rows.
    """
    groups: dict[tuple[str, str], dict[Queue, int]] = {}
    for queue, count in shares.items():
        if count:
            groups.setdefault((_CLAIM_VARIANTS.get(queue.policy, ""), queue.table), {})[queue] = count
    return dict(sorted(groups.items(), key=lambda item: item[0]))


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
