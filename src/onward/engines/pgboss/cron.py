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

from onward.engine.values import ClaimRequest, Settlement, Term
from onward.engines.pgboss import admin
from onward.engines.pgboss.claims import Round, claim
from onward.engines.pgboss.enqueue import Ids, Sending, send
from onward.engines.pgboss.options import SendOptions, sending_of
from onward.engines.pgboss.queue_cache import Shelf
from onward.engines.pgboss.schema import Schema
from onward.engines.pgboss.settle import settle
from onward.errors import OnwardError
from onward.lifecycle import Complete
from onward.pg.claim_batches import ClaimBatches
from onward.pg.plans import Plan, Row

log = logging.getLogger("onward.engines.pgboss")

SEND_IT: Final = "__pgboss__send-it"
"""The queue of pg-boss's own for what is due."""
_EVERY: Final = timedelta(seconds=30)
_DUE_FOR: Final = timedelta(seconds=60)
"""How long a moment may have passed and still count as now."""
_AT_ONCE: Final = 50


def keep_time(schema: Schema, shelf: Shelf, term: Term, ids: Ids, *, notify: bool) -> Plan[frozenset[str]]:
    """Send what is due by the clock, if it is our turn to look; answer the queues that got something."""
    looked = yield schema.statement("keep_time", [term.number, term.leader_id, _EVERY])
    if not looked:
        return frozenset()
    yield from _put_by(schema, shelf, looked[0][0], ids)
    return (yield from _send_it(schema, shelf, term, ids, notify=notify))


def _put_by(schema: Schema, shelf: Shelf, now: datetime, ids: Ids) -> Plan[None]:
    due = [row for row in (yield schema.statement("schedules")) if _is_due(row, now)]
    if not due:
        return
    if SEND_IT not in (yield from shelf.known()):
        yield from admin.create(schema, SEND_IT, {"policy": "standard"})
        shelf.forget()
    sendings = [
        Sending(
            id=id,
            name=SEND_IT,
            data=msgspec.json.encode(_told(schema, row)).decode(),
            singleton_key=_key(schema, row[0], row[1]),
            singleton_seconds=60,
        )
        for row, id in zip(due, ids.take(len(due)), strict=True)
    ]
    yield from send(schema, shelf, sendings, notify=False)


def _send_it(schema: Schema, shelf: Shelf, term: Term, ids: Ids, *, notify: bool) -> Plan[frozenset[str]]:
    request = ClaimRequest(worker_id=term.leader_id, queues=(SEND_IT,), slots=_AT_ONCE)
    claimed = yield from claim(schema, shelf, request, Round(), ClaimBatches())
    names = set()
    for each in claimed.claims:
        told = msgspec.json.decode(each.payload)
        try:
            options = _options(told)
            data = None if told.get("data") is None else msgspec.json.encode(told["data"]).decode()
            (id,) = ids.take(1)
            yield from send(schema, shelf, [sending_of(told["name"], data, id, options)], notify=notify)
            names.add(told["name"])
        except (OnwardError, msgspec.ValidationError, KeyError) as error:
            log.warning("a schedule cannot be kept: %s", error, extra={"schedule": told})
    if claimed.claims:
        yield from settle(schema, shelf, [Settlement(each, Complete()) for each in claimed.claims], notify=False)
    return frozenset(names)


def _is_due(row: Row, now: datetime) -> bool:
    name, key, kind, cron, timezone = row[:5]
    if kind != "cron":
        log.warning("a schedule of kind %s is left to Node: %s %s", kind, name, key)
        return False
    try:
        zone = ZoneInfo(timezone)
        return next(CronSim(cron, (now - _DUE_FOR).astimezone(zone))) <= now
    except (CronSimError, KeyError, ValueError, OSError, StopIteration) as error:
        log.warning("a schedule cannot be read: %s %s %r: %s", name, key, cron, error)
        return False


def _told(schema: Schema, row: Row) -> dict[str, Any]:
    data = None if row[5] is None else msgspec.Raw(row[5].encode())
    options = msgspec.json.decode(row[6] or "{}")
    if not schema.has("schedule.key"):
        return {"name": row[0], "data": data, **options}
    return {"name": row[0], "key": row[1], "data": data, "options": options}


def _key(schema: Schema, name: str, key: str) -> str:
    """Name the slot of a schedule as the installed pg-boss does, so that Node and we share it."""
    if not schema.has("schedule.key"):
        return name
    return f"{name.replace('_', chr(92) + '_') if schema.has('schedule.last_job_id') else name}__{key}"


def _options(told: Mapping[str, Any]) -> SendOptions:
    given = told["options"] if isinstance(told.get("options"), dict) else told
    known = {field.encode_name for field in msgspec.structs.fields(SendOptions)}
    return msgspec.convert({name: value for name, value in given.items() if name in known}, SendOptions)
