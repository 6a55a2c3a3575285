"""Between rows and values. Everything SQLite-shaped about a job is in here."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND, moment_of
from onward.engine.values import QueueInfo, QueueSettings, Rate, Retention
from onward.job import FailedAttempt, Job
from onward.lifecycle import Failure, JobStatus

_backoff_decoder = msgspec.json.Decoder(Backoff)
_errors_decoder = msgspec.json.Decoder(tuple[FailedAttempt, ...])
_decode = msgspec.json.decode
_encode = msgspec.json.encode


def job_of(row: tuple[Any, ...]) -> Job:
    """Read a job from a row of ``sql/find.sql``."""
    return Job(
        id=row[0],
        type=row[1],
        queue=row[2],
        status=JobStatus(row[3]),
        org_id=row[4],
        payload=_decode(row[5]),
        priority=row[6],
        idempotency_key=row[7],
        dedupe_key=row[8],
        worker_id=row[9],
        attempts=row[10],
        max_attempts=row[11],
        crashes=row[12],
        is_suspect=bool(row[13]),
        backoff=backoff_of(row[14]),
        last_error=row[15],
        errors=() if row[16] is None else _errors_decoder.decode(row[16]),
        progress=row[17],
        progress_message=row[18],
        result=None if row[19] is None else _decode(row[19]),
        next_run_at=moment(row[20]),
        start_by=moment(row[21]),
        batch=row[28],
        created_at=moment_of(row[22]),
        claimed_at=moment(row[23]),
        started_at=moment(row[24]),
        completed_at=moment(row[25]),
        updated_at=moment_of(row[26]),
    )


def moment(micros: int | None) -> datetime | None:
    """Read a time that may be missing."""
    return None if micros is None else moment_of(micros)


def micros(duration: timedelta | None) -> int | None:
    """Write a duration that may be missing."""
    return None if duration is None else duration // MICROSECOND


def duration(micros: int | None) -> timedelta | None:
    """Read a duration that may be missing."""
    return None if micros is None else timedelta(microseconds=micros)


def backoff_of(text: str | None) -> Backoff | None:
    """Read a backoff that may be missing."""
    return None if text is None else _backoff_decoder.decode(text)


def backoff_text(backoff: Backoff | None) -> str | None:
    """Write a backoff that may be missing."""
    return None if backoff is None else _encode(backoff).decode()


def failed_attempt(failure: Failure, *, at: int) -> str:
    """Write one entry of a job's error history. The statement adds what the row knows: attempt and worker."""
    entry = FailedAttempt(
        attempt=0,
        at=moment_of(at),
        error_type=failure.error_type,
        message=failure.message,
        traceback=failure.traceback,
    )
    return _encode(entry).decode()


def json_text(value: Any) -> str:
    """Write a parameter list for ``json_each``."""
    return _encode(value).decode()


def queue_of(row: tuple[Any, ...], counts: dict[JobStatus, int], oldest_ready_at: int | None) -> QueueInfo:
    """Read a queue: see ``sql/queues.sql`` for the columns."""
    (name, paused, rate_count, rate_period, rate_burst, next_permit_at, global_concurrency, weight, lease, max_attempts,
     backoff, keep_completed, completed_count, keep_failed, failed_count, keep_cancelled,
     keep_archived, pause_reason, paused_by, paused_at) = row  # fmt: skip
    settings = QueueSettings(
        paused=bool(paused),
        pause_reason=pause_reason if paused else None,
        paused_by=paused_by if paused else None,
        paused_at=moment(paused_at) if paused else None,
        rate=None if rate_count is None else Rate(rate_count, timedelta(microseconds=rate_period), rate_burst),
        global_concurrency=global_concurrency,
        weight=weight,
        lease=duration(lease),
        max_attempts=max_attempts,
        backoff=backoff_of(backoff),
        retention=Retention(
            completed=duration(keep_completed),
            completed_count=completed_count,
            failed=duration(keep_failed),
            failed_count=failed_count,
            cancelled=duration(keep_cancelled),
            archived=duration(keep_archived),
        ),
    )
    return QueueInfo(
        name=name,
        settings=settings,
        counts=counts,
        oldest_ready_at=moment(oldest_ready_at),
        next_permit_at=moment(next_permit_at) if rate_count is not None and next_permit_at else None,
    )
