"""What happens in the demo, in order: enqueue, work, kill a worker, wait for every job to end, account for them.

States of a run: *starting* (until the first worker registers), *working*, *hurt* (a worker was killed; its jobs
are held by no live worker until their leases run out), *recovered*, and *over* (every job has ended, or time is up).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from onward.app import App
from onward.cli.demo import ledger, workers
from onward.cli.demo.kinds import CRASHER, KINDS, Kind
from onward.cli.demo.tasks import make_app
from onward.cli.demo.verification import Verification, verify
from onward.core import core_of
from onward.engine.values import JobFilter, QueueInfo, Rate, WorkerInfo
from onward.job import Job, NewJob
from onward.lifecycle import FINISHED, HELD, JobStatus
from onward.service.wording import count

POLL_INTERVAL: Final = 0.12
"""Seconds between two looks at the store."""
KILL_AFTER: Final = 1.0
"""Seconds of work before a worker is killed."""
MAX_SECONDS: Final = 60.0
"""Seconds after which it is over, whatever has happened: on a machine that is busy, everything takes longer."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the demo's log."""

    at: float
    """Seconds since the beginning."""
    text: str
    is_failure: bool = False
    """It reports a death."""


@dataclass(slots=True)
class DemoState:
    """What is to be seen at one moment."""

    elapsed: float = 0.0
    queues: dict[str, QueueInfo] = field(default_factory=dict)
    workers: list[WorkerInfo] = field(default_factory=list)
    held: list[Job] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)
    """Workers that are dead, by our hand or by a job's."""
    jobs: int = 0

    def count(self, kind: Kind, *states: JobStatus) -> int:
        """Count the jobs of a kind in some states."""
        queue = self.queues.get(kind.name)
        return 0 if queue is None else sum(queue.counts.get(state, 0) for state in states)

    @property
    def ended(self) -> int:
        """How many jobs have ended."""
        return sum(self.count(kind, *FINISHED) for kind in KINDS)


