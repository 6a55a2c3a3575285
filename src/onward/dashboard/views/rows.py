"""Jobs as rows of a table, and the tabs above it; shared by jobs, dead letters, archive, queues and batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from onward.dashboard.search import Search
from onward.dashboard.visit import Visit
from onward.dashboard.wording import Moment, Pill, attempts, number, pill, short_id, shortened, span
from onward.engine.capabilities import Capabilities, Feature
from onward.job import Job
from onward.lifecycle import FINISHED, HELD, JobStatus

TABS: Final = (
    JobStatus.PENDING,
    JobStatus.RUNNING,
    JobStatus.SCHEDULED,
    JobStatus.BLOCKED,
    JobStatus.FAILED,
    JobStatus.DEAD_LETTER,
    JobStatus.CANCELLED,
    JobStatus.COMPLETED,
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a table."""

    ref: str
    id: str
    short_id: str
    path: str
    type: str
    queue: str
    org_id: str | None
    status: Pill
    attempts: str
    detail: str
    progress: int | None
    at: Moment | None
    """When it was created; of an ended job, when it ended."""


class Tab(msgspec.Struct, frozen=True, kw_only=True):
    """A state to look at."""

    label: str
    query: str
    count: str
    is_current: bool


def row(visit: Visit, job: Job, *, path: str | None = None) -> Row:
    """Show a job in a table."""
    return Row(
        ref=str(job.ref),
        id=job.id,
        short_id=short_id(job.id),
        path=path or visit.job_path(job),
        type=job.type,
        queue=job.queue,
        org_id=job.org_id,
        status=pill(job.status),
        attempts=attempts(job),
        detail=detail(job, visit.now),
        progress=job.progress if job.status in HELD else None,
        at=visit.moment(job.completed_at if job.status in FINISHED else job.created_at),
    )


def detail(job: Job, now: datetime) -> str:
    """Write the one thing that is worth knowing about a job in its state."""
    match job.status:
        case JobStatus.COMPLETED:
            return f"took {span(_seconds(job.started_at, job.completed_at))}" if job.started_at else ""
        case JobStatus.RUNNING | JobStatus.CLAIMED:
            since = job.started_at or job.claimed_at
            return shortened(job.progress_message) or (f"for {span(_seconds(since, now))}" if since else "")
        case JobStatus.SCHEDULED:
            left = _seconds(now, job.next_run_at)
            due = "" if left is None else f"in {span(left)}" if left > 0 else "due"
            return f"{due} · {shortened(job.last_error)}" if job.last_error else due
        case JobStatus.PENDING:
            return shortened(job.last_error) if job.last_error else ""
        case JobStatus.BLOCKED:
            return "waits for other jobs"
        case _:
            return shortened(job.last_error)


def states_of(capabilities: Capabilities) -> tuple[JobStatus, ...]:
    """List the states that a store can tell apart (O1)."""
    absent = set(capabilities.status_aliases)
    if not capabilities.has(Feature.CANCELLED_STATE):
        absent.add(JobStatus.CANCELLED)
    return tuple(status for status in JobStatus if status not in absent)


def tabs(search: Search, counts: Mapping[JobStatus, int] | None, capabilities: Capabilities) -> tuple[Tab, ...]:
    """Make the tabs of a list: every state that the store can tell apart."""
    rest = search.without("state")
    known = states_of(capabilities)
    made = [
        Tab(
            label="All",
            query=rest.text,
            count=_count(None if counts is None else sum(counts.values())),
            is_current=not search.states,
        )
    ]
    for status in TABS:
        if status not in known:
            continue
        shown = {status, JobStatus.CLAIMED} if status is JobStatus.RUNNING else {status}
        words = ",".join(sorted(shown.intersection(known)))
        total = None if counts is None else sum(counts.get(each, 0) for each in shown)
        made.append(
            Tab(
                label=status.replace("_", " ").capitalize() + ("s" if status is JobStatus.DEAD_LETTER else ""),
                query=rest.plus("state", words),
                count=_count(total),
                is_current=bool(search.states) and set(search.states) <= shown,
            )
        )
    return tuple(made)


def statuses(counts: Mapping[str, int]) -> dict[JobStatus, int]:
    """Read counts by status."""
    return {JobStatus(word): total for word, total in counts.items()}


def rows(visit: Visit, jobs: Iterable[Job]) -> tuple[Row, ...]:
    """Show jobs in a table."""
    return tuple(row(visit, job) for job in jobs)


def _count(total: int | None) -> str:
    return "…" if total is None else number(total)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()
