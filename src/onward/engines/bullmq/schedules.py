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
from onward.engines.bullmq.commands import Command, Plan, script
from onward.engines.bullmq.enqueue import Adding
from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.node_options import Repeat
from onward.errors import InvalidJob

log = logging.getLogger("onward.engines.bullmq")


def begin(
    layout: Layout, queue: str, scheduler: str, repeat: Repeat, job: Adding, members: Mapping[str, Any]
) -> Plan[Any]:
    """Make a scheduler, or change one, with its next job."""
    (micros,) = yield [script("now", layout, [layout.workers])]
    now, said = int(micros) // 1000, repeat.members
    if (ends := said.get("endDate")) is not None and now > ends:
        raise InvalidJob("end_date", repeat.end_date, "must be in the future")
    at: int | str = ""
    if repeat.pattern is not None:
        at = next_time(repeat.pattern, max(now, said.get("startDate", 0)), repeat.tz)
    template = {name: value for name, value in members.items() if name != "attempts" or value}
    following = {**template, "timestamp": now, "repeatJobKey": scheduler, "repeat": {**said, "count": 1}}
    if at:
        following["prevMillis"] = at
    settings = {"name": job.name, **said}
    texts = [msgspec.json.encode(value).decode() for value in (settings, template, following)]
    meta = layout.meta(queue)
    (answer,) = yield [script("schedule", layout, [meta], scheduler, at, texts[0], job.data, texts[1], texts[2])]
    return answer


def go_on(layout: Layout, picked: Sequence[tuple[Claim, str, str]], now: int) -> Plan[None]:
    """Make the next job of every scheduler whose last one was picked up.

    A schedule that cannot be read ends there, and is told of; the job that was picked up runs all the same.
    """
    commands: list[Command] = []
    for claim, scheduler, text in picked:
        try:
            following = _following(scheduler, msgspec.json.decode(text), now // 1000)
        except Exception:
            log.exception("schedule ends, it cannot be read", extra={"scheduler": scheduler, "queue": claim.ref.queue})
            continue
        if following is not None:
            at, opts = following
            meta = layout.meta(claim.ref.queue)
            commands.append(script("reschedule", layout, [meta], scheduler, claim.ref.id, at, opts))
    if commands:
        yield commands


def _following(scheduler: str, opts: dict[str, Any], now: int) -> tuple[int | str, str] | None:
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
    following = {name: value for name, value in opts.items() if name not in {"delay", "prevMillis"}}
    following = {"attempts": 0, **following, "timestamp": now, "repeatJobKey": scheduler, "repeat": repeat}
    if at:
        following["prevMillis"] = at
    return at, msgspec.json.encode(following).decode()


def next_time(pattern: str, after: int, zone: str | None) -> int:
    """Say when a cron pattern comes due next, in milliseconds since 1970; with six fields the first is seconds."""
    here: tzinfo = ZoneInfo(zone) if zone else UTC
    moment = datetime.fromtimestamp(after / 1000, tz=here)
    return int(next(CronSim(pattern, moment)).timestamp() * 1000)


def _millis(said: Any) -> int | None:
    if said is None or said == "":
        return None
    if isinstance(said, int | float):
        return int(said)
    try:
        return int(said)
    except ValueError:
        return int(datetime.fromisoformat(str(said)).timestamp() * 1000)
