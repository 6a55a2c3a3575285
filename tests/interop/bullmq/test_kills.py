"""Workers of either language are killed, and those of the other take their jobs over (B5, X3).

The long form, two hundred kills on a mixed fleet: ``pytest tests/interop/bullmq/test_kills.py -m slow``.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onward import App, JobStatus
from onward.engine.values import ClaimRequest, JobFilter, Settlement
from onward.lifecycle import Complete
from tests.interop.bullmq.peer import V6, NodePeer
from tests.interop.bullmq.worker_process import LEASE, make_app
from tests.worker.harness import eventually

QUICK: dict[str, Any] = {"lockDuration": 2000, "stalledInterval": 500, "maxStalledCount": 1000, "concurrency": 10}


class WorkerProcess:
    """A process of ours."""

    def __init__(self, url: str, name: str) -> None:
        command = [sys.executable, "-m", "tests.interop.bullmq.worker_process", url, name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_started(self) -> str:
        """Wait until it runs a job, and give its id."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()[1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class NodeWorkerProcess(NodePeer):
    """A process of Node's with a worker in it."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url, V6)
        self.request("work", handle="w", queue=name, options=QUICK)

    def has_started(self) -> str:
        return str(self.receive("started")["id"])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.close()


@contextmanager
def killed(victim: WorkerProcess | NodeWorkerProcess) -> Iterator[str]:
    """Kill somebody in the middle of a job."""
    try:
        yield victim.has_started()
    finally:
        victim.kill()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    return path


def payload(ledger: Path, n: int, ms: int) -> dict[str, Any]:
    return {"n": n, "steps": [["work", {"ledger": str(ledger), "ms": ms}]]}


def runs(ledger: Path) -> dict[str, list[str]]:
    """Read the ledger: for each job, its runs in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in ledger.read_text().splitlines():
        id, run, _, _ = line.split()
        found[id].append(run)
    return found


async def test_node_takes_over_what_a_killed_worker_of_ours_held(
    url: str, node6: NodePeer, name: str, ledger: Path
):  # B5
    queue, events = node6.queue(name), node6.events(name)
    added = queue.add("work", payload(ledger, 1, 100))
    victim = WorkerProcess(url, name)
    with killed(victim) as id:
        assert id == added["id"]
    with node6.working(name, **QUICK):
        answer = await queue.finished(added["id"], events)
    first, second = runs(ledger)[added["id"]]
    assert first != second == answer["run"]
    seen = queue.job(added["id"])
    assert seen["stalledCounter"] == 1
    await node6.receive_async("event", handle=events, event="stalled")


async def test_whoever_lost_its_lock_to_the_other_language_cannot_finish(
    app: App, client: Any, node6: NodePeer, name: str, ledger: Path
):  # X3
    queue = node6.queue(name)
    added = queue.add("work", payload(ledger, 1, 1))
    (ours,) = (await app._core.engine.claim(ClaimRequest(worker_id="w", queues=(name,), slots=1))).claims
    client.delete(f"bull:{name}:{added['id']}:lock")
    worker = node6.handle()
    node6.request("make", handle=worker, kind="Worker", queue=name, options={"stalledInterval": 1, "name": "theirs"})
    for _ in range(2):
        client.delete(f"bull:{name}:stalled-check")
        node6.request("call", handle=worker, method="moveStalledJobsToWait")
    assert node6.request("claim", handle=worker, token="theirs")["id"] == added["id"]
    assert await app._core.engine.settle([Settlement(ours, Complete('"ours"'))]) == {ours.token}
    node6.request("callJob", handle=worker, id=added["id"], method="moveToCompleted", args=["theirs", "theirs", False])
    assert queue.job(added["id"])["returnvalue"] == "theirs"
    node6.request("close", handle=worker)


class WorkerFleet:
    """Workers of both languages on one queue, killed at random and replaced, and the account of what they did."""

    def __init__(self, url: str, name: str, ledger: Path, seed: int) -> None:
        self.url, self.name, self.ledger = url, name, ledger
        self.random = random.Random(seed)
        self.workers: list[WorkerProcess | NodeWorkerProcess] = []
        self.done: Counter[str] = Counter()

    def start(self, kind: type[WorkerProcess | NodeWorkerProcess]) -> None:
        self.workers.append(kind(self.url, self.name))

    def kill_one(self) -> None:
        """Kill one, whichever, and hire one of the same kind."""
        victim = self.workers.pop(self.random.randrange(len(self.workers)))
        victim.kill()
        self.done[type(victim).__name__] += 1
        self.start(type(victim))

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()


async def run_with_kills(url: str, peer: NodePeer, name: str, ledger: Path, *, kills: int, jobs: int) -> None:
    """Kill workers while jobs come in from both sides; then account for every job."""
    fleet = WorkerFleet(url, name, ledger, seed=kills)
    queue = peer.queue(name)
    app = make_app(url, name)
    async with app:
        work_task = app.tasks["work"]
        try:
            for kind in (WorkerProcess, NodeWorkerProcess, WorkerProcess, NodeWorkerProcess):
                await asyncio.to_thread(fleet.start, kind)
            for number in range(kills):
                for n in range(jobs * number // kills, jobs * (number + 1) // kills):
                    data = payload(ledger, n, fleet.random.randrange(0, 400))
                    if n % 2:
                        await work_task.enqueue(**data)
                    else:
                        await peer.request_async(
                            "call", handle=queue.handle, method="add", args=["work", data, {"attempts": 3}]
                        )
                await asyncio.to_thread(fleet.kill_one)
            await eventually(lambda: queue.getJobCounts("completed") == {"completed": jobs}, timeout=120)
        finally:
            fleet.stop()
        page = await app._core.engine.find(JobFilter(queues=(name,)), limit=jobs + 1)
    runs_by_job = runs(ledger)
    assert len(page.items) == jobs
    assert all(job.status is JobStatus.COMPLETED for job in page.items), "lost"
    assert set(runs_by_job) == {job.id for job in page.items}
    stale = [job.id for job in page.items if job.result["run"] != runs_by_job[job.id][-1]]
    assert not stale, "finished by a worker that had lost its lock"
    again = sum(len(each) > 1 for each in runs_by_job.values())
    print(
        f"{dict(fleet.done)}: {jobs} jobs, {sum(map(len, runs_by_job.values()))} runs, {again} jobs run again, 0 lost"
    )


async def test_a_mixed_fleet_loses_nothing_to_a_few_kills(url: str, node6: NodePeer, name: str, ledger: Path):  # X3
    await run_with_kills(url, node6, name, ledger, kills=4, jobs=60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_mixed_fleet_loses_nothing_to_two_hundred_kills(
    url: str, node6: NodePeer, name: str, ledger: Path
):  # X3
    await run_with_kills(url, node6, name, ledger, kills=200, jobs=4000)


async def test_we_take_over_what_a_killed_worker_of_nodes_held(
    url: str, node6: NodePeer, name: str, ledger: Path
):  # B5, O7
    queue, events = node6.queue(name), node6.events(name)
    added = queue.add("work", payload(ledger, 1, 100))
    victim = NodeWorkerProcess(url, name)
    with killed(victim) as id:
        assert id == added["id"]
    app = make_app(url, name)
    async with app, app.worker(queues=[name], leader_lease=LEASE):
        answer = await queue.finished(added["id"], events)
        job = await app.jobs.get(f"{name}:{id}")
    assert runs(ledger)[added["id"]][-1] == answer["run"]
    assert job.crashes == 1
    await node6.receive_async("event", handle=events, event="stalled")
