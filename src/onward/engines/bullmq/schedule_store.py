"""Schedules as BullMQ's job schedulers: Node lists and runs Onward's, and Onward lists and runs Node's.

A schedule of Onward's has its name as the id of the scheduler, within the job's queue. One that Node made is named
``queue/id``. What BullMQ has no place for (whether it is paused, and the job as Onward wrote it) is kept in a hash
under ``onward:``. The scheduler itself decides: a record that no longer agrees with it is ignored, and one without a
scheduler counts only if it says that the schedule is paused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from onward.clock import micros_of, moment_of
from onward.cron import Cron, Interval
from onward.engine.values import DueSchedules
from onward.engines.bullmq import job_options, rows
from onward.engines.bullmq.cron_pattern import UnreadablePattern, local_zone, parse
from onward.engines.bullmq.enqueue import NOT_PRIORITIZED, Prioritized
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Plan, script
from onward.engines.bullmq.queue_registry import QueueRegistry
from onward.engines.bullmq.schedules import SchedulerSettings, next_time, put
from onward.errors import InvalidValue
from onward.job import NewJob
from onward.schedule import Missed, Schedule

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_NUMBERS: Final = ("every", "offset", "limit", "startDate", "endDate")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What BullMQ has no place for."""

    schedule: Schedule
    settings: SchedulerSettings
    """The scheduler that belongs to it."""
    is_ours: bool


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, and where it is."""

    queue: str
    id: str
    schedule: Schedule
    settings: SchedulerSettings
    is_ours: bool


_record_decoder: Final = msgspec.json.Decoder(Record)


def read(keys: Keys, registry: QueueRegistry) -> Plan[list[Entry]]:
    """Read all schedules, those of Node and paused ones too, by name."""
    queues = yield from registry.all_names()
    answers = yield [("HGETALL", keys.schedules), *(("ZRANGE", f"{keys.base(q)}repeat", 0, -1) for q in queues)]
    records = {field: record for field, text in _fields(answers[0]).items() if (record := _record(text)) is not None}
    names = [(queue, id) for queue, ids in zip(queues, answers[1:], strict=True) for id in ids]
    answers = yield [
        command
        for queue, id in names
        for command in (("ZSCORE", f"{keys.base(queue)}repeat", id), ("HGETALL", f"{keys.base(queue)}repeat:{id}"))
    ]
    found = []
    for (queue, id), due, flat in zip(names, answers[::2], answers[1::2], strict=True):
        record = records.pop(_field(queue, id), None)
        if due is not None and (fields := _fields(flat)):
            found.append(_entry(queue, id, int(float(due)), _settings(fields), record))
    for field, record in records.items():
        if record.schedule.paused:
            queue, _, id = field.partition(":")
            found.append(
                Entry(queue=queue, id=id, schedule=record.schedule, settings=record.settings, is_ours=record.is_ours)
            )
    # Of two with the same name Onward's comes last, so that it wins in a mapping.
    return sorted(found, key=lambda entry: (entry.schedule.name, entry.is_ours))


def save(keys: Keys, registry: QueueRegistry, schedule: Schedule, prioritized: Prioritized) -> Plan[Schedule]:
    """Create or change one."""
    job = schedule.job
    yield from registry.check([job.queue])
    named = yield from _named(keys, registry, schedule.name)
    known = named[-1] if named else None
    if known is not None and not known.is_ours and not _is_same_work(known.schedule.job, job):
        known = None  # a scheduler of Node's that happens to have the name: it stays as it is
    if schedule.paused and not _can_resume(schedule):
        rule = "cannot be paused here: only BullMQ reads its pattern, and Onward could not resume it; remove it in Node"
        raise InvalidValue("schedule", schedule.name, rule)
    entry = _changed(known, schedule, is_prioritized=job.queue in prioritized)
    if job.priority and job.queue not in prioritized:
        raise InvalidValue("priority", job.priority, NOT_PRIORITIZED.format(queue=job.queue))
    # The scheduler, then its record, then what it replaces: a save that stops half-way loses no schedule, and the next
    # one completes it.
    due = None if schedule.paused else (yield from _start(keys, entry, known))
    record = Record(schedule=entry.schedule, settings=entry.settings, is_ours=entry.is_ours)
    yield [("HSET", keys.schedules, _field(entry.queue, entry.id), msgspec.json.encode(record).decode())]
    if due is None:
        yield [script("remove_scheduler", keys, [keys.meta(entry.queue)], entry.id)]
    for other in named:
        if other.is_ours and (other.queue, other.id) != (entry.queue, entry.id):
            yield from _delete(keys, other)
    return entry.schedule if due is None else msgspec.structs.replace(entry.schedule, next_at=moment_of(due * 1000))


def delete(keys: Keys, registry: QueueRegistry, name: str) -> Plan[bool]:
    """Remove one."""
    named = yield from _named(keys, registry, name)
    if named:
        yield from _delete(keys, named[-1])
    return bool(named)


def now(keys: Keys) -> Plan[DueSchedules]:
    """Tell the store's time: no schedule is ever due for Onward's leader, since a claim makes the next job."""
    (micros,) = yield [script("server_time", keys, [keys.workers])]
    return DueSchedules(now=moment_of(int(micros)), schedules=[], next_in=None)


def _named(keys: Keys, registry: QueueRegistry, name: str) -> Plan[list[Entry]]:
    """Find all of a name. The last one is the one that is meant: Onward's, where there is one."""
    return [entry for entry in (yield from read(keys, registry)) if entry.schedule.name == name]


