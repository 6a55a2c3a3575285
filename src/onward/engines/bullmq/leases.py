"""Keeps what is held: the worker's sign of life, its locks, and what handlers say of their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from onward.clock import SystemClock, moment_of
from onward.engine.values import Claim, HeartbeatReply, LogLine, Token, WorkerInfo
from onward.engines.bullmq import rows
from onward.engines.bullmq.commands import Command, Plan, script
from onward.engines.bullmq.keys import Layout
from onward.validation import MAX_LOG_LINES

_MOST: Final = 500
"""Locks that one script call extends."""


def heartbeat(layout: Layout, worker: WorkerInfo, claims: Sequence[Claim]) -> Plan[HeartbeatReply]:
    """Say that a worker is alive, and extend its locks."""
    card = msgspec.json.encode(
        {
            "hostname": worker.hostname,
            "pool_size": worker.pool_size,
            "version": worker.version,
            "queues": worker.queues,
            "types": worker.types,
        }
    ).decode()
    tokens = [claim.token for claim in claims]
    chunks = [tokens[first : first + _MOST] for first in range(0, len(tokens), _MOST)] or [[]]
    commands = []
    for chunk in chunks:
        flat = [value for queue, id, lock, lease in chunk for value in (layout.base(str(queue)), id, lock, lease)]
        commands.append(script("heartbeat", layout, [layout.workers], worker.id, card, *flat))
    lost: set[Token] = set()
    gone: set[Token] = set()
    for chunk, places in zip(chunks, (yield commands), strict=True):
        lost.update(chunk[abs(place) - 1] for place in places)
        gone.update(chunk[-place - 1] for place in places if place < 0)
    return HeartbeatReply(lost=frozenset(lost), cancelled=frozenset(gone))


def held(layout: Layout, tokens: Sequence[Token]) -> Command:
    """Ask which claims are lost."""
    flat = [value for token in tokens for value in (layout.base(str(token[0])), token[1], token[2])]
    return script("hold", layout, [layout.workers], *flat)


def start(layout: Layout, claims: Sequence[Claim]) -> Plan[frozenset[Token]]:
    """Say which claims are lost: BullMQ's jobs are started when they are claimed."""
    tokens = [claim.token for claim in claims]
    (places,) = yield [held(layout, tokens)]
    return frozenset(tokens[place - 1] for place in places)


def deregister(layout: Layout, worker_id: str) -> Plan[None]:
    """Take a worker off the list."""
    yield [("HDEL", layout.workers, worker_id)]


def report(layout: Layout, claim: Claim, progress: int | None, message: str | None, lines: Sequence[str]) -> Plan[bool]:
    """Store progress and log lines. BullMQ's lines have no time, so ours begin with it."""
    queue, id, lock = claim.token[:3]
    told: list[Any] = []
    if lines:
        stamp = _stamp(moment_of((layout.clock or SystemClock()).micros()))
        told = [f"{stamp} {line}" for line in lines]
    text = "" if progress is None else rows.progress_text(progress, message)
    (is_held,) = yield [
        script("report", layout, [layout.meta(str(queue))], id, lock, text, MAX_LOG_LINES, *told[-MAX_LOG_LINES:])
    ]
    return bool(is_held)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line_of(text: str, otherwise: datetime) -> LogLine:
    """Read a log line; one that Node wrote has no time of its own."""
    stamp, _, line = text.partition(" ")
    if len(stamp) == 24 and stamp[-1] == "Z" and stamp[10] == "T":
        try:
            return LogLine(datetime.fromisoformat(stamp), line)
        except ValueError:
            pass
    return LogLine(otherwise, text)
