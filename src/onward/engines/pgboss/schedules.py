"""Schedules in pg-boss's own table, so that Node lists them, and any instance of pg-boss or Onward's leader fires them.

A schedule of Onward's has its name as the key, within the job's queue, and the mark :data:`OWN` among its options. One
that Node made is named by its queue, or ``queue/key`` where it has a key. A paused schedule is moved to a table beside
pg-boss's, row by row as it was.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from onward.cron import Cron
from onward.engine.values import DueSchedules
from onward.engines.pgboss.enqueue import send_request_of
from onward.engines.pgboss.queue_cache import QueueCache
from onward.engines.pgboss.rows import backoff_of, read_data
from onward.engines.pgboss.statements import Schema
from onward.errors import InvalidValue
from onward.job import NewJob
from onward.pg.plan_runner import Plan, Row
from onward.schedule import Missed, Schedule

OWN: Final = "onward"
"""The member of a schedule's options that marks it as Onward's."""
_KEY: Final = re.compile(r"[\w.\-/]+", re.ASCII)
"""What pg-boss accepts as the key of a schedule."""


class ScheduleRow(NamedTuple):
    """A row of pg-boss's table, or of ours for those that are paused."""

    queue: str
    key: str
    kind: str
    cron: str
    timezone: str
    data: str | None
    options: str
    created_on: datetime | None = None
    is_paused: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether Onward created it."""
        return OWN in self.option_values

    @property
    def option_values(self) -> dict[str, Any]:
        """The options that its jobs are sent with."""
        try:
            values = msgspec.json.decode(self.options or "{}")
        except msgspec.DecodeError:
            return {}
        return values if isinstance(values, dict) else {}

    @property
    def name(self) -> str:
        """The schedule's name in Onward."""
        if not self.key:
            return self.queue
        return self.key if self.is_ours else f"{self.queue}/{self.key}"

    @property
    def trigger(self) -> Cron:
        """When it fires; not checked, for Node may read what Onward does not."""
        return Cron(self.cron, self.timezone)

    def next_after(self, moment: datetime) -> datetime | None:
        """Compute its next turn; None: only Node can read it."""
        if self.kind != "cron":
            return None
        try:
            return next(self.trigger.after(moment), None)
        except (InvalidValue, ValueError):
            return None

    @property
    def values(self) -> list[Any]:
        """The values that the statements take."""
        return [self.queue, self.key, self.cron, self.timezone, self.data, self.options]


def read(schema: Schema) -> Plan[list[ScheduleRow]]:
    """Read all rows, those of Node too."""
    live = [_row(row) for row in (yield schema.statement("schedules"))]
    paused = [_row(row, is_paused=True) for row in (yield schema.statement("paused_schedules"))]
    known = {(row.queue, row.key) for row in live}
    return [*live, *(row for row in paused if (row.queue, row.key) not in known)]


def _row(row: Row, *, is_paused: bool = False) -> ScheduleRow:
    queue, key, kind, cron, timezone, data, options, created_on = row
    return ScheduleRow(queue, key or "", kind, cron, timezone, data, options or "{}", created_on, is_paused)


def schedules(schema: Schema) -> Plan[list[Schedule]]:
    """List all, by name; of two with the same name Onward's comes last, so that it wins in a mapping."""
    rows = yield from read(schema)
    ((now,),) = yield schema.statement("now")
    return [_schedule(row, now) for row in sorted(rows, key=lambda row: (row.name, row.is_ours))]


def save(schema: Schema, queue_cache: QueueCache, schedule: Schedule) -> Plan[Schedule]:
    """Create or change one, as part of a transaction."""
    yield from queue_cache.find([schedule.job.queue])
    known = yield from _find(schema, schedule.name)
    if known is not None and not known.is_ours and not _is_same_work(_job(known), schedule.job):
        known = None  # a schedule of Node's that happens to have the name: it stays as it is
    row = _changed(schema, known, schedule)
    if known is not None and (known[:2], known.is_paused) != (row[:2], schedule.paused):
        yield from _delete(schema, known)
    yield schema.statement("pause_schedule" if schedule.paused else "schedule", row.values)
    ((now,),) = yield schema.statement("now")
    return _schedule(row._replace(is_paused=schedule.paused), now)


def delete(schema: Schema, name: str) -> Plan[bool]:
    """Remove one, as part of a transaction."""
    known = yield from _find(schema, name)
    if known is not None:
        yield from _delete(schema, known)
    return known is not None


