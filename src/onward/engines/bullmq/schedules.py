"""Keeps BullMQ's job schedulers going.

A scheduler has one job at a time, and the worker that claims it makes the next: a worker that did not would end the
schedule. Intervals are counted in the store; the time of a cron pattern is computed here, in the scheduler's time zone.
A pattern that only Node can read (a repeatStrategy of its own) is never consumed: see :mod:`.claims`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from onward.engines.bullmq.cron_pattern import UnreadablePattern, parse, zone_of
from onward.engines.bullmq.enqueue import EnqueueRow
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.native_options import Repeat
from onward.engines.bullmq.plan_runner import Command, Plan, script
from onward.errors import InvalidValue

log = logging.getLogger("onward.engines.bullmq")


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler says: the job that it makes, and when."""

    name: str
    data: str
    """JSON text."""
    options: dict[str, Any]
    """The options of its jobs, as Node writes them."""
    repeat: dict[str, Any]
    """``pattern`` and ``tz``, or ``every``; and limits. Times in milliseconds since 1970."""


class ScheduledJob(NamedTuple):
    """A claimed job of a scheduler, whose next one is to be made."""

    queue: str
    id: str
    scheduler: str
    opts: str
    """As the job has them (JSON)."""


def upsert(
    keys: Keys, queue: str, scheduler: str, repeat: Repeat, job: EnqueueRow, members: Mapping[str, Any]
) -> Plan[Any]:
    """Create or change a scheduler, with its next job: see :func:`put`."""
    (micros,) = yield [script("server_time", keys, [keys.workers])]
    now, repeat_options = int(micros) // 1000, repeat.members
    if (ends := repeat_options.get("endDate")) is not None and now > ends:
        raise InvalidValue("end_date", repeat.end_date, "must be in the future")
    at: int | None = None
    if repeat.pattern is not None:
        found = next_time(repeat.pattern, max(now, repeat_options.get("startDate", 0)), repeat.tz, scheduler)
        if found is None:
            raise InvalidValue("pattern", repeat.pattern, "never comes: there is no such day")
        at = found
    settings = SchedulerSettings(
        name=job.name,
        data=job.data,
        options={name: value for name, value in members.items() if name != "attempts" or value},
        repeat=repeat_options,
    )
    return (yield from put(keys, queue, scheduler, settings, at, now))


def put(
    keys: Keys, queue: str, scheduler: str, settings: SchedulerSettings, at: int | None, now: int
) -> Plan[tuple[str, Any]]:
    """Store a scheduler, with its next job.

    ``at`` is when that is due, in milliseconds; None: the store counts the interval. Returns the next job's id and for
    how many milliseconds it is delayed; or '' and the reason.
    """
    template, repeat_options = settings.options, settings.repeat
    next_options = {**template, "timestamp": now, "repeatJobKey": scheduler, "repeat": {**repeat_options, "count": 1}}
    if at:
        next_options["prevMillis"] = at
    values = {"name": settings.name, **repeat_options}
    texts = [msgspec.json.encode(value).decode() for value in (values, template, next_options)]
    arguments = [scheduler, "" if at is None else at, texts[0], settings.data, texts[1], texts[2]]
    (answer,) = yield [script("upsert_scheduler", keys, [keys.meta(queue)], *arguments)]
    id, delay = answer
    return str(id), delay


