"""Between rows and values. Everything pg-boss-shaped about a job is in here.

pg-boss has no types: the name of a queue says who works on it. A job whose type is its queue's name is stored as Node
would store it. What of any other job pg-boss has no place for travels in its data, under :data:`METADATA_KEY`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from onward.backoff import Backoff, BackoffKind
from onward.engine.values import Claim, QueueInfo, QueueSettings, Rate, Token
from onward.job import Job, JobRef, NewJob
from onward.keys import digest
from onward.lifecycle import Failure, JobStatus
from onward.pg import arrays
from onward.pg.limits.queues import next_permit_of, rate_of
from onward.pg.plan_runner import Row
from onward.validation import MAX_SAFE_INTEGER

METADATA_KEY: Final = "$onward"
"""The member of a job's data that holds what pg-boss has no place for."""

MAX_KEY_BYTES: Final = 1000
"""Bytes: pg-boss has singleton keys in its indexes, which take up to 2 700. Longer ones are stored as digests."""

_decode = msgspec.json.decode
_encode = msgspec.json.encode
_backoff = msgspec.json.Decoder(Backoff)
_DEFAULT_BACKOFF: Final = Backoff()
_LONG_NUMBER: Final = re.compile(r"\d{17}")
_DEFAULT_RETRY_COLUMNS: Final = (1, True, 60)
"""How our default backoff stands in pg-boss's columns: delay, doubling, longest."""


class RetryColumns(msgspec.Struct, frozen=True):
    """When pg-boss tries again, in its own words."""

    delay: int
    backoff: bool
    delay_max: int | None


def retry_columns_of(backoff: Backoff) -> RetryColumns:
    """Say a backoff in pg-boss's words, or what of its words comes nearest: never sooner than asked for."""
    whole = max(1, math.ceil(backoff.base))
    if backoff.kind is BackoffKind.FIXED or backoff.factor == 1:
        return RetryColumns(whole, backoff=False, delay_max=None)
    return RetryColumns(whole, backoff=True, delay_max=None if backoff.cap is None else math.ceil(backoff.cap))


@lru_cache(maxsize=256)
def backoff_of(delay: int | None, doubles: bool | None, longest: int | None) -> Backoff | None:  # noqa: FBT001 - a row
    """Read when pg-boss would try again; None: as we do by default."""
    if (delay, doubles, longest) == _DEFAULT_RETRY_COLUMNS:
        return None
    if not doubles:
        # At once is what pg-boss does by default; a backoff of ours is more than nothing.
        return Backoff.fixed(delay if delay is not None and delay > 0 else 0.001)
    return Backoff.exponential(
        max(delay or 0, 1), cap=longest if longest is not None and longest > 0 else None, jitter=1.0
    )


# Data -----------------------------------------------------------------------------------------------------------------


def singleton_key_of(key: str | None) -> str | None:
    """Give the singleton key that stands for a dedupe key."""
    if key is None or len(key) * 4 <= MAX_KEY_BYTES or len(key.encode()) <= MAX_KEY_BYTES:
        return key
    return f"onward:{digest(key).hex()}"


def extras_of(job: NewJob, *, has_groups: bool) -> dict[str, Any]:
    """Gather what pg-boss has no place for."""
    extras: dict[str, Any] = {}
    if job.type != job.queue:
        extras["type"] = job.type
    if job.backoff is not None:
        kept = retry_columns_of(job.backoff)
        if (backoff_of(kept.delay, kept.backoff, kept.delay_max) or _DEFAULT_BACKOFF) != job.backoff:
            extras["backoff"] = job.backoff
    if job.dedupe_key is not None and singleton_key_of(job.dedupe_key) != job.dedupe_key:
        extras["dedupe_key"] = job.dedupe_key
    if job.org_id is not None and not has_groups:
        extras["org_id"] = job.org_id
    if job.trace is not None:
        extras["trace"] = job.trace
    return extras


def data_of(payload: str, extras: Mapping[str, Any]) -> str:
    """Write a job's data: its payload, with what else there is to say beside it."""
    if not extras:
        return payload
    text = payload.strip()
    if text[0] != "{" or METADATA_KEY in text or "\\u0024" in text:
        return _encode({METADATA_KEY: {**extras, "payload": msgspec.Raw(payload.encode())}}).decode()
    ours = f'"{METADATA_KEY}":{_encode(extras).decode()}}}'
    inside = text[1:-1].strip()
    return f"{{{inside},{ours}" if inside else f"{{{ours}"


