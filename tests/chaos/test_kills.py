"""Workers killed and stopped at random moments; then every job is accounted for.

The short form runs with the other tests. The long one (200 kills, 5 000 jobs) by ``make chaos``, or by
``ONWARD_CHAOS=long`` in place of the short one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onward.app import App
from onward.engine.values import JobFilter
from onward.errors import StoreBusy
from onward.job import Job
from onward.lifecycle import State
from tests.chaos.labourer import LEASE, make_app
from tests.worker.stage import eventually

LONG = os.environ.get("ONWARD_CHAOS") == "long"


@dataclass
class Site:
    """A store, the workers on it, and what was done to them."""

    directory: Path
    app: App
    random: random.Random
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopped: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: int = 0
    stops: int = 0
    crew: int = 4
    max_crashes: int = 3

    def hire(self) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.labourer", str(self.directory), str(self.max_crashes)],
                stdout=log,
                stderr=log,
            )
        self.workers.append(worker)
        return worker

    def kill(self) -> None:
        """Kill a worker, whichever, and hire another, unless one that slept has come back in its place."""
        victim = self.workers.pop(self.random.randrange(len(self.workers)))
        victim.kill()
        victim.wait()
        self.kills += 1
        if len(self.workers) < self.crew:
            self.hire()

    def stop(self, seconds: float) -> None:
        """Let a worker sleep past its lease; another is hired meanwhile."""
        victim = self.workers.pop(self.random.randrange(len(self.workers)))
        victim.send_signal(signal.SIGSTOP)
        self.stops += 1
        self.stopped.append(victim)
        self.hire()
        asyncio.get_running_loop().call_later(seconds, self.wake, victim)

    async def put_to_sleep(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a worker, but not with the store's lock in its hand: nobody could go on then."""
        while True:
            worker.send_signal(signal.SIGSTOP)
            with suppress(StoreBusy):
                await self.app.engine.leave("nobody")
                return
            worker.send_signal(signal.SIGCONT)

    def wake(self, victim: subprocess.Popen[bytes]) -> None:
        """Let a worker go on that does not know what it has missed."""
        victim.send_signal(signal.SIGCONT)
        self.stopped.remove(victim)
        self.workers.append(victim)

    async def enqueue(self) -> None:
        """Add a job, and again if a worker was put to sleep with the store's lock in its hand."""
        task = self.app.tasks[self.random.choice(("labour", "toil"))]
        while True:
            with suppress(StoreBusy):
                await task.enqueue(seconds=self.random.uniform(0, 0.2))
                return

    def dismiss(self) -> None:
        """End all workers, in good order."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(60)

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

    async def jobs(self) -> list[Job]:
        found: list[Job] = []
        after = None
        while True:
            page = await self.app.engine.find(JobFilter(), after=after, limit=1000)
            found.extend(page.items)
            if (after := page.after) is None:
                return found

    async def all_at_work(self) -> bool:
        return len(await self.app.engine.workers()) == self.crew

    async def all_ended(self) -> bool:
        counts = await self.app.jobs.count()
        ended = {State.COMPLETED, State.FAILED, State.DEAD_LETTER, State.CANCELLED}
        return all(state in ended for state, number in counts.items() if number)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    seed = int(os.environ.get("ONWARD_SEED", random.randrange(1_000_000)))
    print(f"ONWARD_SEED={seed}")
    app = make_app(tmp_path)
    async with app:
        site = Site(tmp_path, app, random.Random(seed))
        try:
            yield site
        finally:
            for worker in [*site.workers, *site.stopped]:
                worker.kill()
                worker.wait()


async def rampage(site: Site, *, kills: int, jobs: int, pause: float = 1.0) -> None:
    """Kill and stop workers at random moments while jobs come in, then wait for all jobs to end."""
    # So thick do the kills come that an innocent job, alone in its process, might well meet three of them.
    site.max_crashes = 6
    for _ in range(site.crew):
        site.hire()
    await eventually(site.all_at_work, within=60)
    each, left = -(-jobs // kills), jobs
    while site.kills < kills:
        for _ in range(min(each, left)):
            await site.enqueue()
            left -= 1
        await asyncio.sleep(site.random.uniform(0, 0.1))
        if len(site.stopped) < 2 and site.random.random() < 0.2:
            site.stop(LEASE.total_seconds() + site.random.uniform(0.5, 2))
        site.kill()
        await asyncio.sleep(site.random.uniform(0.1, 0.9) * pause)
    await eventually(lambda: not site.stopped, within=60)
    await eventually(site.all_ended, within=300)
    site.dismiss()


async def check(site: Site, jobs: int) -> None:
    """Account for every job."""
    found, effects, log = await site.jobs(), site.ledger(), site.log()
    assert len(found) == jobs
    lost = [job for job in found if job.status is not State.COMPLETED]
    assert not lost, f"not completed: {[(job.id, job.status, job.last_error) for job in lost]}"
    without = [job.id for job in found if not effects[job.id]]
    assert not without, "completed without ever having been run"
    # A claim is given once, and its number only rises: the outcome that stands must be of the newest claim that ran.
    stale = [job.id for job in found if job.result["claim"] != max(effects[job.id])]
    assert not stale, "outcomes recorded by workers that had lost their claim"
    assert all(len(numbers) == len(set(numbers)) for numbers in effects.values()), "a claim was run twice"
    assert all(job.attempts == 1 for job in found), "the loss of a worker must not cost an attempt"
    with closing(sqlite3.connect(site.directory / "jobs.db")) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    runs = Counter(len(numbers) for numbers in effects.values())
    print(
        f"jobs {jobs}, kills {site.kills}, stops {site.stops}, runs per job {dict(sorted(runs.items()))}, "
        f"claims found lost {len(site.lost_claims())}, suspects run alone "
        f"{sum(entry.get('message') == 'suspect runs alone' for entry in log)}"
    )


async def test_no_job_is_lost_however_workers_are_killed(site: Site):  # X3, O7, Counting
    kills, jobs = (200, 5000) if LONG else (6, 150)
    await rampage(site, kills=kills, jobs=jobs, pause=1 if LONG else 2)
    await check(site, jobs)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_job_is_lost_in_two_hundred_kills(site: Site):  # X3, O7, Counting
    await rampage(site, kills=200, jobs=5000)
    await check(site, 5000)
    assert site.lost_claims(), "no worker ever found its claim gone: the fence was not tried"


async def test_who_sleeps_past_its_lease_finds_its_claims_gone(site: Site):  # X3
    for _ in range(5):
        await site.app.tasks["labour"].enqueue(seconds=1)
    sleeper = site.hire()
    await eventually(lambda: len(site.ledger()) == 5, within=60)
    await site.put_to_sleep(sleeper)
    site.hire()
    await eventually(site.all_ended, within=60)
    sleeper.send_signal(signal.SIGCONT)
    await eventually(lambda: len(site.lost_claims()) == 5, within=60)
    site.dismiss()
    await check(site, 5)
    assert {job.result["pid"] for job in await site.jobs()} == {site.workers[1].pid}


async def test_a_job_that_kills_its_worker_is_found_out_and_its_neighbours_lose_nothing(site: Site):  # Counting
    murder = await site.app.tasks["murder"].enqueue()
    for _ in range(9):
        await site.app.tasks["labour"].enqueue(seconds=0.5)
    while not await site.all_ended():
        if not site.workers or site.workers[-1].poll() is not None:
            site.hire()
        await asyncio.sleep(0.05)
    site.dismiss()
    found = {job.id: job for job in await site.jobs()}
    culprit = found.pop(murder.id)
    assert culprit.status is State.DEAD_LETTER
    assert culprit.crashes == 3
    assert len(site.ledger()[murder.id]) == 4, "once in company, and three times alone"
    assert len(found) == 9
    for job in found.values():
        assert (job.status, job.attempts, job.crashes) == (State.COMPLETED, 1, 0)
