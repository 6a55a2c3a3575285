"""BullMQ's job options, and ours within them.

What BullMQ has a word for is said in it, so that a Node worker treats the job as we would. What it has none for stands
under ``onward`` in the same options: the organisation, the idempotency key, a backoff with a cap. Whether that member
is there also tells our jobs from Node's, which keep Node's policy (B6).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from onward.backoff import DEFAULT_BACKOFF, Backoff, BackoffKind
from onward.job import NewJob
from onward.lifecycle import MAX_ATTEMPTS
from onward.validation import MAX_LOG_LINES

MAX_BACKOFF: Final = 3600.0
"""Seconds: jobs that Onward adds never wait longer between attempts (B6)."""
_IMMEDIATE: Final = Backoff.fixed(1e-6)
"""Node's jobs without a backoff are tried again at once."""
_PRIORITY_BASE: Final = 2**20
"""Onward's priorities count up, BullMQ's down: p is this less p (B9)."""

_encode = msgspec.json.encode


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's options say, as far as we heed them."""

    max_attempts: int = 1
    backoff: Backoff | None = None
    delay: int = 0
    """Milliseconds from when the job was added until it was first due."""
    is_ours: bool = False
    org_id: str | None = None
    idempotency_key: str | None = None
    repeat: dict[str, Any] | None = None
    trace: str | None = None


def to_bullmq_priority(priority: int) -> int:
    """Turn Onward's priority into BullMQ's, for a queue that is prioritized."""
    return _PRIORITY_BASE - priority


def to_onward_priority(priority: int) -> int:
    """Turn BullMQ's priority into Onward's."""
    return _PRIORITY_BASE - priority if 0 < priority <= _PRIORITY_BASE else 0


def write(job: NewJob, *, is_prioritized: bool) -> str:
    """Write the options of a new job, but for its delay, which the store adds by its own clock."""
    if job.org_id is None and job.idempotency_key is None and job.dedupe_key is None and job.trace is None:
        return _write_cached(job.max_attempts or MAX_ATTEMPTS, job.backoff, job.priority if is_prioritized else None)
    return _write(
        job.max_attempts or MAX_ATTEMPTS,
        job.backoff,
        job.priority if is_prioritized else None,
        org_id=job.org_id,
        key=job.idempotency_key,
        dedupe=job.dedupe_key,
        trace=job.trace,
    )


def _write(
    attempts: int,
    backoff: Backoff | None,
    priority: int | None,
    *,
    org_id: str | None = None,
    key: str | None = None,
    dedupe: str | None = None,
    trace: str | None = None,
) -> str:
    chosen = backoff or DEFAULT_BACKOFF
    own: dict[str, Any] = {}
    if backoff is not None:
        own["backoff"] = backoff
    if org_id is not None:
        own["org"] = org_id
    if key is not None:
        own["key"] = key
    options: dict[str, Any] = {
        "attempts": attempts,
        "backoff": {"type": chosen.kind, "delay": max(round(chosen.base * 1000), 1)},
        "kl": MAX_LOG_LINES,
    }
    if priority is not None:
        options["priority"] = to_bullmq_priority(priority)
    if dedupe is not None:
        options["de"] = {"id": dedupe}
    if trace is not None:
        options["tm"] = trace
    options["onward"] = own
    return _encode(options).decode()


@lru_cache(256)
def _write_cached(attempts: int, backoff: Backoff | None, priority: int | None) -> str:
    return _write(attempts, backoff, priority)


@lru_cache(256)
def read(text: str) -> Options:
    """Read a job's options.

    Raises:
        ValueError: they are damaged.
    """
    options = msgspec.json.decode(text)
    if not isinstance(options, dict):
        raise ValueError("must be a JSON object")  # noqa: TRY004 - what is read is a value
    own = options.get("onward")
    is_ours = isinstance(own, dict)
    own_options: dict[str, Any] = own if isinstance(own, dict) else {}
    repeat, trace = options.get("repeat"), options.get("tm")
    return Options(
        max_attempts=max(1, _int_of(options.get("attempts"))),
        backoff=_own_backoff(own_options.get("backoff")) if is_ours else _backoff_of_node(options.get("backoff")),
        delay=_int_of(options.get("delay")),
        is_ours=is_ours,
        org_id=own_options.get("org"),
        idempotency_key=own_options.get("key"),
        repeat=repeat if isinstance(repeat, dict) else None,
        trace=trace if isinstance(trace, str) else None,
    )


def changed(text: str, **members: Any) -> str:
    """Write options again with some members changed."""
    options = msgspec.json.decode(text)
    options.update(members)
    return _encode(options).decode()


def _int_of(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _own_backoff(value: Any) -> Backoff | None:
    if value is None:
        return None
    backoff = msgspec.convert(value, Backoff)
    if backoff.kind == BackoffKind.EXPONENTIAL and (backoff.cap is None or backoff.cap > MAX_BACKOFF):
        return replace(backoff, cap=MAX_BACKOFF)
    return backoff


def _backoff_of_node(value: Any) -> Backoff | None:
    """Read Node's backoff: its jitter takes away from the delay, ours adds to it."""
    if value is None:
        return _IMMEDIATE
    if isinstance(value, int | float):
        value = {"type": "fixed", "delay": value}
    if not isinstance(value, dict) or value.get("type") not in tuple(BackoffKind):
        return None
    jitter = min(max(float(value.get("jitter") or 0), 0.0), 1.0)
    base = float(value.get("delay") or 0) / 1000 * (1 - jitter)
    if base <= 0:
        return _IMMEDIATE
    extra = min(jitter / (1 - jitter), 1.0) if jitter < 1 else 1.0
    return Backoff(kind=BackoffKind(value["type"]), base=base, factor=2.0, cap=None, jitter=extra)