def read_data(text: str | None) -> tuple[Any, dict[str, Any]]:
    """Read a job's payload, and what was said beside it."""
    if text is None:
        return None, {}
    data = _decode(text)
    if _LONG_NUMBER.search(text):
        data = _restore_floats(data)
    if not isinstance(data, dict) or not isinstance(data.get(METADATA_KEY), dict):
        return data, {}
    extras = data.pop(METADATA_KEY)
    return (extras.pop("payload") if "payload" in extras else data), extras


def _restore_floats(value: Any) -> Any:
    """Make floats again of what PostgreSQL writes out as whole numbers: beyond 2^53 a payload has no others."""
    if type(value) is int:
        return value if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else float(value)
    if type(value) is dict:
        return {name: _restore_floats(member) for name, member in value.items()}
    if type(value) is list:
        return [_restore_floats(member) for member in value]
    return value


# Outputs --------------------------------------------------------------------------------------------------------------


def output_of(result: str | None) -> str | None:
    """Write a result as pg-boss does: an object as it is, anything else as the value of one."""
    if result is None or result == "null":
        return None
    if not result.lstrip().startswith("{"):
        return f'{{"value":{result}}}'
    # One that pg-boss would take for a wrapped value is wrapped itself, so that it comes back as it was.
    return f'{{"value":{result}}}' if set(_decode(result)) == {"value"} else result


def result_of(output: str | None) -> Any:
    """Read a result."""
    value = None if output is None else _decode(output)
    return value["value"] if isinstance(value, dict) and set(value) == {"value"} else value


def failure_of(failure: Failure, *, end: JobStatus | None = None) -> str:
    """Write an error as Node's look; ``end`` where the counts of the job would tell another end than it has come to."""
    output = {"name": failure.error_type, "message": failure.message, "stack": failure.traceback, "end": end}
    return _encode({name: value for name, value in output.items() if value is not None}).decode()


def error_of(output: Any) -> str | None:
    """Read what went wrong, from an error of ours, of Node's, or of pg-boss's own supervisor."""
    if isinstance(output, dict) and set(output) == {"value"}:
        output = output["value"]
    if isinstance(output, dict) and ("message" in output or "name" in output):
        parts = [str(output[part]) for part in ("name", "message") if output.get(part)]
        return ": ".join(parts) or None
    if output is None or isinstance(output, str):
        return output
    return _encode(output).decode()


# Jobs -----------------------------------------------------------------------------------------------------------------


def job_of(row: Row) -> Job:
    """Read a job from a row of ``sql/find.sql``."""
    (id, name, data, status, priority, retry_limit, retry_count, retry_delay, retry_backoff, retry_delay_max,
     start_after, created_on, started_on, completed_on, singleton_key, group_id, output, state,
     worker) = row  # fmt: skip
    try:
        payload, extras = read_data(data)
    except (msgspec.DecodeError, OverflowError, RecursionError):
        payload, extras = data, {}  # it is shown as it is
    error_output = None if output is None or state == "completed" else _decode(output)
    crash_record = error_output.get("onward") if isinstance(error_output, dict) else None
    if not isinstance(crash_record, dict):
        crash_record = {}
    elif error_output is not None:
        error_output = crash_record.get("before")
    return Job(
        id=id,
        type=_text_in(extras, "type", name) or name,
        queue=name,
        status=JobStatus(status),
        org_id=_text_in(extras, "org_id", group_id),
        payload=payload,
        priority=priority,
        dedupe_key=_text_in(extras, "dedupe_key", singleton_key),
        worker_id=worker,
        attempts=retry_count + (started_on is not None),
        max_attempts=retry_limit + 1,
        crashes=crashes if isinstance(crashes := crash_record.get("crashes"), int) else 0,
        backoff=_backoff_in(extras) or backoff_of(retry_delay, retry_backoff, retry_delay_max),
        last_error=None if state == "completed" else error_of(error_output),
        result=result_of(output) if state == "completed" else None,
        next_run_at=start_after if status == JobStatus.SCHEDULED else None,
        created_at=created_on,
        claimed_at=started_on,
        started_at=started_on,
        completed_at=completed_on,
        updated_at=max(moment for moment in (created_on, started_on, completed_on) if moment is not None),
    )


def token_of(row: Sequence[Any]) -> Token:
    """Give the token of a claim from a row of ``sql/claim.sql``: the fence, and by what we find the job again."""
    name, id, _, retry_count, _, started_at, batch, ctid, *_ = row
    return name, id, retry_count, started_at, batch, ctid