def now(schema: Schema) -> Plan[DueSchedules]:
    """Tell the store's time: no schedule is ever due for Onward's workers, since pg-boss's protocol fires them."""
    ((moment,),) = yield schema.statement("now")
    return DueSchedules(now=moment, schedules=[], next_in=None)


def _find(schema: Schema, name: str) -> Plan[ScheduleRow | None]:
    # Onward's wins over one of Node's whose queue and key happen to result in the same name.
    named = [row for row in (yield from read(schema)) if row.name == name]
    return max(named, key=lambda row: row.is_ours, default=None)


def _is_same_work(one: NewJob, other: NewJob) -> bool:
    return (one.queue, one.type) == (other.queue, other.type)


def _delete(schema: Schema, row: ScheduleRow) -> Plan[None]:
    yield schema.statement("unschedule", [row.queue, row.key])
    yield schema.statement("delete_paused_schedule", [row.queue, row.key])


def _changed(schema: Schema, known: ScheduleRow | None, schedule: Schedule) -> ScheduleRow:
    """Make the row for a schedule; one that only pauses or goes on keeps its row as it is."""
    if known is not None and known.kind != "cron":
        raise InvalidValue("schedule", schedule.name, f"is of the kind {known.kind}: change it in Node, or delete it")
    if known is not None and (schedule.job, schedule.trigger) == (_job(known), known.trigger):
        return known
    if known is not None and not known.is_ours:
        return _new_row(schema, schedule, known.key)
    if not schema.has("schedule.key"):
        if schedule.name != schedule.job.queue:
            rule = "must be the name of its queue: before pg-boss 11 a queue has one schedule"
            raise InvalidValue("schedule", schedule.name, rule)
        return _new_row(schema, schedule, "", is_ours=True)
    if not _KEY.fullmatch(schedule.name):
        rule = "must be of letters, digits and _ . - / on pg-boss, whose key it is"
        raise InvalidValue("schedule", schedule.name, rule)
    return _new_row(schema, schedule, schedule.name, is_ours=True)


def _new_row(schema: Schema, schedule: Schedule, key: str, *, is_ours: bool = False) -> ScheduleRow:
    trigger, job = schedule.trigger, schedule.job
    assert isinstance(trigger, Cron)  # noqa: S101 - intervals are refused before: see the capabilities
    request = send_request_of(schema, job, "")
    options = {
        "tz": trigger.timezone,
        "priority": request.priority or None,
        "startAfter": None if job.delay is None else job.delay.total_seconds(),
        "singletonKey": request.singleton_key,
        "retryLimit": request.retry_limit,
        "retryDelay": request.retry_delay,
        "retryBackoff": request.retry_backoff,
        "retryDelayMax": request.retry_delay_max,
        "group": None if request.group_id is None else {"id": request.group_id},
        OWN: True if is_ours else None,
    }
    text = msgspec.json.encode({name: value for name, value in options.items() if value is not None}).decode()
    return ScheduleRow(job.queue, key, "cron", trigger.expression, trigger.timezone, request.data, text)


def _schedule(row: ScheduleRow, now: datetime) -> Schedule:
    return Schedule(
        name=row.name,
        job=_job(row),
        trigger=row.trigger,
        missed=Missed.SKIP,
        paused=row.is_paused,
        next_at=None if row.is_paused else row.next_after(now),
    )


def _job(row: ScheduleRow) -> NewJob:
    """Read the job to be; what is damaged counts as not given."""
    options = row.option_values
    payload, extras = read_data(row.data)
    group = options.get("group")
    retries = options.get("retryLimit")
    delay, start_after = options.get("retryDelay"), options.get("startAfter")
    backoff = None
    if isinstance(delay, int):
        longest = options.get("retryDelayMax")
        backoff = backoff_of(delay, bool(options.get("retryBackoff")), longest if isinstance(longest, int) else None)
    fields = {
        "type": extras.get("type"),
        "org_id": extras.get("org_id", group.get("id") if isinstance(group, dict) else None),
        "priority": options.get("priority"),
        "dedupe_key": extras.get("dedupe_key", options.get("singletonKey")),
        "max_attempts": retries + 1 if isinstance(retries, int) else None,
        "delay": timedelta(seconds=start_after) if isinstance(start_after, int | float) else None,
        "backoff": extras.get("backoff", backoff),
        "trace": extras.get("trace"),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    text = "{}" if payload is None else msgspec.json.encode(payload).decode()
    try:
        return msgspec.convert({"type": row.queue, "payload": text, "queue": row.queue, **known}, NewJob)
    except (msgspec.ValidationError, ValueError):
        return NewJob(type=row.queue, payload=text, queue=row.queue)
