"""Why a job is not running: everything that stands in its way, from what the store says of it.

A job that waits may have several reasons; all are told, so that nobody removes one only to meet the next. They are in
the order in which they would have to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from onward.arguments import nearest
from onward.engine.values import ANY_TYPE, QueueInfo, WorkerInfo
from onward.job import Job
from onward.lifecycle import FINISHED, HELD, JobStatus
from onward.validation import matches

_NAMED: Final = 5
"""Jobs that are told by name where there may be many."""


class ReasonCode(StrEnum):
    """The kinds of reasons."""

    ENDED = "ended"
    RUNNING = "running"
    WORKER_DEAD = "worker dead"
    BLOCKED = "blocked"
    DELAYED = "delayed"
    NO_LEADER = "no leader"
    PAUSED = "paused"
    CONCURRENCY = "concurrency"
    RATE = "rate"
    NO_WORKER = "no worker"
    NO_TASK = "no task"
    SUSPECT = "suspect"
    NEXT = "next"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that stands in a job's way, or that nothing does."""

    code: ReasonCode
    message: str
    """In plain words."""
    until: datetime | None = None
    """When it will be gone by itself."""
    remedy: str = ""
    """What to do about it, if anything."""


def explain(
    job: Job,
    *,
    queue: QueueInfo,
    workers: Sequence[WorkerInfo],
    held_jobs: Sequence[Job],
    now: datetime,
    lease: timedelta,
    dependencies: Sequence[Job] = (),
) -> list[Reason]:
    """Tell why a job is not running.

    Args:
        job: as the store has it.
        queue: the one it is in.
        workers: all that have registered.
        held_jobs: jobs of the queue that are held, some of them if they are many.
        now: by the store's clock.
        lease: time without a heartbeat after which a worker counts as dead.
        dependencies: the jobs that it waits for.
    """
    alive = [worker for worker in workers if worker.last_heartbeat is None or now - worker.last_heartbeat <= lease]
    if job.status in FINISHED:
        return [_ended(job)]
    if job.status in HELD:
        return [_held(job, workers, alive, now, lease)]
    reasons = [*_not_yet(job, dependencies, alive, now), *_limits(job, queue, held_jobs, now), *_nobody(job, alive)]
    if job.is_suspect:
        message = (
            "its lease ran out in two runs in a row: its worker died or was stalled. It runs alone in a child process "
            f"now, which it has ended {job.crashes} times"
        )
        reasons.append(Reason(code=ReasonCode.SUSPECT, message=message))
    if reasons:
        return reasons
    ready = queue.counts.get(JobStatus.PENDING, 0)
    ahead = (
        "it is the only one ready there" if ready <= 1 else f"{ready} jobs are ready there, the most urgent come first"
    )
    return [
        Reason(
            code=ReasonCode.NEXT, message=f"nothing stands in its way: it waits for its turn in {job.queue}; {ahead}"
        )
    ]


def _ended(job: Job) -> Reason:
    at = f" at {job.completed_at:%Y-%m-%d %H:%M:%S}" if job.completed_at else ""
    match job.status:
        case JobStatus.COMPLETED:
            return Reason(code=ReasonCode.ENDED, message=f"it has run: completed{at}")
        case JobStatus.CANCELLED:
            message = f"it was cancelled{at}: {job.last_error or 'no reason given'}"
        case JobStatus.DEAD_LETTER:
            crashed = job.crashes > 0 and job.attempts < job.max_attempts
            ended = "one child process" if job.crashes == 1 else f"{job.crashes} child processes"
            used_up = f"its attempts are used up ({job.attempts} of {job.max_attempts})"
            message = f"{f'it ended {ended} in which it ran alone' if crashed else used_up}{at}: {job.last_error}"
        case _:
            message = f"it failed for good{at}: {job.last_error}"
    return Reason(code=ReasonCode.ENDED, message=message, remedy=f"onward jobs replay {job.ref}")


