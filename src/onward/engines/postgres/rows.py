"""Between rows and values. Everything PostgreSQL-shaped about a job is in here."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND, moment_of
from onward.engine.values import QueueInfo, QueueSettings, Rate, Retention
from onward.job import FailedAttempt, Job
from onward.lifecycle import Failure, JobStatus
from onward.pg.plan_runner import Row

_backoff_decoder = msgspec.json.Decoder(Backoff)
_errors_decoder = msgspec.json.Decoder(tuple[FailedAttempt, ...])
_decode = msgspec.json.decode
_encode = msgspec.json.encode

_LAST_NAME: Final = "~"
"""Sorts after all that may stand in a queue's name."""


def job_of(row: Row) -> Job:
    """Read a job from a row of ``sql/find_live.sql`` or ``sql/find_ended.sql``."""
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
        is_suspect=row[13],
        backoff=backoff_of(row[14]),
        last_error=row[15],
        errors=() if row[16] is None else _errors_decoder.decode(row[16]),
        progress=row[17],
        progress_message=row[18],
        result=None if row[19] is None else _decode(row[19]),
        next_run_at=optional_datetime(row[20]),
        start_by=optional_datetime(row[21]),
        batch=row[28],
        created_at=moment_of(row[22]),
        claimed_at=optional_datetime(row[23]),
        started_at=optional_datetime(row[24]),
        completed_at=optional_datetime(row[25]),
        updated_at=moment_of(row[26]),
    )


def optional_datetime(micros: int | None) -> datetime | None:
    """Read a time that may be missing."""
    return None if micros is None else moment_of(micros)


def optional_micros(duration: timedelta | None) -> int | None:
    """Write a duration that may be missing."""
    return None if duration is None else duration // MICROSECOND


def optional_duration(micros: int | None) -> timedelta | None:
    """Read a duration that may be missing."""
    return None if micros is None else timedelta(microseconds=micros)


def backoff_of(text: str | None) -> Backoff | None:
    """Read a backoff that may be missing."""
    return None if text is None else _backoff_decoder.decode(text)


def backoff_text(backoff: Backoff | None) -> str | None:
    """Write a backoff that may be missing."""
    return None if backoff is None else _encode(backoff).decode()


def failure_text(failure: Failure) -> str:
    """Write one entry of a job's error history. The store adds what it knows: when, attempt and worker."""
    return _encode(
        {"error_type": failure.error_type, "message": failure.message, "traceback": failure.traceback}
    ).decode()


def queue_of(row: Row, counts: dict[JobStatus, int], oldest_ready_at: int | None) -> QueueInfo:
    """Read a queue: see ``sql/queues.sql`` for the columns."""
    (name, paused, rate_count, rate_period, rate_burst, next_permit_at, global_concurrency, weight, lease, max_attempts,
     backoff, keep_completed, completed_count, keep_failed, failed_count, keep_cancelled,
     keep_archived, pause_reason, paused_by, paused_at) = row  # fmt: skip
    settings = QueueSettings(
        paused=paused,
        pause_reason=pause_reason,
        paused_by=paused_by,
        paused_at=optional_datetime(paused_at),
        rate=None if rate_count is None else Rate(rate_count, timedelta(microseconds=rate_period), rate_burst),
        global_concurrency=global_concurrency,
        weight=weight,
        lease=optional_duration(lease),
        max_attempts=max_attempts,
        backoff=backoff_of(backoff),
        retention=Retention(
            completed=optional_duration(keep_completed),
            completed_count=completed_count,
            failed=optional_duration(keep_failed),
            failed_count=failed_count,
            cancelled=optional_duration(keep_cancelled),
            archived=optional_duration(keep_archived),
        ),
    )
    return QueueInfo(
        name=name,
        settings=settings,
        counts=counts,
        oldest_ready_at=optional_datetime(oldest_ready_at),
        next_permit_at=optional_datetime(next_permit_at),
    )


def ranges_of(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """Turn names and patterns into ranges of names that do not overlap: where each begins, and what comes after it."""
    ranges = []
    for pattern in patterns:
        if pattern == "*":
            ranges.append(("", _LAST_NAME))
        elif pattern.endswith("/*"):
            ranges.append((pattern[:-1], pattern[:-2] + "0"))  # "0" comes right after "/"
        else:
            ranges.append((pattern, f"{pattern}!"))  # no name has a character as low as this
    firsts: list[str] = []
    ends: list[str] = []
    for first, end in sorted(ranges):
        if ends and first <= ends[-1]:
            ends[-1] = max(end, ends[-1])
        else:
            firsts.append(first)
            ends.append(end)
    return firsts, ends
