"""How long one killed worker delays its jobs, and jobs of other queues: one lease, and no more (Counting).

The short form accounts for the jobs, and prints the times. The long one, by ``make chaos``, holds them to the bounds:
all jobs end within lease + 2 × the undisturbed time, and another queue's median pickup within 2 × of normal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest

from onward import Job, JobStatus, NewJob
from tests.chaos import ledger
from tests.chaos.fleet import Fleet, database, fleet_at
from tests.worker.harness import eventually

PROGRAM = """
import asyncio
from onward import App, JobContext
from tests.chaos.ledger import record

app = App(lease={lease})

@app.task(queue="work")
async def work(context: JobContext, number: int) -> dict[str, object]:
    run = record(context, "work", number)
    await asyncio.sleep({seconds})
    return run

@app.task(queue="other")
async def probe(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "probe", number)
"""


@dataclass
class Load:
    """Jobs on one worker, and probes in another queue of it."""

    fleet: Fleet
    jobs: int
    slots: int
    lease: float
    probes: set[str] = field(default_factory=set)

    async def worker_pid(self) -> int:
        """Wait for a worker, and find its process: a supervisor may have started it."""
        alive: set[int] = set()

        async def one_is_alive() -> bool:
            alive.clear()
            alive.update(pid for each in await self.fleet.app.workers.list() if is_alive(pid := pid_of(each.id)))
            return len(alive) == 1

        await eventually(one_is_alive, timeout=60)
        return alive.pop()

    def start(self) -> None:
        """Start the worker."""
        queues = f"work={self.slots},other=2"
        self.fleet.work("program:app", "--queues", queues, "--lease", f"{self.lease}s")

    async def kill(self) -> None:
        """Kill the worker when it runs as much as it can, and start another unless a supervisor does."""
        pid = await self.worker_pid()
        await eventually(lambda: len(ledger.read(self.fleet.folder)) >= self.slots, timeout=60)
        os.kill(pid, signal.SIGKILL)
        (process,) = self.fleet.processes
        if process.pid == pid:
            self.fleet.kill(process)
            self.start()

    async def probe(self, done: asyncio.Event) -> None:
        """Add a job to the other queue now and then."""
        while not done.is_set():
            (handle,) = await self.fleet.app.enqueue_many(
                [NewJob(type="probe", queue="other", payload='{"number": 0}')]
            )
            self.probes.add(handle.id)
            await asyncio.sleep(0.1)

    async def run(self, *, kill: bool) -> tuple[float, float]:
        """Run the jobs; answer how many seconds they took, and the median pickup of the probes meanwhile.

        Probes that were added while there was no worker at all do not count.
        """
        self.start()
        await self.worker_pid()
        began = time.monotonic()
        new = [NewJob(type="work", queue="work", payload=f'{{"number": {number}}}') for number in range(self.jobs)]
        ids = {handle.id for handle in await self.fleet.app.enqueue_many(new)}
        if kill:
            await self.kill()
            await self.worker_pid()
        done = asyncio.Event()
        probing = asyncio.create_task(self.probe(done))
        jobs = await self.fleet.ended(ids, timeout=100 + 3 * self.lease)
        seconds = time.monotonic() - began
        done.set()
        await probing
        probes = await self.fleet.ended(self.probes)
        (process,) = self.fleet.processes
        await self.fleet.stop(process)
        verify(jobs)
        await self.fleet.verify(dict.fromkeys(ids, "work") | dict.fromkeys(probes, "probe"), once=not kill)
        return seconds, median(pickup(job) for job in probes.values())


def verify(jobs: dict[str, Job]) -> None:
    """No job is charged for the death of its worker."""
    assert {(job.status, job.attempts, job.crashes) for job in jobs.values()} == {(JobStatus.COMPLETED, 1, 0)}


def pickup(job: Job) -> float:
    """Seconds from enqueue to start, by the store's clock."""
    assert job.started_at is not None
    assert job.created_at is not None
    return (job.started_at - job.created_at).total_seconds()


def pid_of(worker_id: str) -> int:
    return int(worker_id.rsplit("-", 2)[1])


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@dataclass
class Times:
    """What was measured."""

    lease: float
    undisturbed: float
    recovered: float
    normal_pickup: float
    pickup: float

    def __str__(self) -> str:
        bound = self.lease + 2 * self.undisturbed
        return (
            f"undisturbed {self.undisturbed:.1f} s, with a kill {self.recovered:.1f} s (bound {bound:.1f} s); median "
            f"pickup of another queue {1000 * self.normal_pickup:.0f} ms, during recovery {1000 * self.pickup:.0f} ms"
        )


@asynccontextmanager
async def store(kind: str, folder: Path) -> AsyncIterator[Fleet]:
    await asyncio.to_thread(folder.mkdir)
    if kind == "sqlite":
        async with fleet_at(f"sqlite:///{folder}/jobs.db", folder) as fleet:
            yield fleet
    else:
        async with database() as url, fleet_at(url, folder) as fleet:
            yield fleet


async def measure(kind: str, folder: Path, *, jobs: int, seconds: float, slots: int, lease: float) -> Times:
    """Run the same jobs without and with one kill, each on a store of its own."""
    found = []
    for kill in (False, True):
        async with store(kind, folder / str(kill)) as fleet:
            fleet.write("program", PROGRAM.format(seconds=seconds, lease=lease))
            found.append(await Load(fleet, jobs, slots, lease).run(kill=kill))
    (undisturbed, normal), (recovered, during) = found
    times = Times(lease, undisturbed, recovered, normal, during)
    print(f"\n{kind}: {jobs} jobs of {seconds:g} s, {slots} slots, lease {lease:g} s: {times}")
    return times


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_killed_worker_costs_its_jobs_nothing(tmp_path: Path, kind: str):  # Counting
    await measure(kind, tmp_path, jobs=20, seconds=0.2, slots=5, lease=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("slots", [10, 20])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_killed_worker_costs_one_lease_and_other_queues_nothing(
    tmp_path: Path, kind: str, slots: int
):  # Counting
    times = await measure(kind, tmp_path, jobs=100, seconds=1, slots=slots, lease=10)
    assert times.recovered <= times.lease + 2 * times.undisturbed, str(times)
    assert times.pickup <= 2 * times.normal_pickup, str(times)
