"""The state of the store at a glance, read once for all viewers of one scope (D2).

While a page is open and visible, the pulse is read at most every ``INTERVAL`` seconds, and less often where the store
is slow. While no page is watched, it is read only when a page is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from onward.dashboard.callers import is_permitted, scope_key
from onward.engine.capabilities import Feature
from onward.engine.values import WorkerInfo
from onward.errors import OnwardError, StoreUnavailable
from onward.lifecycle import JobStatus
from onward.service.identity import Identity
from onward.service.services import Services
from onward.service.snapshot import is_silent
from onward.service.values import JobQuery, QueueView

log = logging.getLogger("onward.dashboard")

INTERVAL: Final = 1.0
_COST: Final = 10.0
"""A pulse that takes a second is read every ten."""
_USAGE_EVERY: Final = 10.0
_STALE: Final = 30.0
"""Seconds for which an older pulse is shown while a new one is read."""
FAILURES: Final = frozenset({"failed", "dead_letter", "retried"})


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The store, as one scope sees it at one moment. None: the caller may not see it, or the store has it not."""

    at: datetime
    counts: dict[JobStatus, int] = {}
    queues: tuple[QueueView, ...] | None = None
    workers: tuple[WorkerInfo, ...] | None = None
    failure_rate: float | None = None
    """Of the runs of the last hour."""
    runs: int = 0
    """In the last hour."""

    def count(self, *states: JobStatus) -> int:
        """Count jobs in some states."""
        return sum(self.counts.get(state, 0) for state in states)

    @property
    def oldest_ready(self) -> QueueView | None:
        """The queue, of those that are not paused, whose first job has waited longest."""
        waiting = [one for one in self.queues or () if one.oldest_ready_at is not None and not one.paused]
        return min(waiting, key=lambda one: one.oldest_ready_at or self.at, default=None)

    def live_workers(self, lease: timedelta) -> tuple[WorkerInfo, ...]:
        """Workers that have sent a heartbeat in time."""
        return tuple(one for one in self.workers or () if not is_silent(one, lease, self.at))

    @property
    def version(self) -> int:
        """Changes when something has changed that a page shows. Heartbeats change nothing."""
        workers = [(one.id, one.is_leader, one.is_quiet, one.version) for one in self.workers or ()]
        queues = [(one.name, one.paused, sorted(one.counts.items()), one.oldest_ready_at) for one in self.queues or ()]
        return hash((repr(sorted(self.counts.items())), repr(queues), repr(workers), self.runs))


class Pulse:
    """The beats of one scope."""

    def __init__(self, services: Services, identity: Identity) -> None:
        self._services = services
        self._identity = identity
        self.beat: Beat | None = None
        self.failed: str | None = None
        """Why the last read failed; the beat is older."""
        self._read_at = float("-inf")
        self._seconds = 0.0
        self._usage: tuple[float, float | None, int] = (float("-inf"), None, 0)
        self._reading: asyncio.Task[None] | None = None
        self._watchers = 0
        self._loop: asyncio.Task[None] | None = None
        self._bell = asyncio.Event()

    async def current(self) -> Beat | None:
        """Return a beat for a page that is loaded; None: the store does not answer, and never has."""
        age = time.monotonic() - self._read_at
        if age > max(INTERVAL, self._seconds * _COST):
            task = self._read()
            if self.beat is None or age > _STALE:
                await asyncio.wait([task], timeout=5.0)
            else:
                await asyncio.wait([task], timeout=0.05)
        return self.beat

    async def wait(self, seen: int, *, timeout: float) -> int:
        """Wait until the version differs from ``seen``, and return it. Only between ``join`` and ``leave``."""
        if self.version == seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._bell.wait()
        return self.version

    @property
    def version(self) -> int:
        """Changes with the beat, and when the store is lost or found."""
        return hash((self.beat.version if self.beat else 0, self.failed is None))

    def join(self) -> None:
        """Watch: from now on the pulse is read by itself."""
        self._watchers += 1
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run(), name="onward-dashboard-pulse")

    def leave(self) -> None:
        """Watch no longer. The last viewer stops the reads."""
        self._watchers -= 1
        if self._watchers == 0 and self._loop is not None:
            self._loop.cancel()
            self._loop = None

    async def _run(self) -> None:
        while True:
            before = self.version
            await asyncio.wait([self._read()])
            if self.version != before:
                bell, self._bell = self._bell, asyncio.Event()
                bell.set()
            await asyncio.sleep(max(INTERVAL, self._seconds * _COST))

    def _read(self) -> asyncio.Task[None]:
        task = self._reading
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._reading = asyncio.create_task(self._read_once(), name="onward-dashboard-beat")
        return task

    async def _read_once(self) -> None:
        began = time.monotonic()
        try:
            self.beat, self.failed = await self._beat(), None
        except StoreUnavailable as error:
            self.failed = "the store does not answer"
            log.warning("dashboard: the store does not answer: %s", error)
        except OnwardError as error:
            self.failed = str(error)
            log.warning("dashboard: %s", error)
        except Exception:
            self.failed = "the server has failed"
            log.exception("dashboard: the state of the store cannot be read")
        self._read_at = time.monotonic()
        self._seconds = self._read_at - began

    async def _beat(self) -> Beat:
        services, who = self._services, self._identity
        queues = (await services.queues.list(who)).items if is_permitted(who, "queues.list") else None
        workers = (await services.workers.list(who)).items if is_permitted(who, "workers.list") else None
        counts: dict[JobStatus, int] = {}
        if queues is not None:
            for queue in queues:
                for status, number in queue.counts.items():
                    counts[status] = counts.get(status, 0) + number
        else:
            found = await services.jobs.count(who, JobQuery())
            counts = {JobStatus(word): number for word, number in found.counts.items()}
        rate, runs = await self._failure_rate()
        return Beat(at=datetime.now(UTC), counts=counts, queues=queues, workers=workers, failure_rate=rate, runs=runs)

    async def _failure_rate(self) -> tuple[float | None, int]:
        at, rate, runs = self._usage
        if not self._services.store.core.capabilities.has(Feature.USAGE) or time.monotonic() - at < _USAGE_EVERY:
            return rate, runs
        since = datetime.now(UTC) - timedelta(hours=1)
        rows = (await self._services.status.usage(self._identity, bucket="minute", by=["outcome"], since=since)).items
        runs = sum(row.runs for row in rows)
        failed = sum(row.runs for row in rows if row.outcome in FAILURES)
        self._usage = time.monotonic(), failed / runs if runs else None, runs
        return self._usage[1], runs


class Pulses:
    """The pulses of a server process, one for each scope that is looked at."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: dict[tuple[Any, ...], Pulse] = {}

    def of(self, identity: Identity) -> Pulse:
        """Return the pulse that a caller sees. Callers of one scope share it."""
        key = (*scope_key(identity), asyncio.get_running_loop())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= 100:
                del self._known[next(iter(self._known))]
            found = self._known[key] = Pulse(self._services, identity)
        return found
