"""Keeps what a worker holds: visibility timeouts and progress."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onward.engine.values import Claim, HeartbeatReply, WorkerInfo
from onward.engines.pgmq.statements import SQL
from onward.pg.companion_store import CompanionSchema
from onward.pg.plan_runner import Plan, Statement


def heartbeat(
    companion: CompanionSchema, worker: WorkerInfo, claims: Sequence[Claim], columns: str
) -> Plan[HeartbeatReply]:
    """Say that a worker is alive and keeps its messages; answer which it has lost."""
    command = yield from companion.heartbeat(worker)
    if not claims:
        return HeartbeatReply(command=command)
    tokens = [claim.token for claim in claims]
    gone = yield Statement(SQL.extend, [*([token[part] for token in tokens] for part in (2, 0, 1, 3, 6)), columns])
    missing = {(msg_id, read_ct, queue, stamp): cancelled for queue, msg_id, read_ct, stamp, cancelled in gone}
    lost = [token for token in tokens if token[:4] in missing]
    cancelled = frozenset(token for token in lost if missing[token[:4]])  # type: ignore[index]
    return HeartbeatReply(lost=frozenset(lost), cancelled=cancelled, command=command)


def report(claim: Claim, progress: int | None, message: str | None, columns: str) -> Plan[bool]:
    """Store the progress of a message that is held."""
    patch: dict[str, object] = {}
    if progress is not None:
        patch["progress"] = progress
    if message is not None:
        patch["progress_message"] = message
    msg_id, read_ct, queue, stamp = claim.token[:4]
    written = msgspec.json.encode(patch).decode()
    ((kept,),) = yield Statement(SQL.report, [queue, msg_id, read_ct, stamp, written, columns])
    return bool(kept)


def record_crash(claim: Claim, columns: str) -> Plan[bool]:
    """Count a crash of a message that is held."""
    msg_id, read_ct, queue, stamp = claim.token[:4]
    ((held,),) = yield Statement(SQL.record_crash, [queue, msg_id, read_ct, stamp, claim.crashes + 1, columns])
    return bool(held)


def notify(notification: str) -> Plan[None]:
    """Tell whoever listens."""
    yield Statement(SQL.notify, [notification])