def _held(
    job: Job, workers: Sequence[WorkerInfo], alive: Sequence[WorkerInfo], now: datetime, lease: timedelta
) -> Reason:
    since = job.started_at or job.claimed_at
    where = f"{job.worker_id} since {since:%Y-%m-%d %H:%M:%S}" if since else str(job.worker_id)
    if any(worker.id == job.worker_id for worker in alive):
        word = "it runs on" if job.status is JobStatus.RUNNING else "it is about to start on"
        return Reason(code=ReasonCode.RUNNING, message=f"{word} {where}")
    last = next((worker.last_heartbeat for worker in workers if worker.id == job.worker_id), None)
    until = (last or since or now) + lease
    message = f"it is in the hands of {where}, which is not heard from any more; it is taken back when its lease ends"
    if not alive:
        return Reason(
            code=ReasonCode.WORKER_DEAD, message=f"{message}, by the next worker that starts", remedy="onward work"
        )
    return Reason(code=ReasonCode.WORKER_DEAD, message=message, until=max(until, now))


def _not_yet(job: Job, dependencies: Sequence[Job], alive: Sequence[WorkerInfo], now: datetime) -> list[Reason]:
    if job.status is JobStatus.BLOCKED:
        open_ = [parent for parent in dependencies if parent.status not in FINISHED]
        named = ", ".join(f"{parent.type} {parent.id} ({parent.status})" for parent in open_[:_NAMED])
        more = f" and {len(open_) - _NAMED} more" if len(open_) > _NAMED else ""
        message = (
            f"it waits for {named}{more} to complete first" if open_ else "it waits for other jobs to complete first"
        )
        remedy = f"onward explain {open_[0].ref}" if open_ else ""
        return [Reason(code=ReasonCode.BLOCKED, message=message, remedy=remedy)]
    if job.status is not JobStatus.SCHEDULED or job.next_run_at is None:
        return []
    because = f"after a failed run ({job.last_error})" if job.last_error else "as it was asked to be"
    if job.next_run_at > now:
        return [Reason(code=ReasonCode.DELAYED, message=f"it is delayed, {because}", until=job.next_run_at)]
    if any(worker.is_leader for worker in alive):
        return [Reason(code=ReasonCode.DELAYED, message="it has come due a moment ago", until=now)]
    message = "it has come due, and no worker leads that would make it ready"
    return [Reason(code=ReasonCode.NO_LEADER, message=message, remedy="onward work, or onward tick")]


def _limits(job: Job, queue: QueueInfo, held_jobs: Sequence[Job], now: datetime) -> list[Reason]:
    reasons: list[Reason] = []
    settings = queue.settings
    if settings.paused:
        remedy = f"onward queues resume {queue.name}"
        because = "" if settings.pause_reason is None else f": {settings.pause_reason}"
        message = f"the queue {queue.name} is paused{because}"
        reasons.append(Reason(code=ReasonCode.PAUSED, message=message, remedy=remedy))
    held = sum(queue.counts.get(state, 0) for state in HELD)
    if settings.global_concurrency is not None and held >= settings.global_concurrency:
        names = ", ".join(str(other.ref) for other in held_jobs if other.id != job.id)
        message = f"{queue.name} may have {settings.global_concurrency} running at once, and has {held}: {names}"
        remedy = f"onward queues configure {queue.name} --global-concurrency N"
        reasons.append(Reason(code=ReasonCode.CONCURRENCY, message=message, remedy=remedy))
    if settings.rate is not None and queue.next_permit_at is not None and queue.next_permit_at > now:
        message = (
            f"{queue.name} may start {settings.rate.count} in {settings.rate.period}, and the next permit is to come"
        )
        reasons.append(Reason(code=ReasonCode.RATE, message=message, until=queue.next_permit_at))
    return reasons


def _nobody(job: Job, alive: Sequence[WorkerInfo]) -> list[Reason]:
    serving = [worker for worker in alive if any(matches(pattern, job.queue) for pattern in worker.queues)]
    if not serving:
        known = sorted({pattern for worker in alive for pattern in worker.queues})
        others = f": those that run serve {', '.join(known)}" if known else ", or anything else"
        return [
            Reason(
                code=ReasonCode.NO_WORKER,
                message=f"no worker serves {job.queue}{others}",
                remedy="onward work --app module:app",
            )
        ]
    types = {type for worker in serving for type in worker.types}
    if types.isdisjoint({job.type, ANY_TYPE}):
        message = (
            f"no live worker of {job.queue} has a task {job.type!r}{nearest(job.type, types)}; "
            "workers put it back until one has it, or the grace period is over"
        )
        return [Reason(code=ReasonCode.NO_TASK, message=message, remedy="start a worker of the version that has it")]
    return []
