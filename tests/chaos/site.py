"""A store, worker processes on it, jobs that come in meanwhile, and the ledger that accounts for them all.

Which store it is, and what is done to it, is for the tests to say: here is what they have in common.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from onward.app import App
from onward.engine.capabilities import Feature
from onward.engine.values import JobFilter, WorkerInfo
from onward.errors import StoreUnavailable
from onward.job import Job
from onward.lifecycle import JobStatus
from tests.chaos.worker_process import LEASE, make_app
from tests.worker.harness import eventually

ENDED = {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.DEAD_LETTER, JobStatus.CANCELLED}


@dataclass
class Site:
    """A store, the workers on it, and what was done to them."""

    directory: Path
    url: str
    """By which workers and producers reach the store."""
    producer: App
    app: App
    """By which the test looks at the store: directly, whatever is done to the others' way there."""
    random: random.Random
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    suspended: list[subprocess.Popen[bytes]] = field(default_factory=list)
    terminated: list[subprocess.Popen[bytes]] = field(default_factory=list)
    faults_injected: Counter[str] = field(default_factory=Counter)
    """What was done to the store and the workers."""
    worker_count: int = 4
    max_crashes: int = 3

    # The workers

    def start_worker(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tests.chaos.worker_process",
            self.url,
            str(self.directory),
            str(self.max_crashes),
        ]
        with (self.directory / "log").open("ab") as log:
            worker = subprocess.Popen(command, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def kill(self) -> None:
        """Kill a worker, and start another."""
        victim = self._victim()
        victim.kill()
        victim.wait()
        self.faults_injected["kills"] += 1
        if len(self.workers) < self.worker_count:
            self.start_worker()

    def maybe_suspend(self) -> None:
        """Now and then, let a worker sleep past its lease; another is started meanwhile."""
        if len(self.suspended) >= 2 or self.random.random() >= 0.2:
            return
        victim = self._victim()
        victim.send_signal(signal.SIGSTOP)
        self.faults_injected["stops"] += 1
        self.suspended.append(victim)
        self.start_worker()
        seconds = LEASE.total_seconds() + self.random.uniform(0.5, 2)
        asyncio.get_running_loop().call_later(seconds, self.resume, victim)

    def _victim(self) -> subprocess.Popen[bytes]:
        """Pick one of those who have just been at work, or whichever if nobody has: some take long to begin."""
        victim = self.random.choice(self.active_workers() or self.workers)
        self.workers.remove(victim)
        return victim

    def active_workers(self) -> list[subprocess.Popen[bytes]]:
        """List the workers that have run one of the last jobs."""
        recent_pids = {int(line.split()[2]) for line in (self.directory / "ledger").read_text().splitlines()[-20:]}
        return [worker for worker in self.workers if worker.pid in recent_pids]

    def resume(self, victim: subprocess.Popen[bytes]) -> None:
        """Let a worker go on that does not know what it has missed; of the others, one too many is let go."""
        victim.send_signal(signal.SIGCONT)
        self.suspended.remove(victim)
        if len(self.workers) >= self.worker_count:
            self.terminated.append(self.workers.pop(0))
            self.terminated[-1].terminate()
        self.workers.append(victim)

    async def suspend(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a worker, but not with the store's lock in its hand: nobody could go on then."""
        while True:
            worker.send_signal(signal.SIGSTOP)
            with suppress(StoreUnavailable):
                await self.app._core.engine.deregister("nobody")
                return
            worker.send_signal(signal.SIGCONT)
            await asyncio.sleep(self.random.uniform(0, 0.05))  # or it would not have come any further

    async def stop_workers(self) -> None:
        """End all workers, in good order."""
        for worker in self.workers:
            worker.terminate()
        for worker in [*self.workers, *self.terminated]:
            await asyncio.to_thread(worker.wait, 60)

    def kill_workers(self) -> None:
        """End whatever is still there."""
        for worker in [*self.workers, *self.suspended, *self.terminated]:
            worker.kill()
            worker.wait()

    # Its work

    async def enqueue(self, number: int) -> None:
        """Add a job, and again until the store has answered: by its key it is still only one."""
        task = self.producer.tasks[self.random.choice(("async_work", "sync_work"))]
        if self.producer.capabilities.has(Feature.IDEMPOTENCY):
            task = task.using(idempotency_key=f"job {number}")
        seconds = self.random.uniform(0, 0.2)
        while True:
            try:
                await task.enqueue(seconds=seconds)
            except StoreUnavailable:
                self.faults_injected["unanswered enqueues"] += 1
                await asyncio.sleep(self.random.uniform(0, 0.1))
            else:
                return

    async def inject_faults(
        self, inject_fault: Callable[[], Awaitable[None]], *, faults: int, jobs: int, pause: float = 1.0
    ) -> None:
        """Strike again and again while jobs come in, then wait for all jobs to end."""
        for _ in range(self.worker_count):
            self.start_worker()
        await eventually(self.all_registered, timeout=60)

        async def produce() -> None:
            for number in range(jobs):
                await self.enqueue(number)
                if number % 5 == 4:
                    await asyncio.sleep(self.random.uniform(0, 5 * faults * pause / jobs))

        producing = asyncio.create_task(produce())
        for _ in range(faults):
            await asyncio.sleep(self.random.uniform(0.1, 1) * pause)
            with suppress(TimeoutError):  # all may stand still because of what was done to the store
                await eventually(self.active_workers, timeout=5)
            self.maybe_suspend()
            await inject_fault()
        async with asyncio.timeout(300):
            await producing
        await eventually(lambda: not self.suspended, timeout=60)
        await eventually(self.all_ended, timeout=300)
        await self.stop_workers()

    async def all_registered(self) -> bool:
        return len(await self.registered_workers()) == self.worker_count

    async def registered_workers(self) -> list[WorkerInfo]:
        """List the workers; none while the store is away."""
        with suppress(StoreUnavailable):
            return await self.app._core.engine.workers()
        return []

    async def leader(self) -> subprocess.Popen[bytes] | None:
        """Find the worker that leads."""
        by_pid = {str(worker.pid): worker for worker in self.workers}
        leading = [worker.id.rsplit("-", 2)[1] for worker in await self.registered_workers() if worker.is_leader]
        return by_pid.get(leading[0]) if leading else None

    async def all_ended(self) -> bool:
        with suppress(StoreUnavailable):
            counts = await self.app.jobs.count()
            return all(state in ENDED for state, number in counts.items() if number)
        return False

    async def jobs(self) -> list[Job]:
        found: list[Job] = []
        after = None
        while True:
            page = await self.app._core.engine.find(JobFilter(), cursor=after, limit=1000)
            found.extend(page.items)
            if (after := page.next_cursor) is None:
                return found

    # Its books

    def ledger(self) -> dict[str, list[int]]:
        """Read the effects: for each job, the numbers of the claims it was run by."""
        effects: dict[str, list[int]] = defaultdict(list)
        for line in (self.directory / "ledger").read_text().splitlines():
            job, number, _pid = line.split()
            effects[job].append(int(number))
        return effects

    def log(self) -> list[dict[str, object]]:
        """Read what the workers have logged; a line cut off by a kill is left out."""
        entries = []
        for line in (self.directory / "log").read_text().splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
        return entries

    def lost_claims(self) -> list[object]:
        """Read which jobs their workers found to be theirs no longer."""
        return [entry["job_id"] for entry in self.log() if "claim lost" in str(entry["message"])]

    def rejections(self) -> int:
        """Count the lost claims of jobs that somebody else has run: the fence kept an outcome out, or a run short.

        A claim may also seem lost to a worker whose outcome was stored, but whose answer never came.
        """
        effects = self.ledger()
        return sum(len(effects[str(job)]) > 1 for job in self.lost_claims())

    async def verify_jobs(self, jobs: int) -> None:
        """Account for every job."""
        found, effects = await self.jobs(), self.ledger()
        assert len({job.id for job in found}) == len(found) == jobs
        lost = [job for job in found if job.status is not JobStatus.COMPLETED]
        assert not lost, f"not completed: {[(job.id, job.status, job.last_error) for job in lost]}"
        assert not [job.id for job in found if not effects[job.id]], "completed without ever having been run"
        # A claim is given once, and its number only rises: the outcome that stands must be of the newest that ran.
        stale = [job.id for job in found if int(job.result["claim"]) != max(effects[job.id])]
        assert not stale, "outcomes recorded by workers that had lost their claim"
        assert all(len(numbers) == len(set(numbers)) for numbers in effects.values()), "a claim was run twice"
        assert all(job.attempts == 1 for job in found), "the loss of a worker must not cost an attempt"
        assert not set(effects) - {job.id for job in found}, "run, but gone from the store"
        runs = Counter(len(numbers) for numbers in effects.values())
        alone = sum(entry.get("message") == "running suspect in isolation" for entry in self.log())
        print(
            f"\njobs {jobs}, done to them {dict(self.faults_injected)}: lost 0, outcomes from lost claims 0, "
            f"runs per job {dict(sorted(runs.items()))}, claims found lost {len(self.lost_claims())}, "
            f"of these rejected for a later run {self.rejections()}, suspects run alone {alone}"
        )


@asynccontextmanager
async def site_at(url: str, directory: Path, *, proxy_url: str | None = None) -> AsyncIterator[Site]:
    """Open a site on a store; ``through``: another way to it, for workers and producers."""
    seed = int(os.environ.get("ONWARD_SEED", random.randrange(1_000_000)))
    print(f"ONWARD_SEED={seed}")
    async with AsyncExitStack() as opened:
        app = await opened.enter_async_context(make_app(url, directory))
        producer = app
        if proxy_url is not None:
            producer = await opened.enter_async_context(make_app(proxy_url, directory))
        site = Site(directory, proxy_url or url, producer, app, random.Random(seed))
        opened.callback(site.kill_workers)
        yield site
