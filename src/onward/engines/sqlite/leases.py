"""Keeps what a worker holds: leases, progress, log lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onward.engine.values import Claim, HeartbeatReply, Token, WorkerCommand, WorkerInfo
from onward.engines.sqlite.rows import json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.validation import MAX_LOG_LINES


def heartbeat(transaction: Transaction, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
    """Say that a worker is alive and keeps its jobs; answer which it has lost."""
    execute = transaction.execute
    told = execute(
        SQL.heartbeat_worker,
        {
            "id": worker.id,
            "hostname": worker.hostname,
            "pool_size": worker.pool_size,
            "version": worker.version,
            "queues": json_text(worker.queues),
            "types": json_text(worker.types),
            "now": transaction.now,
        },
    ).fetchone()[0]
    command = None if told is None else WorkerCommand(told)
    if not claims:
        return HeartbeatReply(command=command)
    tokens = json_text([claim.token for claim in claims])
    extended = execute(SQL.heartbeat_jobs, {"claims": tokens, "now": transaction.now}).rowcount
    if extended == len(claims):
        return HeartbeatReply(command=command)
    gone = msgspec.json.decode(execute(SQL.heartbeat_lost, {"claims": tokens}).fetchone()[0])
    lost: set[Token] = {(seq, claim_no) for seq, claim_no, _ in gone}
    cancelled: set[Token] = {(seq, claim_no) for seq, claim_no, was_cancelled in gone if was_cancelled}
    return HeartbeatReply(lost=frozenset(lost), cancelled=frozenset(cancelled), command=command)


def command_worker(transaction: Transaction, worker_id: str, command: WorkerCommand) -> bool:
    """Tell a worker what to do, and answer whether it is registered."""
    told = None if command is WorkerCommand.RESUME else command.value
    return bool(transaction.execute(SQL.worker_command, {"id": worker_id, "command": told}).rowcount)


def deregister(transaction: Transaction, worker_id: str) -> None:
    """Take a worker off the list."""
    transaction.execute(SQL.deregister, {"id": worker_id})


def record_crash(transaction: Transaction, claim: Claim) -> bool:
    """Count a crash of a job that is held."""
    seq, claim_no = claim.token
    named = {"seq": seq, "claim_no": claim_no, "crashes": claim.crashes + 1, "now": transaction.now}
    return transaction.execute(SQL.record_crash, named).rowcount == 1


def report(
    transaction: Transaction, claim: Claim, progress: int | None, message: str | None, lines: Sequence[str]
) -> bool:
    """Store progress and log lines of a job that is held."""
    seq, claim_no = claim.token
    execute, now = transaction.execute, transaction.now
    named = {"seq": seq, "claim_no": claim_no, "progress": progress, "message": message, "now": now}
    if execute(SQL.report_progress, named).rowcount != 1:
        return False
    if lines:
        newest = lines[-MAX_LOG_LINES:]
        transaction.connection.executemany(SQL.log_append, [{"seq": seq, "now": now, "line": line} for line in newest])
        execute(SQL.log_trim, {"seq": seq, "kept": MAX_LOG_LINES})
    return True
