"""Takes jobs: one queue or many, each by the rules of its policy, and fairly where there are many.

A claim over several queues first looks how much each has ready, up to what was asked for. Then each is given its share,
in turns that go on where the last claim ended, and no more rows are locked than are taken.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

import msgspec

from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.pgboss.rows import Queue, claim_of
from onward.engines.pgboss.schema import Schema
from onward.engines.pgboss.shelf import Shelf
from onward.postgresql.plans import Plan, Row

_STATEMENT_OF: Final = {
    "singleton": "claim_one_of_a_key",
    "stately": "claim_one_of_a_key",
    "key_strict_fifo": "claim_in_line",
}
"""For other policies: ``claim``."""
POLICIES_WITH_ROOM: Final = frozenset(_STATEMENT_OF)
"""Policies by which an outcome makes room for another job to be taken."""
_PARENT: Final = "job"
"""The table of which the tables of queues are parts."""


@dataclass(slots=True)
class Round:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    next_name: str = ""


def claim(schema: Schema, shelf: Shelf, request: ClaimRequest, round_: Round) -> Plan[Claims]:
    """Take what the request has room for."""
    wanted = request.slots + request.soon
    queues = yield from shelf.matching(request.queues)
    if not wanted or not queues:
        return Claims()
    shares = {queues[0]: wanted}
    if len(queues) > 1:
        shares = yield from _shares(schema, queues, wanted, round_)
    number = new_number()
    taken: list[Row] = []
    for (name, table), some in _groups(shares).items():
        taken += yield schema.statement(name, taking(shelf, some, request, number), table=table)
    again_in = None if len(taken) >= wanted else (yield from soon(schema, queues))
    return Claims(claims=in_order(taken, number), again_in=again_in)


def soon(schema: Schema, queues: Iterable[Queue]) -> Plan[float | None]:
    """Say in how many seconds the next job of some queues is due; None: none is known to be."""
    ((seconds,),) = yield schema.statement("soon", [[queue.name for queue in queues]])
    return None if seconds is None else max(seconds, 0.0)


def new_number() -> str:
    """Make a number for a claim: with the attempt and its begin, what outcomes are matched by."""
    return secrets.token_hex(8)


def taking(shelf: Shelf, shares: Mapping[Queue, int], request: ClaimRequest, number: str) -> list[Any]:
    """Give the values of a statement that takes so many jobs of each queue."""
    hold = msgspec.json.encode({"worker": request.worker_id, "claim": number}).decode()
    leases = [shelf.lease_of(queue.name, request.lease) for queue in shares]
    return [[queue.name for queue in shares], list(shares.values()), hold, leases]


def _groups(shares: Mapping[Queue, int]) -> dict[tuple[str, str], dict[Queue, int]]:
    """Sort queues by the statement that takes of them, and by their table."""
    groups: dict[tuple[str, str], dict[Queue, int]] = {}
    for queue, count in shares.items():
        if count:
            groups.setdefault((_STATEMENT_OF.get(queue.policy, "claim"), queue.table), {})[queue] = count
    return groups


def in_order(taken: Sequence[Row], number: str) -> tuple[Claim, ...]:
    """Read what was taken; of each table the higher priority comes first, then the older."""
    return tuple([claim_of(row, number) for row in taken])


def _shares(schema: Schema, queues: Sequence[Queue], wanted: int, round_: Round) -> Plan[dict[Queue, int]]:
    """Deal what is asked for out to the queues that have something, in turns."""
    tables = {queue.table for queue in queues}
    table = tables.pop() if len(tables) == 1 else _PARENT
    ready: dict[str, int] = dict(
        (yield schema.statement("ready", [[queue.name for queue in queues], wanted], table=table))
    )
    first = next((at for at, queue in enumerate(queues) if queue.name >= round_.next_name), 0)
    waiting = [queue for queue in [*queues[first:], *queues[:first]] if ready.get(queue.name)]
    shares = dict.fromkeys(waiting, 0)
    for queue in cycle(waiting):
        if not wanted or not any(shares[each] < ready[each.name] for each in waiting):
            round_.next_name = queue.name
            break
        if shares[queue] < ready[queue.name]:
            shares[queue] += 1
            wanted -= 1
    return shares
