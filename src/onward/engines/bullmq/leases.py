"""Keeps what is held: the worker's sign of life, its locks, and what handlers say of their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from onward.clock import SystemClock, moment_of
from onward.engine.values import Claim, HeartbeatReply, LogLine, Token, WorkerCommand, WorkerInfo
from onward.engines.bullmq import rows
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Command, Plan, script
from onward.validation import MAX_LOG_LINES

_MAX_LOCKS: Final = 500
"""Locks that one script call extends."""


def heartbeat(keys: Keys, worker: WorkerInfo, claims: Sequence[Claim]) -> Plan[HeartbeatReply]:
    """Say that a worker is alive, and extend its locks."""
    info = msgspec.json.encode(
        {
            "hostname": worker.hostname,
            "pool_size": worker.pool_size,
            "version": worker.version,
            "queues": worker.queues,
            "types": worker.types,
        }
    ).decode()
    tokens = [claim.token for claim in claims]
    chunks = [tokens[first : first + _MAX_LOCKS] for first in range(0, len(tokens), _MAX_LOCKS)] or [[]]
    commands = []
    for chunk in chunks:
        flat = [value for queue, id, lock, lease in chunk for value in (keys.base(str(queue)), id, lock, lease)]
        commands.append(script("heartbeat", keys, [keys.workers, keys.worker_commands], worker.id, info, *flat))
    lost: set[Token] = set()
    gone: set[Token] = set()
    answers = yield commands
    for chunk, (_, positions) in zip(chunks, answers, strict=True):
        lost.update(chunk[abs(position) - 1] for position in positions)
        gone.update(chunk[-position - 1] for position in positions if position < 0)
    told = answers[-1][0]
    command = WorkerCommand(told) if told else None
    return HeartbeatReply(lost=frozenset(lost), cancelled=frozenset(gone), command=command)


def command_worker(keys: Keys, worker_id: str, command: WorkerCommand) -> Plan[bool]:
    """Tell a worker what to do, and answer whether it is registered."""
    told = "" if command is WorkerCommand.RESUME else command.value
    (is_known,) = yield [script("worker_command", keys, [keys.workers, keys.worker_commands], worker_id, told)]
    return bool(is_known)


def check_claims(keys: Keys, tokens: Sequence[Token]) -> Command:
    """Ask which claims are lost."""
    flat = [value for token in tokens for value in (keys.base(str(token[0])), token[1], token[2])]
    return script("check_claims", keys, [keys.workers], *flat)


def start(keys: Keys, claims: Sequence[Claim]) -> Plan[frozenset[Token]]:
    """Say which claims are lost: BullMQ's jobs are started when they are claimed."""
    tokens = [claim.token for claim in claims]
    (positions,) = yield [check_claims(keys, tokens)]
    return frozenset(tokens[position - 1] for position in positions)


def deregister(keys: Keys, worker_id: str) -> Plan[None]:
    """Take a worker off the list."""
    yield [("HDEL", keys.workers, worker_id), ("HDEL", keys.worker_commands, worker_id)]


def report(keys: Keys, claim: Claim, progress: int | None, message: str | None, lines: Sequence[str]) -> Plan[bool]:
    """Store progress and log lines. BullMQ's lines have no time, so ours begin with it."""
    queue, id, lock = claim.token[:3]
    timed_lines: list[Any] = []
    if lines:
        timestamp = _timestamp(moment_of((keys.clock or SystemClock()).micros()))
        timed_lines = [f"{timestamp} {line}" for line in lines]
    text = "" if progress is None else rows.progress_text(progress, message)
    (is_held,) = yield [
        script("report", keys, [keys.meta(str(queue))], id, lock, text, MAX_LOG_LINES, *timed_lines[-MAX_LOG_LINES:])
    ]
    return bool(is_held)


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_line_of(text: str, default: datetime) -> LogLine:
    """Read a log line; one that Node wrote has no time of its own."""
    timestamp, _, line = text.partition(" ")
    if len(timestamp) == 24 and timestamp[-1] == "Z" and timestamp[10] == "T":
        try:
            return LogLine(datetime.fromisoformat(timestamp), line)
        except ValueError:
            pass
    return LogLine(default, text)
