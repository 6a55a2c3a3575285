"""Takes jobs: one queue or many, each by the rules of its policy, and fairly where there are many.

A claim over several queues first looks how much each has ready, up to what was asked for. Then each is given its share,
in turns that go on where the last claim ended, and no more rows are locked than are taken.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from typing import Final

import msgspec

from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.pgboss.rows import Queue, claim_of
from onward.engines.pgboss.schema import Schema
from onward.engines.pgboss.shelf import Shelf
from onward.postgresql.plans import Plan, Row, Statement

_STATEMENT_OF: Final = {
    "singleton": "claim_one_of_a_key",
    "stately": "claim_one_of_a_key",
    "key_strict_fifo": "claim_in_line",
}
"""For other policies: ``claim``."""
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
    number = secrets.token_hex(8)
    taken: list[Row] = []
    for statement in take(schema, shelf, shares, request.worker_id, number, request.lease):
        taken += yield statement
    again_in = None
    if len(taken) < wanted:
        ((again_in,),) = yield schema.statement("soon", [[queue.name for queue in queues]])
    return Claims(claims=in_order(taken, number), again_in=None if again_in is None else max(again_in, 0.0))


def take(
    schema: Schema, shelf: Shelf, shares: dict[Queue, int], worker_id: str, number: str, asked: timedelta
) -> Iterable[Statement]:
    """Give the statements that take so many jobs of each queue: one for each policy and table."""
    groups: dict[tuple[str, str], list[Queue]] = {}
    tables = {queue.table for queue, count in shares.items() if count}
    for queue, count in shares.items():
        if count:
            table = queue.table if len(tables) == 1 else _PARENT
            groups.setdefault((_STATEMENT_OF.get(queue.policy, "claim"), table), []).append(queue)
    hold = msgspec.json.encode({"worker": worker_id, "claim": number}).decode()
    for (name, table), some in groups.items():
        leases = [shelf.lease_of(queue.name, asked) for queue in some]
        values = [[queue.name for queue in some], [shares[queue] for queue in some], hold, leases]
        yield schema.statement(name, values, table=table)


def in_order(taken: Sequence[Row], number: str) -> tuple[Claim, ...]:
    """Read what was taken: the higher priority first, then the older."""
    rows = sorted(taken, key=lambda row: (-row[6], row[7], row[1])) if len(taken) > 1 else taken
    return tuple(claim_of(row, number) for row in rows)


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
