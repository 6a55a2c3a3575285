"""Keeps what a worker holds: leases, progress, log lines."""

from __future__ import annotations

from collections.abc import Sequence

from onward.engine.values import Claim, HeartbeatReply, WorkerCommand, WorkerInfo
from onward.engines.postgres.statements import Schema
from onward.pg import arrays
from onward.pg.plan_runner import Plan, Statement
from onward.validation import MAX_LOG_LINES


def heartbeat(schema: Schema, worker: WorkerInfo, claims: Sequence[Claim]) -> Plan[HeartbeatReply]:
    """Say that a worker is alive and keeps its jobs; answer which it has lost."""
    info = [worker.id, worker.hostname, worker.pool_size, worker.version, list(worker.queues), list(worker.types)]
    tokens = [arrays.numbers([claim.token[index] for claim in claims]) for index in (0, 1)]
    rows = yield Statement(schema.heartbeat, [schema.now, *info, *tokens])
    lost = [row for row in rows if row[3] is None]
    told = [WorkerCommand(row[3]) for row in rows if row[3] is not None]
    return HeartbeatReply(
        lost=frozenset((seq, claim_no) for seq, claim_no, *_ in lost),
        cancelled=frozenset((seq, claim_no) for seq, claim_no, was_cancelled, _ in lost if was_cancelled),
        command=told[0] if told else None,
    )


def command_worker(schema: Schema, worker_id: str, command: WorkerCommand) -> Plan[bool]:
    """Tell a worker what to do, and answer whether it is registered."""
    told = None if command is WorkerCommand.RESUME else command.value
    return bool((yield Statement(schema.worker_command, [worker_id, told])))


def deregister(schema: Schema, worker_id: str) -> Plan[None]:
    """Take a worker off the list."""
    yield Statement(schema.deregister, [worker_id])


def report(schema: Schema, claim: Claim, progress: int | None, message: str | None, lines: Sequence[str]) -> Plan[bool]:
    """Store progress and log lines of a job that is held."""
    newest = list(lines[-MAX_LOG_LINES:])
    rows = yield Statement(schema.report, [schema.now, *claim.token, progress, message, newest, MAX_LOG_LINES])
    return bool(rows)


def without_notices(schema: Schema) -> Plan[None]:
    """Have the rest of a transaction notify nobody, so that it can be prepared (two-phase commit)."""
    yield Statement("select set_config($1::text, 'off', true)", [f"{schema.channel}.notify"])


def record_crash(schema: Schema, claim: Claim) -> Plan[bool]:
    """Count a crash of a job that is held."""
    rows = yield Statement(schema.record_crash, [schema.now, *claim.token, claim.crashes + 1])
    return bool(rows)


def notify(schema: Schema, notice: str) -> Plan[None]:
    """Tell whoever listens."""
    yield Statement(schema.notify, [schema.channel, notice])
