"""Between hashes and values. Everything Redis-shaped about a job is in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from onward.clock import moment_of
from onward.engine.limits import Pace
from onward.engine.values import Claim, QueueInfo, QueueSettings, Rate, Retention
from onward.engines.bullmq import job_options
from onward.job import Job, JobRef
from onward.lifecycle import Failure, JobStatus
from onward.surrogates import decode_json, repaired

STATUS_BY_LOCATION: Final[Mapping[str, JobStatus]] = {
    "wait": JobStatus.PENDING,
    "paused": JobStatus.PENDING,
    "prioritized": JobStatus.PENDING,
    "delayed": JobStatus.SCHEDULED,
    "waiting-children": JobStatus.BLOCKED,
    "active": JobStatus.RUNNING,
    "completed": JobStatus.COMPLETED,
    "failed": JobStatus.FAILED,
}
"""Where a job is tells its state."""

LIST_LOCATIONS: Final = frozenset({"wait", "paused", "active"})

_MS: Final = timedelta(milliseconds=1)
_encode = msgspec.json.encode
_decode = msgspec.json.decode


class UnreadableJob(Exception):
    """A job's hash cannot be read: its data is no JSON, or its options are not."""


def pairs(flat: Sequence[Any]) -> dict[str, str]:
    """Read what HGETALL gives."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def milliseconds(duration: timedelta) -> int:
    """Count whole milliseconds, rounded up: nothing is due too early."""
    return -(-duration // _MS)


def moment(text: str | float | None) -> datetime | None:
    """Read a time in milliseconds."""
    if text is None or text == "":
        return None
    try:
        return moment_of(int(float(text)) * 1000)
    except (ValueError, OverflowError):
        return None


def claim_of(
    queue: str, id: str, token: str, lease: int, start_within: int, fields: Mapping[str, str], now: int
) -> Claim:
    """Read a claim from ``lua/claim.lua``.

    Raises:
        UnreadableJob: the job cannot be run.
    """
    opts = _options(fields.get("opts"))
    data = fields.get("data", "")
    try:
        _check_json(data)
    except msgspec.DecodeError:
        data = repaired(data)
        try:
            _check_json(data)
        except msgspec.DecodeError as error:
            raise UnreadableJob(f"its data is no JSON: {error}") from error
    ready = _number(fields, "timestamp") + opts.delay
    if "processedOn" in fields:
        ready = max(ready, _number(fields, "processedOn"))
    return Claim(
        ref=JobRef(queue, id),
        token=(queue, id, token, lease),
        type=fields.get("name", ""),
        payload=data,
        attempts=_number(fields, "atm") + 1,
        started=True,
        max_attempts=opts.max_attempts,
        crashes=_number(fields, "stc"),
        org_id=opts.org_id,
        priority=job_options.to_onward_priority(_number(fields, "priority")),
        backoff=opts.backoff,
        trace=opts.trace,
        wait_seconds=max(0.0, now / 1e6 - ready / 1e3) if now else 0.0,
        start_within=None if start_within < 0 else start_within / 1e6,
    )


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "0")
    try:
        return int(text) if text.isdecimal() else int(float(text or 0))
    except (ValueError, OverflowError) as error:
        raise UnreadableJob(f"its {name} is no number: {text[:50]!r}") from error


def _number_or_zero(fields: Mapping[str, str], name: str) -> int:
    try:
        return _number(fields, name)
    except UnreadableJob:
        return 0


_json_reader = msgspec.json.Decoder(msgspec.Raw)
_check_json = _json_reader.decode


def _options(text: str | None) -> job_options.Options:
    try:
        return job_options.read(text or "{}")
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise UnreadableJob(f"its options cannot be read: {error}") from error


def job_of(queue: str, id: str, location: str, score: str, fields: Mapping[str, str]) -> Job:
    """Read a job: see ``lua/read_jobs.lua``. What is damaged is shown as it is."""
    status = STATUS_BY_LOCATION.get(location, JobStatus.PENDING)
    try:
        opts = _options(fields.get("opts"))
    except UnreadableJob:
        opts = job_options.Options()
    made = _number_or_zero(fields, "atm")
    created = moment(fields.get("timestamp")) or moment_of(0)
    started, ended = moment(fields.get("processedOn")), moment(fields.get("finishedOn"))
    progress, message = progress_of(fields.get("progress"))
    has_failed = status is not JobStatus.COMPLETED
    return Job(
        id=id,
        type=fields.get("name", ""),
        queue=queue,
        status=status,
        org_id=opts.org_id,
        payload=value_of(fields.get("data")),
        priority=job_options.to_onward_priority(_number_or_zero(fields, "priority")),
        idempotency_key=opts.idempotency_key,
        dedupe_key=fields.get("deid"),
        worker_id=None if status in {JobStatus.PENDING, JobStatus.SCHEDULED, JobStatus.BLOCKED} else fields.get("pb"),
        attempts=made + (status is JobStatus.RUNNING),
        max_attempts=opts.max_attempts,
        crashes=_number_or_zero(fields, "stc"),
        backoff=opts.backoff,
        last_error=fields.get("failedReason") if has_failed else None,
        progress=progress,
        progress_message=message,
        result=value_of(fields.get("returnvalue")) if status is JobStatus.COMPLETED else None,
        next_run_at=moment(float(score) // 4096) if status is JobStatus.SCHEDULED else None,
        created_at=created,
        claimed_at=started,
        started_at=started,
        completed_at=ended,
        updated_at=max(time for time in (created, started, ended) if time is not None),
    )


def value_of(text: str | None) -> Any:
    """Read JSON; what is none is shown as it is."""
    if text is None:
        return None
    try:
        return decode_json(text)
    except msgspec.DecodeError:
        return text


def progress_of(text: str | None) -> tuple[int | None, str | None]:
    """Read progress: a number, or what Node or we have put around one."""
    value = value_of(text)
    if isinstance(value, dict):
        message = value.get("message")
        value = value.get("progress")
    else:
        message = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value), message if isinstance(message, str) else None
    return None, message if isinstance(message, str) else None


def progress_text(progress: int, message: str | None) -> str:
    """Write progress: a plain number, as Node's do, unless there is more to say."""
    value = progress if message is None else {"progress": progress, "message": message}
    return _encode(value).decode()


