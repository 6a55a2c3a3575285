"""Keeps BullMQ's job schedulers going.

A scheduler has one job at a time, and whoever picks it up makes the next: a worker that did not would end the schedule.
How often is counted in the store; a cron pattern is worked out here, in the scheduler's time zone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim

from onward.engine.values import Claim
from onward.engines.bullmq.enqueue import EnqueueRow
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.native_options import Repeat
from onward.engines.bullmq.plan_runner import Command, Plan, script
from onward.errors import InvalidValue

log = logging.getLogger("onward.engines.bullmq")


def upsert(
    keys: Keys, queue: str, scheduler: str, repeat: Repeat, job: EnqueueRow, members: Mapping[str, Any]
) -> Plan[Any]:
    """Make a scheduler, or change one, with its next job."""
    (micros,) = yield [script("server_time", keys, [keys.workers])]
    now, repeat_options = int(micros) // 1000, repeat.members
    if (ends := repeat_options.get("endDate")) is not None and now > ends:
        raise InvalidValue("end_date", repeat.end_date, "must be in the future")
    at: int | str = ""
    if repeat.pattern is not None:
        at = next_time(repeat.pattern, max(now, repeat_options.get("startDate", 0)), repeat.tz)
    template = {name: value for name, value in members.items() if name != "attempts" or value}
    next_options = {**template, "timestamp": now, "repeatJobKey": scheduler, "repeat": {**repeat_options, "count": 1}}
    if at:
        next_options["prevMillis"] = at
    settings = {"name": job.name, **repeat_options}
    texts = [msgspec.json.encode(value).decode() for value in (settings, template, next_options)]
    meta = keys.meta(queue)
    (answer,) = yield [script("upsert_scheduler", keys, [meta], scheduler, at, texts[0], job.data, texts[1], texts[2])]
    return answer


def add_next_jobs(keys: Keys, claimed: Sequence[tuple[Claim, str, str]], now: int) -> Plan[None]:
    """Make the next job of every scheduler whose last one was picked up.

    A schedule that cannot be read ends there, and is told of; the job that was picked up runs all the same.
    """
    commands: list[Command] = []
    for claim, scheduler, text in claimed:
        try:
            next_job = _next_job(scheduler, msgspec.json.decode(text), now // 1000)
        except Exception:
            log.exception("schedule ends, it cannot be read", extra={"scheduler": scheduler, "queue": claim.ref.queue})
            continue
        if next_job is not None:
            at, opts = next_job
            meta = keys.meta(claim.ref.queue)
            commands.append(script("advance_scheduler", keys, [meta], scheduler, claim.ref.id, at, opts))
    if commands:
        yield commands


def _next_job(scheduler: str, opts: dict[str, Any], now: int) -> tuple[int | str, str] | None:
    """Work out the next job's time, '' where the store counts it, and its options; None: there is none."""
    repeat = {name: value for name, value in (opts.get("repeat") or {}).items() if name != "immediately"}
    count = int(repeat.get("count") or 0) + 1
    ends = _millis(repeat.get("endDate"))
    if (repeat.get("limit") is not None and count > int(repeat["limit"])) or (ends is not None and now > ends):
        return None
    every, pattern, starts = repeat.get("every"), repeat.get("pattern"), _millis(repeat.get("startDate"))
    at: int | str = ""
    if pattern:
        since = max(now, int(opts.get("prevMillis") or 0))
        at = max(next_time(str(pattern), max(since, starts or 0), repeat.get("tz")), since)
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


def next_time(pattern: str, since: int, zone: str | None) -> int:
    """Say when a cron pattern comes due next, in milliseconds since 1970; with six fields the first is seconds."""
    time_zone: tzinfo = ZoneInfo(zone) if zone else UTC
    moment = datetime.fromtimestamp(since / 1000, tz=time_zone)
    return int(next(CronSim(pattern, moment)).timestamp() * 1000)


def _millis(value: Any) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        return int(value)
    try:
        return int(value)
    except ValueError:
        return int(datetime.fromisoformat(str(value)).timestamp() * 1000)
