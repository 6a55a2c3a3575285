"""Workers killed and stopped at random moments, on each store; then every job is accounted for.

The short form runs with the other tests. The long one (200 kills, 5 000 jobs) by ``make chaos``.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest

from onward.handle import JobHandle
from onward.job import Job
from onward.lifecycle import JobStatus
from tests.chaos.site import Site, site_at
from tests.chaos.worker_process import LEASE
from tests.servers.postgres import PostgresServer
from tests.worker.harness import eventually


@asynccontextmanager
async def on_sqlite(directory: Path) -> AsyncIterator[Site]:
    """Work on a file, and look whether it is sound afterwards."""
    async with site_at(f"sqlite:///{directory}/jobs.db", directory) as site:
        yield site
    with closing(sqlite3.connect(directory / "jobs.db")) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)


@asynccontextmanager
async def on_postgres(directory: Path) -> AsyncIterator[Site]:
    """Work on a server of its own, as durable as servers are."""
    with PostgresServer.started(fsync="on") as server:
        async with site_at(server.url(), directory) as site:
            yield site


@pytest.fixture(params=[on_sqlite, on_postgres], ids=["sqlite", "postgres"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    open_site: Callable[[Path], AbstractAsyncContextManager[Site]] = request.param
    async with open_site(tmp_path) as site:
        yield site


async def kill_workers(site: Site, *, kills: int, jobs: int, pause: float = 1.0) -> None:
    """Kill and stop workers at random moments while jobs come in, and account for every job."""

    async def kill() -> None:
        site.kill()

    await site.inject_faults(kill, faults=kills, jobs=jobs, pause=pause)
    await site.verify_jobs(jobs)


async def test_no_job_is_lost_however_workers_are_killed(site: Site):  # X3, O7, Counting
    await kill_workers(site, kills=6, jobs=150, pause=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_job_is_lost_in_two_hundred_kills(site: Site):  # X3, O7, Counting
    await kill_workers(site, kills=200, jobs=5000)
    assert site.rejections(), "no worker ever found its claim gone: the fence was not tried"


async def test_who_sleeps_past_its_lease_finds_its_claims_gone(site: Site):  # X3
    for _ in range(5):
        await site.app.tasks["async_work"].enqueue(seconds=1)
    suspended = site.start_worker()
    await eventually(lambda: len(site.ledger()) == 5, timeout=60)
    # Stopped in the middle of a write it would have to be let go on, and its jobs would end before it is stopped again.
    await asyncio.sleep(0.3)
    await site.suspend(suspended)
    site.start_worker()
    await eventually(site.all_ended, timeout=60)
    suspended.send_signal(signal.SIGCONT)
    await eventually(lambda: len(site.lost_claims()) == 5, timeout=60)
    await site.stop_workers()
    await site.verify_jobs(5)
    assert site.rejections() == 5
    assert {job.result["pid"] for job in await site.jobs()} == {site.workers[1].pid}


async def test_a_leader_that_sleeps_past_its_lease_leads_no_more(site: Site):  # O6
    first, second = site.start_worker(), site.start_worker()
    await eventually(site.leader, timeout=60)
    suspended = await site.leader()
    assert suspended is not None
    successor = second if suspended is first else first
    await site.suspend(suspended)
    # Only a leader makes a delayed job ready.
    for _ in range(5):
        await site.app.tasks["async_work"].using(delay=timedelta(seconds=1)).enqueue(seconds=0)
    await eventually(site.all_ended, timeout=60)
    assert await site.leader() is successor
    (after,) = [worker.leader_until for worker in await site.registered_workers() if worker.is_leader]
    suspended.send_signal(signal.SIGCONT)
    await eventually(lambda: "leadership lost" in {entry["message"] for entry in site.log()}, timeout=60)
    assert await site.leader() is successor
    (later,) = [worker.leader_until for worker in await site.registered_workers() if worker.is_leader]
    assert after is not None
    assert later is not None
    assert later >= after, "what the sleeper wrote has ended its successor's term"
    await site.stop_workers()
    await site.verify_jobs(5)


async def test_a_job_that_kills_its_worker_is_found_out_and_its_neighbours_lose_nothing(site: Site):  # Counting
    killer = await site.app.tasks["kill_worker"].enqueue()
    for _ in range(9):
        await site.app.tasks["async_work"].enqueue(seconds=0.5)
    while not await site.all_ended():
        if not site.workers or site.workers[-1].poll() is not None:
            site.start_worker()
        await asyncio.sleep(0.05)
    await site.stop_workers()
    found = {job.id: job for job in await site.jobs()}
    killed_job = found.pop(killer.id)
    assert killed_job.status is JobStatus.DEAD_LETTER
    assert killed_job.crashes == 3
    assert len(site.ledger()[killer.id]) == 5, "twice in company, and three times alone"
    assert len(found) == 9
    for job in found.values():
        assert (job.status, job.attempts, job.crashes) == (JobStatus.COMPLETED, 1, 0)


async def test_one_kill_costs_its_jobs_one_run_and_isolates_none(site: Site):  # Counting
    jobs = 30
    for _ in range(jobs):
        await site.app.tasks["async_work"].enqueue(seconds=0.3)
    victim = site.start_worker()
    site.start_worker()
    await eventually(lambda: _begun_by(site, victim.pid) >= 3, timeout=60)
    victim.kill()
    victim.wait()
    others = [await site.app.tasks["async_work"].using(queue="other").enqueue(seconds=0) for _ in range(10)]
    for other in others:
        await other.result(timeout=60)
    await eventually(site.all_ended, timeout=60)
    await site.stop_workers()
    await site.verify_jobs(jobs + len(others))
    assert max(len(runs) for runs in site.ledger().values()) == 2
    assert not [entry for entry in site.log() if entry["message"] == "running suspect in isolation"]
    assert {job.crashes for job in await site.jobs()} == {0}


def _begun_by(site: Site, pid: int) -> int:
    lines = (site.directory / "ledger").read_text().splitlines()
    return sum(line.endswith(f" {pid}") for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_one_kill_delays_nothing_but_by_its_lease(site: Site):  # Counting, O7
    """A hundred jobs of a second, without and with one kill: how long all take, and how soon another queue's begin."""

    async def run(*, kill: bool) -> tuple[float, float]:
        site.start_worker()
        site.start_worker()
        await eventually(lambda: _registered(site, 2), timeout=60)
        began = time.monotonic()
        handles = await site.app.tasks["async_work"].enqueue_many([{"seconds": 1.0}] * 100)
        probes = []
        done = asyncio.create_task(_wait_for(handles))
        while not done.done():
            probes.append(await site.app.tasks["async_work"].using(queue="other").enqueue(seconds=0))
            await asyncio.sleep(0.1)
            if kill and time.monotonic() - began > 1.5:
                kill = False
                site.workers[-1].kill()
                site.workers[-1].wait()
                site.start_worker()  # as a supervisor does
        seconds = time.monotonic() - began
        await _wait_for(probes)
        waits = [_wait_of(await site.app._core.engine.get(probe.ref)) for probe in probes]
        await site.stop_workers()
        return seconds, statistics.median(waits)

    undisturbed, pickup = await run(kill=False)
    disturbed, disturbed_pickup = await run(kill=True)
    print(
        f"\n100 jobs of 1 s: {undisturbed:.1f} s, with a kill {disturbed:.1f} s (lease {LEASE.total_seconds():.0f} s); "
        f"median pickup {pickup * 1e3:.0f} ms, with a kill {disturbed_pickup * 1e3:.0f} ms"
    )
    assert disturbed <= LEASE.total_seconds() + 2 * undisturbed
    assert disturbed_pickup <= 2 * pickup
    assert {(job.status, job.attempts, job.crashes) for job in await site.jobs()} == {(JobStatus.COMPLETED, 1, 0)}


async def _registered(site: Site, count: int) -> bool:
    return len(await site.registered_workers()) >= count


async def _wait_for(handles: Sequence[JobHandle[object]]) -> None:
    await asyncio.gather(*(handle.result(timeout=120) for handle in handles))


def _wait_of(job: Job | None) -> float:
    assert job is not None
    assert job.started_at is not None
    return (job.started_at - job.created_at).total_seconds()
