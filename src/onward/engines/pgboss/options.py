"""What pg-boss can be told about a job and about a queue, in its own words: names in snake case, times in seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from onward.engines.pgboss.enqueue import SendRequest
from onward.engines.pgboss.statements import Schema
from onward.errors import InvalidValue, Unsupported

T = TypeVar("T", bound=msgspec.Struct)

_MAX_EXPIRY_SECONDS: Final = 24 * 60 * 60
"""Seconds that pg-boss lets a job be active at most."""
_MIN_VALUES: Final = {
    "retry_limit": 0,
    "retry_delay": 0,
    "retry_delay_max": 0,
    "expire_in_seconds": 1,
    "retention_seconds": 1,
    "delete_after_seconds": 0,
    "singleton_seconds": 1,
    "heartbeat_seconds": 10,
    "warning_queue_size": 1,
}
_REQUIRED_COLUMN: Final = {
    "retry_delay_max": "job.retry_delay_max",
    "delete_after_seconds": "job.deletion_seconds",
    "heartbeat_seconds": "job.heartbeat_seconds",
    "group": "job.group_id",
    "notify": "queue.notify",
    "warning_queue_size": "queue.warning_queued",
}
"""Options that not every version of pg-boss has, and by which column it is seen."""


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whose job it is, for limits by group."""

    id: str
    tier: str | None = None


class SendOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a job can be told."""

    id: str | None = None
    priority: int | None = None
    start_after: Any = None
    """Seconds from now, a duration, or a moment."""
    retry_limit: int | None = None
    retry_delay: int | None = None
    retry_delay_max: int | None = None
    retry_backoff: bool | None = None
    expire_in_seconds: int | None = None
    retention_seconds: int | None = None
    delete_after_seconds: int | None = None
    singleton_key: str | None = None
    singleton_seconds: int | None = None
    singleton_next_slot: bool = False
    dead_letter: str | None = None
    heartbeat_seconds: int | None = None
    group: Group | None = None


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a queue can be told; what is not given stays, or is pg-boss's default."""

    policy: str | UnsetType = UNSET
    partition: bool | UnsetType = UNSET
    retry_limit: int | UnsetType = UNSET
    retry_delay: int | UnsetType = UNSET
    retry_delay_max: int | UnsetType | None = UNSET
    retry_backoff: bool | UnsetType = UNSET
    expire_in_seconds: int | UnsetType = UNSET
    retention_seconds: int | UnsetType = UNSET
    delete_after_seconds: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    heartbeat_seconds: int | UnsetType | None = UNSET
    warning_queue_size: int | UnsetType = UNSET
    notify: bool | UnsetType = UNSET


def options_of(kind: type[T], given: dict[str, Any]) -> T:
    """Read options that were given by name."""
    known = kind.__struct_fields__
    for name, value in given.items():
        if name not in known:
            raise InvalidValue(name, value, f"is no option of pg-boss; there are {', '.join(known)}")
    names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    try:
        made = msgspec.convert({names[name]: value for name, value in given.items()}, kind)
    except msgspec.ValidationError as error:
        rule, _, where = str(error).partition(" - at `$.")
        member = re.split(r"\W", where)[0]
        name = next((name for name, written in names.items() if written == member), "options")
        raise InvalidValue(name, given.get(name), f"must be what pg-boss takes: {rule}") from None
    for name, minimum in _MIN_VALUES.items():
        value = getattr(made, name, None)
        if value is not None and value is not UNSET and (type(value) is not int or value < minimum):
            raise InvalidValue(name, value, f"must be a whole number of at least {minimum}")
    expiry = getattr(made, "expire_in_seconds", None)
    if isinstance(expiry, int) and expiry > _MAX_EXPIRY_SECONDS:
        raise InvalidValue("expire_in_seconds", expiry, "must be a day at most")
    return made


def check_supported(schema: Schema, options: msgspec.Struct) -> None:
    """Refuse an option that the installed pg-boss has no place for."""
    for name, column in _REQUIRED_COLUMN.items():
        value = getattr(options, name, None)
        if value is not None and value is not UNSET and not schema.has(column):
            note = f"schema {schema.probe.version} has no {column}; upgrade pg-boss there"
            raise Unsupported("pg-boss", name, note)


def send_request_of(queue: str, data: str | None, id: str, options: SendOptions) -> SendRequest:
    """Say a job in pg-boss's columns."""
    delay, run_at = _start(options.start_after)
    return SendRequest(
        id=options.id or id,
        name=queue,
        data=data,
        priority=options.priority or 0,
        delay=delay,
        run_at=run_at,
        singleton_key=options.singleton_key,
        singleton_seconds=options.singleton_seconds,
        retry_limit=options.retry_limit,
        retry_delay=options.retry_delay,
        retry_backoff=options.retry_backoff,
        retry_delay_max=options.retry_delay_max,
        expire_seconds=options.expire_in_seconds,
        retention_seconds=options.retention_seconds,
        deletion_seconds=options.delete_after_seconds,
        dead_letter=options.dead_letter,
        heartbeat_seconds=options.heartbeat_seconds,
        group_id=None if options.group is None else options.group.id,
        group_tier=None if options.group is None else options.group.tier,
    )


def _start(after: Any) -> tuple[timedelta | None, datetime | None]:
    match after:
        case None:
            return None, None
        case timedelta():
            return after, None
        case datetime():
            if after.tzinfo is None:
                raise InvalidValue("start_after", after, "must have a time zone, such as datetime.now(UTC)")
            return None, after
        case str():
            try:
                moment = datetime.fromisoformat(after)
            except ValueError:
                raise InvalidValue("start_after", after, "must be seconds, or a moment as ISO 8601 writes it") from None
            return None, moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        case _:
            if type(after) not in {int, float} or after < 0:
                raise InvalidValue("start_after", after, "must be seconds of zero or more, a duration, or a moment")
            return timedelta(seconds=after), None
