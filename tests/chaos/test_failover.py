"""PostgreSQL loses its last commits under load: jobs may be lost with them, results never reach another job (X3).

An asynchronous standby that is behind is promoted; a server with ``synchronous_commit=off`` is killed. Workers and
producers go on with the same processes and connections. The short forms run with the other tests, the long ones by
``make chaos``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onward import NewJob, StoreUnavailable
from onward.engine.restore import WENT_BACK
from tests.chaos import ledger
from tests.chaos.fleet import Fleet, fleet_at
from tests.servers.postgres import PostgresServer
from tests.worker.harness import eventually

PROGRAM = """
import asyncio
from onward import App, JobContext
from tests.chaos.ledger import record

app = App(lease=2)

@app.task
async def work(context: JobContext, number: int, seconds: float) -> dict[str, object]:
    run = record(context, "work", number)
    await asyncio.sleep(seconds)
    return run
"""


@dataclass
class Traffic:
    """A producer, and what the store has acknowledged to it."""

    fleet: Fleet
    seconds: float
    """How long a job takes at most."""
    acknowledged: set[str] = field(default_factory=set)
    unanswered: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def enqueue(self, jobs: int) -> set[str]:
        """Add jobs with one acknowledgement."""
        payloads = [{"number": next(self._numbers), "seconds": random.uniform(0, self.seconds)} for _ in range(jobs)]
        new = [NewJob(type="work", payload=json.dumps(payload)) for payload in payloads]
        ids = {handle.id for handle in await self.fleet.app.enqueue_many(new)}
        self.acknowledged |= ids
        return ids

    async def go_on(self) -> None:
        """Add jobs one by one, whatever the store says."""
        while True:
            try:
                await self.enqueue(1)
            except StoreUnavailable:
                self.unanswered += 1
            await asyncio.sleep(0.01)

    async def verify(self) -> None:
        """Every job that the store has completed with a result of its own; what was acknowledged and is gone counts."""
        await eventually(self._all_completed, timeout=100)
        await eventually(lambda: "claim lost" in self.fleet.log(), timeout=30)  # or no outcome was refused
        found, runs = await self.fleet.jobs(), ledger.read(self.fleet.folder)
        wrong = [job.id for job in found.values() if job.result not in runs[job.id]]
        wrong += [job.id for job in found.values() if job.result["number"] != job.payload["number"]]
        lost = self.acknowledged - set(found)
        rejected = self.fleet.log().count("claim lost")
        print(
            f"\nacknowledged {len(self.acknowledged)}, unanswered {self.unanswered}, in the store {len(found)}, "
            f"acknowledged and lost {len(lost)}, of these run {len(lost & set(runs))}, "
            f"outcomes rejected {rejected}, wrong results {len(wrong)}"
        )
        assert not wrong, f"results of another job: {wrong}"
        assert lost, "nothing was lost: nothing was tried"

    async def _all_completed(self) -> bool:
        with suppress(StoreUnavailable):
            counts = {status: number for status, number in (await self.fleet.app.jobs.count()).items() if number}
            return set(counts) == {"completed"}
        return False


async def under_load(
    traffic: Traffic,
    begin: Callable[[], None],
    lose: Callable[[], None],
    *,
    rounds: int,
    workers: int,
    jobs: int,
) -> None:
    """Lose all commits between ``begin`` and ``lose`` while jobs come in and run; workers and producers go on."""
    fleet = traffic.fleet
    fleet.write("program", PROGRAM)
    for _ in range(workers):
        fleet.work("program:app", "--concurrency", "60")
    await fleet.serves("work")
    for _ in range(rounds):
        going_on = asyncio.create_task(traffic.go_on())
        await asyncio.to_thread(begin)
        lost = await traffic.enqueue(jobs)
        await eventually(lambda lost=lost: len(lost & set(ledger.read(fleet.folder))) > jobs // 3, timeout=60)
        await asyncio.to_thread(lose)
        before = len(traffic.acknowledged)
        await eventually(lambda before=before: len(traffic.acknowledged) > before, timeout=60)
        await traffic.enqueue(jobs)  # while outcomes of what was lost still come in
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
    await traffic.verify()


async def fail_over(folder: Path, *, workers: int, jobs: int, seconds: float) -> None:
    """Promote an asynchronous standby that lacks the last jobs, claims and outcomes."""
    with (
        PostgresServer.started(fsync="on") as primary,
        PostgresServer.started(primary=primary, fsync="on") as standby,
    ):

        def promote() -> None:
            primary.kill()
            standby.promote()

        hosts = f"{primary.folder},{standby.folder}"
        url = f"postgresql:///postgres?host={hosts}&user=postgres&target_session_attrs=read-write&query_timeout=5"
        async with fleet_at(url, folder) as fleet:
            await eventually(lambda: standby.execute("select to_regclass('onward.job')") != [(None,)])
            traffic = Traffic(fleet, seconds)
            await under_load(traffic, standby.cut_replication, promote, rounds=1, workers=workers, jobs=jobs)
            assert WENT_BACK in await fleet.command("doctor")
            assert WENT_BACK not in await fleet.command("doctor", "--confirm-restore")


async def crash(folder: Path, *, rounds: int, workers: int, jobs: int, seconds: float) -> None:
    """Kill a server that acknowledges commits before it has written them."""
    with PostgresServer.started(fsync="on", synchronous_commit="off", wal_buffers="64MB") as server:

        def restart() -> None:
            server.kill()
            server.start()

        async with fleet_at(f"{server.url()}&query_timeout=5", folder) as fleet:
            traffic = Traffic(fleet, seconds)
            await under_load(traffic, server.stop_writing, restart, rounds=rounds, workers=workers, jobs=jobs)


async def test_a_fail_over_that_loses_commits_gives_no_job_the_result_of_another(tmp_path: Path):  # X3
    await fail_over(tmp_path, workers=2, jobs=150, seconds=2)


async def test_a_crash_that_loses_commits_gives_no_job_the_result_of_another(tmp_path: Path):  # X3
    await crash(tmp_path, rounds=1, workers=2, jobs=150, seconds=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("turn", range(6))
async def test_no_job_has_the_result_of_another_after_fail_overs_with_thousands_of_jobs(
    tmp_path: Path, turn: int
):  # X3
    await fail_over(tmp_path, workers=4, jobs=1500, seconds=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_job_has_the_result_of_another_after_ten_crashes(tmp_path: Path):  # X3
    await crash(tmp_path, rounds=10, workers=4, jobs=1000, seconds=3)