def stack_text(failure: Failure) -> str:
    """Write one entry of a job's stack traces."""
    return _encode(failure.traceback or str(failure)).decode()


# Queues


def rate_fields(rate: Rate | None) -> dict[str, str]:
    """Write a rate: how far apart permits are, and how far back and late one may reach for them, in microseconds."""
    if rate is None:
        return dict.fromkeys(("spacing", "burst_window", "start_within", "burst", "next_permit_at"), "")
    pace = Pace.of(rate)
    return {
        "spacing": str(pace.spacing),
        "burst_window": str(pace.reach),
        "start_within": str(pace.credit),
        "burst": str(rate.burst),
    }


def retention_fields(retention: Retention) -> dict[str, str]:
    """Write how long finished jobs are kept."""

    def ms(age: timedelta | None) -> str:
        return "" if age is None else str(milliseconds(age))

    def count(kept: int | None) -> str:
        return "" if kept is None else str(kept)

    return {
        "retention": _encode(retention).decode(),
        "keep_completed": ms(retention.completed),
        "count_completed": count(retention.completed_count),
        "keep_failed": ms(retention.failed),
        "count_failed": count(retention.failed_count),
    }


_retention = msgspec.json.Decoder(Retention)


def queue_of(name: str, answer: Sequence[Any], now: int) -> QueueInfo:
    """Read a queue: see ``lua/read_queue.lua``."""
    _, flat_meta, flat_own, wait, paused, prioritized, active, delayed, blocked, completed, failed, oldest = answer
    meta, own = pairs(flat_meta), pairs(flat_own)
    counts = {
        JobStatus.PENDING: wait + paused + prioritized,
        JobStatus.RUNNING: active,
        JobStatus.SCHEDULED: delayed,
        JobStatus.BLOCKED: blocked,
        JobStatus.COMPLETED: completed,
        JobStatus.FAILED: failed,
    }
    settings = QueueSettings(
        paused="paused" in meta,
        pause_reason=own.get("pause_reason") if "paused" in meta else None,
        paused_by=own.get("paused_by") if "paused" in meta else None,
        paused_at=moment_of(int(own["paused_at"])) if "paused" in meta and "paused_at" in own else None,
        rate=_rate(meta, own),
        global_concurrency=int(float(meta["concurrency"])) if "concurrency" in meta else None,
        weight=int(own.get("weight", 1)),
        lease=timedelta(milliseconds=int(own["lease"])) if "lease" in own else None,
        retention=_retention.decode(own["retention"]) if "retention" in own else Retention(),
    )
    return QueueInfo(
        name=name,
        settings=settings,
        counts={state: count for state, count in counts.items() if count},
        oldest_ready_at=None if oldest == "-1" else moment(oldest),
        next_permit_at=_next_permit_at(own, now),
    )


def _rate(meta: Mapping[str, str], own: Mapping[str, str]) -> Rate | None:
    if "max" not in meta:
        return None
    period = max(int(float(meta.get("duration", 1000))), 10)
    return Rate(max(int(float(meta["max"])), 1), timedelta(milliseconds=period), int(own.get("burst", 1)))


def _next_permit_at(own: Mapping[str, str], now: int) -> datetime | None:
    if "spacing" not in own or "next_permit_at" not in own:
        return None
    spacing, burst_window = int(own["spacing"]), int(own["burst_window"])
    return moment_of(max(min(int(own["next_permit_at"]), now + spacing + burst_window) - burst_window, now))
