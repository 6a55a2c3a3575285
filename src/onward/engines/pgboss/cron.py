"""Fires schedules as an instance of pg-boss does.

What is due goes to a queue of pg-boss's own first, where a slot of a minute keeps it from being there twice, and from
there to the queue it is for. Node does the same in the same places, so each turn is fired once, by either side. The
leader fires the schedules that Onward created, and with ``supervise`` those of Node too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from onward.engine.values import ClaimRequest, Claims, Settlement, Term
from onward.engines.pgboss import admin, schedules
from onward.engines.pgboss.claims import RoundRobin, claim
from onward.engines.pgboss.enqueue import IdGenerator, SendRequest, send
from onward.engines.pgboss.options import SendOptions, send_request_of
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.schedules import ScheduleRow
from onward.engines.pgboss.settle import settle
from onward.engines.pgboss.statements import Schema
from onward.errors import OnwardError
from onward.lifecycle import Complete
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan

log = logging.getLogger("onward.engines.pgboss")

SEND_IT: Final = "__pgboss__send-it"
"""The queue of pg-boss's own for what is due."""
_DUE_WINDOW: Final = timedelta(seconds=60)
"""How long a turn may have passed and still be fired; as long as a slot of that queue."""
_CHECK_INTERVAL: Final = 5.0
"""Seconds after which a schedule that was created or changed meanwhile is found."""
_MAX_FORWARDED: Final = 50
"""Due jobs that are forwarded with one claim."""


class Fired(NamedTuple):
    """What one check of the schedules has done."""

    queues: frozenset[str] = frozenset()
    """The queues that got a job."""
    next_in: float | None = None
    """Seconds until the next turn."""
    until: datetime | None = None
    """The turns until this moment have been fired; None: another worker leads."""


class CronCheck:
    """When a leader looks at the schedules, and which turns it has fired."""

    def __init__(self) -> None:
        self._checked_until: datetime | None = None
        self._next_check = 0.0
        self._unreadable: set[tuple[str, str, str]] = set()

    @property
    def is_due(self) -> bool:
        """Whether to look at the schedules now."""
        return time.monotonic() >= self._next_check

    def since(self, now: datetime) -> datetime:
        """Tell after which moment turns are due: those before it were fired, or are too old."""
        oldest = now - _DUE_WINDOW
        return oldest if self._checked_until is None else min(max(oldest, self._checked_until), now)

    def mark_fired(self, fired: Fired) -> None:
        """Record what a check has fired, once its transaction has committed."""
        self._checked_until = fired.until or self._checked_until
        interval = _CHECK_INTERVAL if fired.next_in is None else min(_CHECK_INTERVAL, fired.next_in)
        self._next_check = time.monotonic() + interval

    def warn(self, row: ScheduleRow) -> None:
        """Log once that a schedule is left to Node."""
        if (which := (row.queue, row.key, row.cron)) not in self._unreadable:
            self._unreadable.add(which)
            log.warning("schedule %s is left to Node: %s %r cannot be read here", row.name, row.kind, row.cron)


def send_due_schedules(
    schema: Schema,
    queue_cache: QueueCache,
    term: Term,
    ids: IdGenerator,
    check: CronCheck,
    *,
    notify: bool,
    supervises: bool,
) -> Plan[Fired]:
    """Fire the turns that have come since the last check, as part of a transaction."""
    clock = yield schema.statement("cron_clock", [term.number, term.leader_id])
    if not clock:
        return Fired()
    now = clock[0][0]
    rows = [row for row in (yield from schedules.read(schema)) if not row.is_paused and (supervises or row.is_ours)]
    since = check.since(now)
    due, upcoming = [], []
    for row in rows:
        turn = row.next_after(since if row.created_on is None else max(since, row.created_on))
        if turn is None:
            check.warn(row)
        elif turn <= now:
            due.append(row)
            upcoming += [following for following in [row.next_after(now)] if following is not None]
        else:
            upcoming.append(turn)
    if due:
        yield from _queue_due_schedules(schema, queue_cache, due, ids)
    queues: frozenset[str] = frozenset()
    if due or supervises:
        queues = yield from _forward_due_jobs(schema, queue_cache, term, ids, notify=notify)
    next_in = (min(upcoming) - now).total_seconds() if upcoming else None
    return Fired(queues, next_in, now)


def _queue_due_schedules(
    schema: Schema, queue_cache: QueueCache, due: list[ScheduleRow], ids: IdGenerator
) -> Plan[None]:
    if SEND_IT not in (yield from queue_cache.cached()):
        yield from admin.create(schema, SEND_IT, {"policy": "standard"})
        queue_cache.invalidate()
    requests = [
        SendRequest(
            id=id,
            name=SEND_IT,
            data=msgspec.json.encode(_send_it_data(schema, row)).decode(),
            singleton_key=_singleton_key(schema, row.queue, row.key),
            singleton_seconds=60,
        )
        for row, id in zip(due, ids.generate(len(due)), strict=True)
    ]
    yield from send(schema, queue_cache, requests, notify=False)


def _forward_due_jobs(
    schema: Schema, queue_cache: QueueCache, term: Term, ids: IdGenerator, *, notify: bool
) -> Plan[frozenset[str]]:
    request = ClaimRequest(worker_id=term.leader_id, queues=(SEND_IT,), slots=_MAX_FORWARDED)
    names: set[str] = set()
    while True:
        claimed = (yield from claim(schema, queue_cache, request, RoundRobin(), OpenClaims())) or Claims()
        if not claimed.claims:
            return frozenset(names)
        names |= yield from _forward(schema, queue_cache, claimed, ids, notify=notify)


def _forward(
    schema: Schema, queue_cache: QueueCache, claimed: Claims, ids: IdGenerator, *, notify: bool
) -> Plan[set[str]]:
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
    yield from settle(schema, queue_cache, [Settlement(each, Complete()) for each in claimed.claims], notify=False)
    return names


def _send_it_data(schema: Schema, row: ScheduleRow) -> dict[str, Any]:
    data = None if row.data is None else msgspec.Raw(row.data.encode())
    if not schema.has("schedule.key"):
        return {"name": row.queue, "data": data, **row.option_values}
    return {"name": row.queue, "key": row.key, "data": data, "options": row.option_values}


def _singleton_key(schema: Schema, name: str, key: str) -> str:
    """Name the slot of a schedule as the installed pg-boss does, so that Node and we share it."""
    if not schema.has("schedule.key"):
        return name
    return f"{name.replace('_', chr(92) + '_') if schema.has('schedule.last_job_id') else name}__{key}"


def _options(message: Mapping[str, Any]) -> SendOptions:
    given = message["options"] if isinstance(message.get("options"), dict) else message
    known = {field.encode_name for field in msgspec.structs.fields(SendOptions)}
    return msgspec.convert({name: value for name, value in given.items() if name in known}, SendOptions)