def _is_same_work(one: NewJob, other: NewJob) -> bool:
    return (one.queue, one.type) == (other.queue, other.type)


def _delete(keys: Keys, entry: Entry) -> Plan[None]:
    yield [script("remove_scheduler", keys, [keys.meta(entry.queue)], entry.id)]
    yield [("HDEL", keys.schedules, _field(entry.queue, entry.id))]


def _can_resume(schedule: Schedule) -> bool:
    try:
        next(iter(schedule.trigger.after(datetime.now(UTC))), None)
    except InvalidValue:
        return False
    return True


def _start(keys: Keys, entry: Entry, known: Entry | None) -> Plan[int]:
    """Put the scheduler into the store, and return when its next job is due, in milliseconds."""
    repeat = entry.settings.repeat
    (micros,) = yield [script("server_time", keys, [keys.workers])]
    now = int(micros) // 1000
    candidates: list[int | None] = []
    if (pattern := repeat.get("pattern")) is not None:
        goes_on = known is not None and known.schedule.trigger == entry.schedule.trigger
        if goes_on and known is not None and known.schedule.next_at is not None:
            candidates.append(micros_of(known.schedule.next_at) // 1000)
        begin = max(now, int(repeat.get("startDate") or 0))
        found = next_time(pattern, begin, repeat.get("tz"), str(repeat.get("hashSeed") or entry.id))
        if found is None:
            raise InvalidValue("cron", pattern, "never comes: there is no such day")
        candidates.append(found)
    reason = ""
    for at in candidates or [None]:
        id, reason = yield from put(keys, entry.queue, entry.id, entry.settings, at, now)
        if id:
            return int(str(id).rpartition(":")[2])
    raise InvalidValue("schedule", entry.schedule.name, f"cannot be started: {reason}")


def _changed(known: Entry | None, schedule: Schedule, *, is_prioritized: bool) -> Entry:
    """Make what is to be stored; a schedule that only pauses or goes on keeps its scheduler as it is."""
    if known is not None and known.schedule.is_like(schedule):
        settings, next_at = known.settings, schedule.next_at
        if known.schedule.paused and "every" in settings.repeat and next_at is not None:
            repeat = {**settings.repeat, "startDate": _millis(next_at)}
            settings = msgspec.structs.replace(settings, repeat=repeat)
        return msgspec.structs.replace(known, schedule=schedule, settings=settings)
    is_node_s = known is not None and not known.is_ours
    id = known.id if known is not None and is_node_s else schedule.name
    if ":" in id and not is_node_s:
        raise InvalidValue("schedule", schedule.name, "must not contain ':' on BullMQ, which separates its keys")
    settings = _settings_of(schedule, is_prioritized=is_prioritized)
    return Entry(queue=schedule.job.queue, id=id, schedule=schedule, settings=settings, is_ours=not is_node_s)


def _settings_of(schedule: Schedule, *, is_prioritized: bool) -> SchedulerSettings:
    job, trigger = schedule.job, schedule.trigger
    if job.delay:
        raise InvalidValue("delay", job.delay, "cannot be set for a schedule on BullMQ: its jobs are delayed by it")
    repeat: dict[str, Any]
    if isinstance(trigger, Cron):
        try:
            parse(trigger.expression, "")
        except UnreadablePattern as error:
            raise InvalidValue("cron", trigger.expression, f"cannot be read by BullMQ: {error}") from None
        repeat = {"pattern": trigger.expression, "tz": trigger.timezone}
    else:
        if trigger.length % _MS:
            raise InvalidValue("every", trigger.length, "must be whole milliseconds on BullMQ")
        # Without a start BullMQ runs the first job at once, and counts from there.
        repeat = {"every": trigger.length // _MS, "startDate": _millis(schedule.next_at or trigger.since)}
    options = msgspec.json.decode(job_options.write(job, is_prioritized=is_prioritized))
    return SchedulerSettings(name=job.type, data=job.payload, options=options, repeat=repeat)


def _entry(queue: str, id: str, due: int, settings: SchedulerSettings, record: Record | None) -> Entry:
    is_ours = record is not None and record.is_ours
    if record is not None and _is_same(record.settings, settings):
        schedule = msgspec.structs.replace(record.schedule, paused=False, next_at=moment_of(due * 1000))
        return Entry(queue=queue, id=id, schedule=schedule, settings=record.settings, is_ours=is_ours)
    schedule = Schedule(
        name=id if is_ours else f"{queue}/{id}",
        job=_job(queue, settings),
        trigger=_trigger(settings.repeat),
        missed=Missed.ONCE,
        next_at=moment_of(due * 1000),
    )
    return Entry(queue=queue, id=id, schedule=schedule, settings=settings, is_ours=is_ours)


def _is_same(record: SchedulerSettings, stored: SchedulerSettings) -> bool:
    """Say whether a record still agrees with its scheduler; BullMQ computes the offset itself."""

    def repeat(settings: SchedulerSettings) -> dict[str, Any]:
        return {name: value for name, value in settings.repeat.items() if name != "offset"}

    return (record.name, record.data, record.options, repeat(record)) == (
        stored.name,
        stored.data,
        stored.options,
        repeat(stored),
    )


def _job(queue: str, settings: SchedulerSettings) -> NewJob:
    text = msgspec.json.encode(settings.options).decode()
    try:
        options = job_options.read(text)
    except (ValueError, TypeError, msgspec.MsgspecError):
        options = job_options.Options()
    priority = settings.options.get("priority")
    deduplication = settings.options.get("de")
    return NewJob(
        type=settings.name,
        payload=settings.data,
        queue=queue,
        org_id=options.org_id,
        priority=job_options.to_onward_priority(priority) if isinstance(priority, int) else 0,
        dedupe_key=deduplication.get("id") if isinstance(deduplication, dict) else None,
        max_attempts=options.max_attempts,
        backoff=options.backoff,
    )


def _trigger(repeat: Mapping[str, Any]) -> Cron | Interval:
    every = repeat.get("every")
    if every:
        return Interval(every * _MS, _EPOCH + int(repeat.get("offset") or 0) * _MS)
    return Cron(str(repeat.get("pattern") or ""), str(repeat.get("tz") or local_zone()))


def _settings(fields: Mapping[str, str]) -> SchedulerSettings:
    repeat: dict[str, Any] = {name: fields[name] for name in ("pattern", "tz") if name in fields}
    repeat.update({name: int(float(fields[name])) for name in _NUMBERS if _is_number(fields.get(name))})
    options = rows.value_of(fields.get("opts", "{}"))
    return SchedulerSettings(
        name=fields.get("name", ""),
        data=fields.get("data", "{}"),
        options=options if isinstance(options, dict) else {},
        repeat=repeat,
    )


def _millis(moment: datetime) -> int:
    return -(-micros_of(moment) // 1000)


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and abs(float(text)) < float("inf")
    except ValueError:
        return False


def _record(text: str) -> Record | None:
    try:
        return _record_decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def _fields(flat: Any) -> dict[str, str]:
    return flat if isinstance(flat, dict) else rows.pairs(flat or ())


def _field(queue: str, id: str) -> str:
    return f"{queue}:{id}"
