"""What a Node instance does besides working, done here where no Node runs: sends what is due by the clock.

pg-boss has one of all instances look at the schedules, every half a minute: whoever moves ``version.cron_on`` is the
one. What is due goes to a queue of pg-boss's own first, where a slot of a minute keeps it from being there twice, and
from there to the queue it is for. We do the same in the same places, so that a Node instance may come and go meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from onward.engine.values import ClaimRequest, Claims, Settlement, Term
from onward.engines.pgboss import admin
from onward.engines.pgboss.claims import RoundRobin, claim
from onward.engines.pgboss.enqueue import IdGenerator, SendRequest, send
from onward.engines.pgboss.options import SendOptions, send_request_of
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.settle import settle
from onward.engines.pgboss.statements import Schema
from onward.errors import OnwardError
from onward.lifecycle import Complete
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan, Row

log = logging.getLogger("onward.engines.pgboss")

SEND_IT: Final = "__pgboss__send-it"
"""The queue of pg-boss's own for what is due."""
_CRON_INTERVAL: Final = timedelta(seconds=30)
_DUE_WINDOW: Final = timedelta(seconds=60)
"""How long a moment may have passed and still count as now."""
_MAX_FORWARDED: Final = 50


def send_due_schedules(
    schema: Schema, queue_cache: QueueCache, term: Term, ids: IdGenerator, *, notify: bool
) -> Plan[frozenset[str]]:
    """Send what is due by the clock, if it is our turn to look; answer the queues that got something."""
    ticked = yield schema.statement("claim_cron_tick", [term.number, term.leader_id, _CRON_INTERVAL])
    if not ticked:
        return frozenset()
    yield from _queue_due_schedules(schema, queue_cache, ticked[0][0], ids)
    return (yield from _forward_due_jobs(schema, queue_cache, term, ids, notify=notify))


def _queue_due_schedules(schema: Schema, queue_cache: QueueCache, now: datetime, ids: IdGenerator) -> Plan[None]:
    due = [row for row in (yield schema.statement("schedules")) if _is_due(row, now)]
    if not due:
        return
    if SEND_IT not in (yield from queue_cache.cached()):
        yield from admin.create(schema, SEND_IT, {"policy": "standard"})
        queue_cache.invalidate()
    requests = [
        SendRequest(
            id=id,
            name=SEND_IT,
            data=msgspec.json.encode(_send_it_data(schema, row)).decode(),
            singleton_key=_singleton_key(schema, row[0], row[1]),
            singleton_seconds=60,
        )
        for row, id in zip(due, ids.generate(len(due)), strict=True)
    ]
    yield from send(schema, queue_cache, requests, notify=False)


def _forward_due_jobs(
    schema: Schema, queue_cache: QueueCache, term: Term, ids: IdGenerator, *, notify: bool
) -> Plan[frozenset[str]]:
    request = ClaimRequest(worker_id=term.leader_id, queues=(SEND_IT,), slots=_MAX_FORWARDED)
    claimed = (yield from claim(schema, queue_cache, request, RoundRobin(), OpenClaims())) or Claims()
    names = set()
    for each in claimed.claims:
        message = msgspec.json.decode(each.payload)
        try:
            options = _options(message)
            data = None if message.get("data") is None else msgspec.json.encode(message["data"]).decode()
            (id,) = ids.generate(1)
            yield from send(schema, queue_cache, [send_request_of(message["name"], data, id, options)], notify=notify)
            names.add(message["name"])
        except (OnwardError, msgspec.ValidationError, KeyError) as error:
            log.warning("a schedule cannot be kept: %s", error, extra={"schedule": message})
    if claimed.claims:
        yield from settle(schema, queue_cache, [Settlement(each, Complete()) for each in claimed.claims], notify=False)
    return frozenset(names)


def _is_due(row: Row, now: datetime) -> bool:
    name, key, kind, cron, timezone = row[:5]
    if kind != "cron":
        log.warning("a schedule of kind %s is left to Node: %s %s", kind, name, key)
        return False
    try:
        zone = ZoneInfo(timezone)
        return next(CronSim(cron, (now - _DUE_WINDOW).astimezone(zone))) <= now
    except (CronSimError, KeyError, ValueError, OSError, StopIteration) as error:
        log.warning("a schedule cannot be read: %s %s %r: %s", name, key, cron, error)
        return False


def _send_it_data(schema: Schema, row: Row) -> dict[str, Any]:
    data = None if row[5] is None else msgspec.Raw(row[5].encode())
    options = msgspec.json.decode(row[6] or "{}")
    if not schema.has("schedule.key"):
        return {"name": row[0], "data": data, **options}
    return {"name": row[0], "key": row[1], "data": data, "options": options}


def _singleton_key(schema: Schema, name: str, key: str) -> str:
    """Name the slot of a schedule as the installed pg-boss does, so that Node and we share it."""
    if not schema.has("schedule.key"):
        return name
    return f"{name.replace('_', chr(92) + '_') if schema.has('schedule.last_job_id') else name}__{key}"


def _options(message: Mapping[str, Any]) -> SendOptions:
    given = message["options"] if isinstance(message.get("options"), dict) else message
    known = {field.encode_name for field in msgspec.structs.fields(SendOptions)}
    return msgspec.convert({name: value for name, value in given.items() if name in known}, SendOptions)
