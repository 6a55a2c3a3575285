"""A snapshot of a store: what ``doctor`` examines and ``top`` shows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from onward.alert import AlertState
from onward.app import App
from onward.core import core_of
from onward.engine.values import ANY_TYPE, EngineInfo, JobFilter, QueueInfo, WorkerInfo
from onward.lifecycle import WAITING, JobStatus
from onward.worker.alerts import states_of


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A store, at one moment."""

    at: datetime
    info: EngineInfo
    path: str | None = None
    """Where the store is one file: that file."""
    wal_bytes: int | None = None
    """How long its write-ahead log is."""
    free_bytes: int | None = None
    """What is left on its disk."""
    lease: timedelta
    queues: tuple[QueueInfo, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    alerts: tuple[AlertState, ...] = ()
    """How the app's alert rules stand."""
    waiting_types: Mapping[str, int] = {}
    """How many jobs of each task wait."""

    def count(self, *states: JobStatus) -> int:
        """Count the jobs in some states, over all queues."""
        return sum(queue.counts.get(state, 0) for queue in self.queues for state in states)

    @property
    def live_workers(self) -> tuple[WorkerInfo, ...]:
        """Those that have given a sign of life in time."""
        return tuple(worker for worker in self.workers if not self.is_silent(worker))

    @property
    def unknown_types(self) -> dict[str, int]:
        """How many jobs wait for each task that no live worker has; empty without live workers."""
        live = self.live_workers
        known = {type_ for worker in live for type_ in worker.types}
        return {
            type_: waiting
            for type_, waiting in sorted(self.waiting_types.items())
            if live and known.isdisjoint({type_, ANY_TYPE})
        }

    def is_silent(self, worker: WorkerInfo) -> bool:
        """Say whether a worker counts as dead."""
        return is_silent(worker, self.lease, self.at)

    @property
    def oldest_ready(self) -> QueueInfo | None:
        """The queue, of those that are not paused, whose first job has waited longest."""
        waiting = [queue for queue in self.queues if queue.oldest_ready_at is not None and not queue.settings.paused]
        return min(waiting, key=lambda queue: queue.oldest_ready_at or self.at, default=None)

    def wait_seconds(self, queue: QueueInfo) -> timedelta:
        """Say how long the first ready job of a queue has waited."""
        return max(timedelta(0), self.at - (queue.oldest_ready_at or self.at))


async def take_snapshot(app: App, *, with_types: bool = False) -> Snapshot:
    """Look at a store."""
    info = await core_of(app).engine.check()
    path = core_of(app).engine.describe().get("path")
    file = None if path is None else Path(path)
    rules = core_of(app).alerts.values()
    types = await app.jobs.count(JobFilter(status=WAITING), by="type") if with_types else {}
    return Snapshot(
        queues=tuple(await app.queues.list()),
        workers=tuple(await app.workers.list()),
        waiting_types=types,
        alerts=await states_of(await core_of(app).opened(), rules) if rules else (),
        info=info,
        path=path,
        wal_bytes=None if file is None else _size(file.with_name(f"{file.name}-wal")),
        free_bytes=None if file is None else shutil.disk_usage(file.parent).free,
        lease=core_of(app).config.lease,
        at=datetime.now(UTC),
    )


def describe_store(app: App) -> str:
    """Say where a store is: a file by its path, a server by what is known of its address."""
    known = core_of(app).engine.describe()
    if "path" in known:
        return str(known["path"])
    return " ".join(f"{name}={value}" for name, value in known.items() if name != "engine" and value is not None)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def is_silent(worker: WorkerInfo, timeout: timedelta, now: datetime) -> bool:
    """Say whether a worker counts as dead."""
    return worker.last_heartbeat is not None and now - worker.last_heartbeat > timeout
