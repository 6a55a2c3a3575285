"""Keeps what a worker holds."""

from __future__ import annotations

from collections.abc import Sequence

from onward.engine.values import Claim, HeartbeatReply, WorkerInfo
from onward.engines.pgboss.rows import fences_of
from onward.engines.pgboss.statements import Schema
from onward.pg import arrays
from onward.pg.plan_runner import Plan


def heartbeat(schema: Schema, worker: WorkerInfo, claims: Sequence[Claim]) -> Plan[HeartbeatReply]:
    """Say that a worker is alive and keeps its jobs; answer which it has lost."""
    command = yield from schema.companion.heartbeat(worker)
    if not claims:
        return HeartbeatReply(command=command)
    tokens = [claim.token for claim in claims]
    batches = arrays.numbers([token[4] for token in tokens])
    gone = yield schema.statement("heartbeat", [*fences_of(tokens), batches])
    return HeartbeatReply(
        lost=frozenset(tokens[number] for number, _ in gone),
        cancelled=frozenset(tokens[number] for number, cancelled in gone if cancelled),
        command=command,
    )