class DemoRun:
    """One run of the demo. ``log`` receives each entry, ``show`` each state."""

    def __init__(
        self,
        folder: Path,
        *,
        jobs: int,
        workers: int,
        log: Callable[[LogEntry], None],
        show: Callable[[DemoState], None],
    ) -> None:
        self.url = f"sqlite:///{folder / 'jobs.db'}"
        self._folder = folder
        self._size = jobs
        self._processes = workers
        self._log_entry = log
        self._show = show
        self._began = time.monotonic()
        self._expected: dict[str, Kind] = {}
        self._state = DemoState()
        self._known: set[str] = set()
        self._orphaned: dict[str, str] = {}
        """Jobs that a dead worker held, and that worker."""
        self._has_killed = False
        self._crasher_is_dead = False

    async def run(self) -> Verification:
        """Run the demo from the beginning to the end."""
        ledger_file = ledger.Ledger(self._folder / "ledger")
        app = make_app(self.url, ledger_file)
        processes = workers.WorkerProcesses(
            self.url, ledger_file.path, self._folder / "workers.log", processes=self._processes
        )
        try:
            with processes:
                await self._enqueue(app)
                await self._watch(app, processes)
            stored = await self._stored(app)
            return verify(self._expected, stored, ledger.read(ledger_file.path))
        finally:
            await app.close()
            ledger_file.close()

    # Beginning

    async def _enqueue(self, app: App) -> None:
        await app.queues.configure("limited", rate=Rate(10, timedelta(seconds=1)))
        kinds, jobs = self._jobs(app)
        began = time.monotonic()
        for kind, handle in zip(kinds, await app.enqueue_many(jobs), strict=True):
            self._expected[handle.id] = kind
        self._state.jobs = len(jobs)
        took = (time.monotonic() - began) * 1000
        self._log(f"{count(len(jobs), 'job')} of {len(KINDS)} kinds enqueued in one transaction, in {took:.0f} ms")

    def _jobs(self, app: App) -> tuple[list[Kind], list[NewJob]]:
        kinds: list[Kind] = []
        jobs: list[NewJob] = []
        for kind in KINDS:
            for number in range(kind.number(self._size)):
                kinds.append(kind)
                jobs.append(self._job(app, kind, number))
        return kinds, jobs

    def _job(self, app: App, kind: Kind, number: int) -> NewJob:
        task = core_of(app).find_task(kind.name)
        arguments: dict[str, dict[str, Any]] = {
            "quick": {"seconds": 0.02 + 0.01 * (number % 10)},
            "slow": {"seconds": 0.4 + 0.05 * (number % 5)},
            "flaky": {"failures": 1 + number % 2},
            "progress": {"steps": 8 + 2 * (number % 3)},
        }
        if kind.name == "delayed":
            task = task.using(delay=0.5 + 0.1 * (number % 20))
        elif kind.name == "progress":
            task = task.using(priority=10)
        elif kind is CRASHER:
            task = task.using(priority=5)
        return task.job(**arguments.get(kind.name, {}))

    # Middle

    async def _watch(self, app: App, processes: workers.WorkerProcesses) -> None:
        working_since: float | None = None
        while True:
            await self._poll(app)
            if working_since is None and self._known:
                working_since = self._elapsed
            if working_since is not None and not self._has_killed and self._elapsed - working_since > KILL_AFTER:
                await self._kill_busiest_worker(app)
            self._show(self._state)
            if self._state.ended >= self._state.jobs:
                self._log("every job has ended; stopping the workers")
                return
            if not processes.is_alive or self._elapsed > MAX_SECONDS:
                self._log("the workers have ended" if not processes.is_alive else "time is up")
                return
            await asyncio.sleep(POLL_INTERVAL)

    async def _poll(self, app: App) -> None:
        state = self._state
        state.queues = {queue.name: queue for queue in await app.queues.list()}
        state.workers = await app.workers.list()
        state.held = list((await app.jobs.list(JobFilter(status=HELD), limit=200)).items)
        state.elapsed = self._elapsed
        for worker in state.workers:
            pid = workers.pid_of(worker)
            if worker.id not in self._known:
                self._known.add(worker.id)
                new = len(self._known) > self._processes
                self._log(f"worker {pid} replaces a dead one" if new else f"worker {pid} has started")
            if worker.id not in state.killed and not workers.is_alive(pid):
                self._note_death(worker.id, f"a job has killed its process: worker {pid} is dead")
        self._note_recovery()
        if not self._crasher_is_dead and state.count(CRASHER, CRASHER.final_status):
            self._crasher_is_dead = True
            self._log("the crashing job was found out, isolated in a process: it is a dead letter now")

    async def _kill_busiest_worker(self, app: App) -> None:
        """Kill the worker that holds most jobs; not one that is about to be killed by a job."""
        doomed = {job.worker_id for job in self._state.held if job.type == CRASHER.name} | self._state.killed
        held_counts = {worker.id: 0 for worker in self._state.workers if worker.id not in doomed}
        for job in self._state.held:
            if job.worker_id in held_counts:
                held_counts[job.worker_id] += 1
        victim = max(held_counts, key=held_counts.__getitem__, default=None)
        if victim is None or not held_counts[victim] or not workers.kill(workers.pid_of(victim)):
            return
        self._has_killed = True
        self._state.held = list((await app.jobs.list(JobFilter(status=HELD), limit=200)).items)
        self._note_death(victim, f"kill -9: worker {workers.pid_of(victim)} is dead")

    def _note_death(self, worker_id: str, text: str) -> None:
        self._state.killed.add(worker_id)
        held = [job for job in self._state.held if job.worker_id == worker_id]
        self._orphaned |= {job.id: worker_id for job in held}
        self._log(f"{text}; it held {count(len(held), 'job')}" if held else text, is_failure=True)

    def _note_recovery(self) -> None:
        still = {job.id for job in self._state.held if self._orphaned.get(job.id) == job.worker_id}
        back = [id for id in self._orphaned if id not in still]
        if not back:
            return
        for id in back:
            del self._orphaned[id]
        self._log(f"{count(len(back), 'job')} of dead workers rescued: the leases have expired")

    # End

    async def _stored(self, app: App) -> dict[str, Job]:
        found: dict[str, Job] = {}
        after = None
        while True:
            page = await app.jobs.list(limit=500, cursor=after)
            found |= {job.id: job for job in page.items}
            after = page.next_cursor
            if after is None:
                return found

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _log(self, text: str, *, is_failure: bool = False) -> None:
        self._log_entry(LogEntry(self._elapsed, text, is_failure))
