"""Keeps what a worker holds."""

from __future__ import annotations

from collections.abc import Sequence

from onward.engine.values import Claim, Pulse, WorkerInfo
from onward.engines.pgboss.rows import columns_of, token_of
from onward.engines.pgboss.schema import Schema
from onward.postgresql.plans import Plan


def heartbeat(schema: Schema, worker: WorkerInfo, claims: Sequence[Claim]) -> Plan[Pulse]:
    """Say that a worker is alive and keeps its jobs; answer which it has lost."""
    yield from schema.beside.beat(worker)
    if not claims:
        return Pulse()
    gone = yield schema.statement("heartbeat", [*columns_of([claim.token for claim in claims])])
    return Pulse(
        lost=frozenset(token_of(row) for row in gone), cancelled=frozenset(token_of(row) for row in gone if row[6])
    )
