"""Looks for what is wrong with a store, says it in plain words, and says what to do.

:func:`examine` is pure: a snapshot in, findings out. A *problem* means that jobs are not run, or may be lost, until
a person acts; a *warning* may be intended; a *note* is worth knowing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec

from onward.arguments import nearest
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.values import WorkerInfo
from onward.lifecycle import WAITING, JobStatus
from onward.service.snapshot import Snapshot
from onward.service.wording import count, duration
from onward.validation import matches

MEGABYTE: Final = 1024 * 1024
MAX_WAL_BYTES: Final = 64 * MEGABYTE
"""A write-ahead log is overwritten from its start long before: somebody holds a read transaction open."""
MIN_FREE_BYTES: Final = 200 * MEGABYTE
MAX_WAIT: Final = timedelta(minutes=5)


class Level(StrEnum):
    """How bad it is."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """One thing that the doctor has to say."""

    level: Level
    message: str
    remedy: str = ""


def examine(snapshot: Snapshot, capabilities: Capabilities, *, max_wait: timedelta = MAX_WAIT) -> Iterator[Finding]:
    """Examine a snapshot; the worst finding comes first."""
    found = [
        *_workers(snapshot, capabilities),
        *_unserved(snapshot),
        *_waits(snapshot, max_wait),
        *_file(snapshot),
        *_dead_letters(snapshot),
        *_alerts(snapshot),
        *(Finding(Level.PROBLEM, problem) for problem in snapshot.info.problems),
        *(Finding(Level.WARNING, warning) for warning in snapshot.info.warnings),
    ]
    yield from sorted(found, key=lambda finding: list(Level).index(finding.level))


def _workers(snapshot: Snapshot, capabilities: Capabilities) -> Iterator[Finding]:
    waiting = snapshot.count(*WAITING)
    for worker in snapshot.workers:
        if snapshot.is_silent(worker):
            yield Finding(
                Level.PROBLEM,
                f"worker {worker.id} has been silent for {_silent_for(snapshot, worker)}: it was killed, or "
                "cannot reach the store; its jobs are taken over by the next worker that leads",
                "start a worker, or onward tick: either takes the jobs back and forgets it",
            )
    live = snapshot.live_workers
    if live and capabilities.has(Feature.LEADER) and not any(worker.is_leader for worker in live):
        youngest = max((worker.started_at or snapshot.at) for worker in live)
        if snapshot.at - youngest > snapshot.lease:
            yield Finding(
                Level.PROBLEM,
                "no worker leads: delayed jobs are not made ready and the jobs of dead workers not taken back",
                "look at the workers' logs for errors of the part 'leader'",
            )
    if not live and waiting:
        yield Finding(
            Level.PROBLEM,
            f"no worker is there, and {count(waiting, 'job', 'wait')}",
            "onward work --app module:app (or onward tick from cron)",
        )
    if len({worker.version for worker in live}) > 1:
        versions = ", ".join(sorted({worker.version for worker in live}))
        yield Finding(Level.NOTE, f"workers of several versions are at work: {versions}")


def _silent_for(snapshot: Snapshot, worker: WorkerInfo) -> str:
    return duration(snapshot.at - (worker.last_heartbeat or snapshot.at))


def _unserved(snapshot: Snapshot) -> Iterator[Finding]:
    live = snapshot.live_workers
    for queue in snapshot.queues:
        ready = queue.counts.get(JobStatus.PENDING, 0)
        if not ready:
            continue
        if queue.settings.paused:
            yield Finding(
                Level.WARNING,
                f"queue {queue.name} is paused, and {count(ready, 'job', 'wait')} in it",
                f"onward queues resume {queue.name}",
            )
        elif live and not any(matches(pattern, queue.name) for worker in live for pattern in worker.queues):
            served = sorted({pattern for worker in live for pattern in worker.queues})
            yield Finding(
                Level.PROBLEM,
                f"no worker serves queue {queue.name}, and {count(ready, 'job', 'wait')} in it; "
                f"the workers serve {', '.join(served)}",
                f"onward work --app module:app --queues {queue.name}",
            )
    known = {type for worker in live for type in worker.types}
    for type, waiting in snapshot.unknown_types.items():
        yield Finding(
            Level.PROBLEM,
            f"no worker has a task {type!r}, and {count(waiting, 'job', 'wait')} for it{nearest(type, known)}; "
            "workers put them back until the grace period is over, then they fail",
            "deploy the code that has the task, or pause the queue until then",
        )


def _waits(snapshot: Snapshot, max_wait: timedelta) -> Iterator[Finding]:
    queue = snapshot.oldest_ready
    if queue is None or snapshot.wait_seconds(queue) <= max_wait:
        return
    limited = queue.settings.rate is not None or queue.settings.global_concurrency is not None
    yield Finding(
        Level.WARNING if limited else Level.PROBLEM,
        f"the oldest ready job, in queue {queue.name}, has waited {duration(snapshot.wait_seconds(queue))}"
        + (", and the queue is limited" if limited else ""),
        f"raise its limits: onward queues configure {queue.name}"
        if limited
        else "add workers, or raise their --concurrency",
    )


def _file(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.wal_bytes is not None and snapshot.wal_bytes > MAX_WAL_BYTES:
        yield Finding(
            Level.WARNING,
            f"the write-ahead log of {snapshot.path} has grown to {snapshot.wal_bytes // MEGABYTE} MB: a program "
            "keeps a read transaction open, so it cannot be started over",
            f"find it with: lsof {snapshot.path}",
        )
    if snapshot.free_bytes is not None and snapshot.free_bytes < MIN_FREE_BYTES:
        yield Finding(
            Level.PROBLEM,
            f"only {snapshot.free_bytes // MEGABYTE} MB are left on the disk of {snapshot.path}: "
            "soon no job can be kept",
            "free some space, or purge: onward dead purge --older-than 30d",
        )


def _alerts(snapshot: Snapshot) -> Iterator[Finding]:
    for one in snapshot.alerts:
        if one.is_firing:
            since = "" if one.since is None else f" for {duration(max(snapshot.at - one.since, timedelta(0)))}"
            where = "" if one.queue is None else f", most in queue {one.queue}"
            yield Finding(
                Level.WARNING,
                f"alert {one.name} fires{since}: {one.condition} was {one.value:g}, the threshold is "
                f"{one.threshold:g}{where}"
                if one.value is not None
                else f"alert {one.name} fires{since}",
                "it is resolved by itself when the condition ends",
            )


def _dead_letters(snapshot: Snapshot) -> Iterator[Finding]:
    dead = snapshot.count(JobStatus.DEAD_LETTER)
    if dead:
        yield Finding(Level.WARNING, f"{count(dead, 'dead letter', 'wait')} for somebody to look", "onward dead list")