def claim_of(row: Sequence[Any]) -> Claim:
    """Read a claim from a row of ``sql/claim.sql``."""
    (name, id, data, retry_count, retry_limit, _, _, _, priority, wait_seconds, retry_delay, retry_backoff,
     retry_delay_max, group_id, crashes, heartbeat_seconds) = row  # fmt: skip
    type_, backoff, org_id, trace = name, None, group_id, None
    if data is None:
        data = "{}"  # sent without data: to a handler, no arguments
    elif METADATA_KEY in data or _LONG_NUMBER.search(data):
        payload, extras = read_data(data)
        data = _encode(payload).decode()
        type_, backoff = _text_in(extras, "type", name) or name, _backoff_in(extras)
        org_id, trace = _text_in(extras, "org_id", group_id), _text_in(extras, "trace", None)
    return Claim(
        ref=JobRef(name, id),
        token=token_of(row),
        type=type_,
        payload=data,
        attempts=retry_count + 1,
        started=True,
        max_attempts=retry_limit + 1,
        crashes=crashes or 0,
        org_id=org_id,
        priority=priority,
        backoff=backoff or backoff_of(retry_delay, retry_backoff, retry_delay_max),
        trace=trace,
        wait_seconds=max(0.0, wait_seconds),
        heartbeat_within=heartbeat_seconds or None,
    )


def fences_of(tokens: Sequence[Token]) -> list[str]:
    """Lay out what claims are matched by, as statements take it: queues, ids, attempts, when they began."""
    names, ids, counts, started_at, *_ = zip(*tokens, strict=True)
    return [
        arrays.texts(map(str, names)),
        arrays.words(map(str, ids)),
        arrays.numbers(counts),
        arrays.numbers(started_at),
    ]


def _backoff_in(extras: Mapping[str, Any]) -> Backoff | None:
    value = extras.get("backoff")
    try:
        return None if value is None else msgspec.convert(value, Backoff)
    except (msgspec.ValidationError, ValueError):
        return None


def _text_in(extras: Mapping[str, Any], name: str, default: str | None) -> str | None:
    """Read a text that was said beside a payload. Anybody may write there: what is none counts as not said."""
    value = extras.get(name)
    return value if isinstance(value, str) and value else default


# Queues ---------------------------------------------------------------------------------------------------------------


class CompanionSettings(NamedTuple):
    """What Onward keeps about a queue beside pg-boss."""

    lease: timedelta | None = None
    paused: bool = False
    pause_reason: str | None = None
    paused_by: str | None = None
    paused_at: datetime | None = None
    rate: Rate | None = None
    concurrency: int | None = None
    next_permit_at: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> CompanionSettings:
        """Read a row of ``sql/queue_settings.sql``."""
        _, lease, paused, reason, by, at, count, period, burst, concurrency, permit_at, now = row
        rate = rate_of(count, period, burst)
        return cls(lease, paused, reason, by, at, rate, concurrency, next_permit_of(rate, permit_at, now))

    @property
    def is_limited(self) -> bool:
        """Whether claims need permits."""
        return self.rate is not None or self.concurrency is not None


NO_SETTINGS: Final = CompanionSettings()


class Queue(msgspec.Struct, frozen=True):
    """A queue as pg-boss has it."""

    name: str
    table: str
    """Where its jobs are."""
    policy: str
    retry_limit: int | None
    retry_delay: int | None
    retry_backoff: bool | None
    retry_delay_max: int | None
    notify: bool
    """Whether Node tells of new jobs."""
    dead_letter: str | None

    @property
    def is_internal(self) -> bool:
        """Whether it is for pg-boss's own use."""
        return self.name.startswith("__pgboss__")

    def info(self, companion: CompanionSettings) -> QueueInfo:
        """Say it in our words."""
        limit = 2 if self.retry_limit is None else self.retry_limit
        settings = QueueSettings(
            paused=companion.paused,
            pause_reason=companion.pause_reason,
            paused_by=companion.paused_by,
            paused_at=companion.paused_at,
            rate=companion.rate,
            global_concurrency=companion.concurrency,
            lease=companion.lease,
            max_attempts=limit + 1,
            backoff=backoff_of(self.retry_delay, self.retry_backoff, self.retry_delay_max),
        )
        return QueueInfo(name=self.name, settings=settings, next_permit_at=companion.next_permit_at)
