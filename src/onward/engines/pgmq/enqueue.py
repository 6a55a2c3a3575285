"""Puts messages in: on our own connection, or on the caller's, within the caller's transaction."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from onward.clock import MICROSECOND, micros_of
from onward.engine.capabilities import Capabilities, Feature
from onward.engines.pgmq.headers import headers_of
from onward.engines.pgmq.settings import GROUPED_MODES, PgmqSettings
from onward.engines.pgmq.statements import SQL
from onward.errors import InvalidValue, Unsupported
from onward.job import Enqueued, JobRef, NewJob
from onward.pg.plan_runner import Plan, Statement
from onward.validation import check_queue_name

MAX_NAME: Final = 47
"""Characters of a queue's name: PGMQ puts up to sixteen before it, and PostgreSQL's names have 63."""


def enqueue(
    jobs: Sequence[NewJob], settings: PgmqSettings, capabilities: Capabilities, *, notification: str | None
) -> Plan[list[Enqueued]]:
    """Add jobs, in order, all or none."""
    rows = yield Statement(SQL.enqueue, [*_columns(jobs, settings), notification])
    unknown = sorted(row[2] for row in rows if row[2] is not None)
    if unknown:
        for queue in unknown:
            check_new_name(queue)
        names = yield Statement(SQL.queue_names)
        raise _unknown_queue(unknown[0], [row[0] for row in names], capabilities)
    return [Enqueued(JobRef(job.queue, str(row[1]))) for job, row in zip(jobs, rows, strict=True)]


def check_queue(queue: str, capabilities: Capabilities) -> Plan[None]:
    """Refuse a queue that does not exist."""
    names = [row[0] for row in (yield Statement(SQL.queue_names))]
    if queue not in names:
        check_new_name(queue)
        raise _unknown_queue(queue, names, capabilities)


def _columns(jobs: Sequence[NewJob], settings: PgmqSettings) -> list[Any]:
    """Lay jobs out in columns; what they all have in common comes once."""
    payloads = [job.payload for job in jobs]
    shapes = [_shape(job, settings) for job in jobs]
    first = shapes[0]
    shape_rows = [first] if all(shape == first for shape in shapes) else shapes
    queues, headers, delays, run_ats = map(list, zip(*shape_rows, strict=True))
    return [queues, payloads, headers, delays, run_ats]


def _shape(job: NewJob, settings: PgmqSettings) -> tuple[str, str, int | None, int | None]:
    """All that a job is but its payload."""
    grouped = settings.read_mode(job.queue) in GROUPED_MODES
    is_plain = job.org_id is None and job.backoff is None and job.trace is None
    headers = _plain(job.type, job.max_attempts) if is_plain else headers_of(job, grouped=grouped)
    if job.run_at is not None:
        return job.queue, headers, None, micros_of(job.run_at)
    return job.queue, headers, None if job.delay is None else job.delay // MICROSECOND, None


@lru_cache(maxsize=256)
def _plain(type: str, max_attempts: int | None) -> str:
    return headers_of(NewJob(type=type, max_attempts=max_attempts), grouped=False)


def check_new_name(queue: str) -> None:
    """Refuse a name that no new queue may have (X5)."""
    check_queue_name(queue)
    if len(queue) > MAX_NAME:
        raise InvalidValue("queue", queue, f"must have at most {MAX_NAME} characters on PGMQ")
    if "--" in queue:
        raise InvalidValue("queue", queue, "must not have -- in it on PGMQ")


def _unknown_queue(queue: str, known: Sequence[str], capabilities: Capabilities) -> Unsupported:
    """Say that a queue is not there, and which one was meant, perhaps."""
    close = difflib.get_close_matches(queue, known, n=3)
    near = f"; there is {', '.join(close)}" if close else ""
    note = capabilities.features[Feature.QUEUES_BY_USE].note
    return Unsupported(capabilities.engine, Feature.QUEUES_BY_USE, f"{note} ({queue} is not there{near})")
