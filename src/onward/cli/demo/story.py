"""What happens in the demo, in order: enqueue, work, kill a worker, wait for every job to end, account for them.

States of the story: *starting* (until the first worker registers), *working*, *hurt* (a worker was killed; its jobs
are in nobody's hands until their leases run out), *recovered*, and *over* (every job has ended, or time is up).
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
from onward.cli.demo.verification import Account, settle_up
from onward.cli.units import count
from onward.engine.values import JobFilter, QueueInfo, Rate, WorkerInfo
from onward.job import Job, NewJob
from onward.lifecycle import FINISHED, HELD, State

LOOK: Final = 0.12
"""Seconds between two looks at the store."""
KILL_AFTER: Final = 1.0
"""Seconds of work before a worker is killed."""
LONGEST: Final = 60.0
"""Seconds after which it is over, whatever has happened: on a machine that is busy, everything takes longer."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of the story."""

    at: float
    """Seconds since the beginning."""
    text: str
    bad: bool = False
    """It tells of a death."""


@dataclass(slots=True)
class Scene:
    """What is to be seen at one moment."""

    elapsed: float = 0.0
    queues: dict[str, QueueInfo] = field(default_factory=dict)
    workers: list[WorkerInfo] = field(default_factory=list)
    held: list[Job] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)
    """Workers that are dead, by our hand or by a job's."""
    jobs: int = 0

    def count(self, kind: Kind, *states: State) -> int:
        """Count the jobs of a kind in some states."""
        queue = self.queues.get(kind.name)
        return 0 if queue is None else sum(queue.counts.get(state, 0) for state in states)

    @property
    def ended(self) -> int:
        """How many jobs have ended."""
        return sum(self.count(kind, *FINISHED) for kind in KINDS)


class Story:
    """One run of the demo. ``tell`` gets each sentence, ``show`` each scene."""

    def __init__(
        self,
        folder: Path,
        *,
        jobs: int,
        workers: int,
        tell: Callable[[Sentence], None],
        show: Callable[[Scene], None],
    ) -> None:
        self.url = f"sqlite:///{folder / 'jobs.db'}"
        self._folder = folder
        self._size = jobs
        self._processes = workers
        self._tell = tell
        self._show = show
        self._began = time.monotonic()
        self._planned: dict[str, Kind] = {}
        self._scene = Scene()
        self._known: set[str] = set()
        self._victims: dict[str, str] = {}
        """Jobs that a dead worker held, and that worker."""
        self._has_struck = False
        self._is_found_out = False

    async def run(self) -> Account:
        """Tell it from the beginning to the end."""
        book = ledger.Ledger(self._folder / "ledger")
        app = make_app(self.url, book)
        crew = workers.Crew(self.url, book.path, self._folder / "workers.log", processes=self._processes)
        try:
            with crew:
                await self._enqueue(app)
                await self._watch(app, crew)
            stored = await self._stored(app)
            return settle_up(self._planned, stored, ledger.read(book.path))
        finally:
            await app.close()
            book.close()

    # Beginning

    async def _enqueue(self, app: App) -> None:
        await app.queues.limit("limited", rate=Rate(10, timedelta(seconds=1)))
        kinds, jobs = self._jobs(app)
        began = time.monotonic()
        for kind, handle in zip(kinds, await app.enqueue_many(jobs), strict=True):
            self._planned[handle.id] = kind
        self._scene.jobs = len(jobs)
        took = (time.monotonic() - began) * 1000
        self._say(f"{count(len(jobs), 'job')} of {len(KINDS)} kinds enqueued in one transaction, in {took:.0f} ms")

    def _jobs(self, app: App) -> tuple[list[Kind], list[NewJob]]:
        kinds: list[Kind] = []
        jobs: list[NewJob] = []
        for kind in KINDS:
            for number in range(kind.number(self._size)):
                kinds.append(kind)
                jobs.append(self._job(app, kind, number))
        return kinds, jobs

    def _job(self, app: App, kind: Kind, number: int) -> NewJob:
        task = app.find_task(kind.name)
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

    async def _watch(self, app: App, crew: workers.Crew) -> None:
        working_since: float | None = None
        while True:
            await self._look(app)
            if working_since is None and self._known:
                working_since = self._elapsed
            if working_since is not None and not self._has_struck and self._elapsed - working_since > KILL_AFTER:
                await self._strike(app)
            self._show(self._scene)
            if self._scene.ended >= self._scene.jobs:
                self._say("every job has ended; the workers are told to stop")
                return
            if not crew.is_alive or self._elapsed > LONGEST:
                self._say("the workers have ended" if not crew.is_alive else "time is up")
                return
            await asyncio.sleep(LOOK)

    async def _look(self, app: App) -> None:
        scene = self._scene
        scene.queues = {queue.name: queue for queue in await app.queues.list()}
        scene.workers = await app.workers.list()
        scene.held = list((await app.jobs.find(JobFilter(states=HELD), limit=200)).items)
        scene.elapsed = self._elapsed
        for worker in scene.workers:
            pid = workers.pid_of(worker)
            if worker.id not in self._known:
                self._known.add(worker.id)
                new = len(self._known) > self._processes
                self._say(f"worker {pid} takes the place of a dead one" if new else f"worker {pid} is at work")
            if worker.id not in scene.killed and not workers.is_alive(pid):
                self._note_death(worker.id, f"a job has killed its process: worker {pid} is dead")
        self._note_recovery()
        if not self._is_found_out and scene.count(CRASHER, CRASHER.ends):
            self._is_found_out = True
            self._say("the job that kills was found out, alone in a process: it is a dead letter now")

    async def _strike(self, app: App) -> None:
        """Kill the worker that has most in its hands; not one that is about to be killed by a job."""
        doomed = {job.worker_id for job in self._scene.held if job.type == CRASHER.name} | self._scene.killed
        hands = {worker.id: 0 for worker in self._scene.workers if worker.id not in doomed}
        for job in self._scene.held:
            if job.worker_id in hands:
                hands[job.worker_id] += 1
        victim = max(hands, key=hands.__getitem__, default=None)
        if victim is None or not hands[victim] or not workers.kill(workers.pid_of(victim)):
            return
        self._has_struck = True
        self._scene.held = list((await app.jobs.find(JobFilter(states=HELD), limit=200)).items)
        self._note_death(victim, f"kill -9: worker {workers.pid_of(victim)} is dead")

    def _note_death(self, worker_id: str, sentence: str) -> None:
        self._scene.killed.add(worker_id)
        held = [job for job in self._scene.held if job.worker_id == worker_id]
        self._victims |= {job.id: worker_id for job in held}
        self._say(f"{sentence}, with {count(len(held), 'job')} in its hands" if held else sentence, bad=True)

    def _note_recovery(self) -> None:
        still = {job.id for job in self._scene.held if self._victims.get(job.id) == job.worker_id}
        back = [id for id in self._victims if id not in still]
        if not back:
            return
        for id in back:
            del self._victims[id]
        self._say(f"{count(len(back), 'job')} of the dead are taken back: the leases have run out")

    # End

    async def _stored(self, app: App) -> dict[str, Job]:
        found: dict[str, Job] = {}
        after = None
        while True:
            page = await app.jobs.find(limit=500, after=after)
            found |= {job.id: job for job in page.items}
            after = page.after
            if after is None:
                return found

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _say(self, sentence: str, *, bad: bool = False) -> None:
        self._tell(Sentence(self._elapsed, sentence, bad))