def add_next_jobs(keys: Keys, claimed: Sequence[ScheduledJob], now: int) -> Plan[None]:
    """Make the next job of every scheduler whose last one was claimed; ``now`` is in microseconds.

    A job without readable options makes its next one from what the scheduler itself has on record.
    """
    commands: list[Command] = []
    for job in claimed:
        known: Mapping[str, str] | None = None
        if repeat_of(job.opts) is None:
            settings = f"{keys.base(job.queue)}repeat:{job.scheduler}"
            (values,) = yield [("HGETALL", settings)]
            known = values if isinstance(values, dict) else dict(zip(values[::2], values[1::2], strict=True))
        try:
            opts = job.opts if known is None else _options_on_record(known)
            next_job = compute_next(job.scheduler, opts, now // 1000)
        except Exception:
            log.exception("schedule ends: it cannot be read", extra={"scheduler": job.scheduler, "queue": job.queue})
            continue
        if next_job is not None:
            meta = keys.meta(job.queue)
            commands.append(script("advance_scheduler", keys, [meta], job.scheduler, job.id, *next_job))
    if commands:
        yield commands


def repeat_of(opts: str | None) -> Mapping[str, Any] | None:
    """Read how a scheduler's job repeats; None: its options are damaged."""
    try:
        values = msgspec.json.decode(opts or "")
    except msgspec.DecodeError:
        return None
    repeat = values.get("repeat") if isinstance(values, dict) else None
    return repeat if isinstance(repeat, dict) and (repeat.get("every") or repeat.get("pattern")) else None


def _options_on_record(values: Mapping[str, str]) -> str:
    """Make a job's options from the scheduler's settings."""
    try:
        opts = msgspec.json.decode(values.get("opts") or "{}")
    except msgspec.DecodeError:
        opts = {}
    repeat: dict[str, Any] = {name: values[name] for name in ("pattern", "tz") if name in values}
    for name in ("every", "offset", "limit", "startDate", "endDate"):
        if name in values:
            repeat[name] = _millis(values[name])
    repeat["count"] = int(values.get("ic") or 0)
    return msgspec.json.encode({**(opts if isinstance(opts, dict) else {}), "repeat": repeat}).decode()


def compute_next(scheduler: str, text: str, now: int) -> tuple[int | str, str] | None:
    """Compute the next job's time in milliseconds, '' where the store counts it, and its options; None: none follows.

    Raises:
        UnreadablePattern: the pattern or the zone is one that only a Node worker can read.
    """
    opts = msgspec.json.decode(text)
    repeat = {name: value for name, value in (opts.get("repeat") or {}).items() if name != "immediately"}
    count = int(repeat.get("count") or 0) + 1
    ends = _millis(repeat.get("endDate"))
    if (repeat.get("limit") is not None and count > int(repeat["limit"])) or (ends is not None and now > ends):
        return None
    every, pattern, starts = repeat.get("every"), repeat.get("pattern"), _millis(repeat.get("startDate"))
    at: int | str = ""
    if pattern:
        since = max(now, int(opts.get("prevMillis") or 0))
        seed = str(repeat.get("hashSeed") or scheduler)
        found = next_time(str(pattern), max(since, starts or 0), repeat.get("tz"), seed)
        if found is None or (ends is not None and found > ends):
            return None
        at = max(found, since)
    elif not every:
        raise UnreadablePattern("the scheduler has neither every nor a pattern")
    offset = repeat.pop("offset", None)
    repeat.update(
        {
            name: value
            for name, value in (
                ("offset", offset if every else None),
                ("count", count),
                ("startDate", starts),
                ("endDate", ends),
            )
            if value is not None
        }
    )
    next_options = {name: value for name, value in opts.items() if name not in {"delay", "prevMillis"}}
    next_options = {"attempts": 0, **next_options, "timestamp": now, "repeatJobKey": scheduler, "repeat": repeat}
    if at:
        next_options["prevMillis"] = at
    return at, msgspec.json.encode(next_options).decode()


def next_time(pattern: str, since: int, zone: str | None, seed: str = "") -> int | None:
    """Compute when a cron pattern comes due next, in milliseconds since 1970; None: never."""
    try:
        moment = datetime.fromtimestamp(since / 1000, tz=UTC)
    except (OSError, OverflowError, ValueError):
        raise UnreadablePattern(f"{since} is no time in milliseconds since 1970") from None
    at = parse(pattern, seed).next_after(moment, zone_of(zone))
    return None if at is None else int(at.timestamp() * 1000)


def _millis(value: Any) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        return int(value)
    try:
        return int(value)
    except ValueError:
        return int(datetime.fromisoformat(str(value)).timestamp() * 1000)
