"""A flow whose workers are killed: each job completes once, none before those it waits for, and it calls back once.

The short form runs with the other tests. The long one (10 000 jobs, 20 kills) by ``make chaos``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from onward.batches.resources import Batch
from tests.chaos.site import Site
from tests.chaos.test_kills import site as site  # noqa: PLC0414 - the fixture
from tests.worker.harness import eventually

PARENTS = 3


async def run_flow(site: Site, *, layers: int, width: int, kills: int, seconds: float) -> None:
    async_work = site.app.tasks["async_work"]
    flow = site.app.flow("storm", on_finished=async_work.job(seconds=0))
    dependencies = [flow.add(async_work.job(seconds=0)) for _ in range(width)]
    for _ in range(layers - 1):
        dependencies = [
            flow.add(
                async_work.job(seconds=site.random.uniform(0, seconds)), after=site.random.sample(dependencies, PARENTS)
            )
            for _ in range(width)
        ]
    batch = await flow.start()
    for _ in range(site.worker_count):
        site.start_worker()
    for _ in range(kills):
        await eventually(site.active_workers, timeout=60)
        await asyncio.sleep(site.random.uniform(0, 1))
        assert not (await batch.info()).is_finished, "it was over before its workers were killed"
        site.kill()
    info = await batch.wait(timeout=900)
    await eventually(site.all_ended, timeout=60)
    await site.stop_workers()
    assert (info.total, info.completed) == (layers * width, layers * width)
    await site.verify_jobs(layers * width + 1)
    await check_order(site, batch)


async def check_order(site: Site, batch: Batch) -> None:
    jobs = {job.id: job for job in await site.jobs() if job.batch is not None}
    parents = defaultdict(list)
    for one in await batch.dependencies():
        parents[one.job].append(jobs[one.depends_on])
    assert len(parents) > 0
    for child, dependencies in parents.items():
        started = jobs[child].started_at
        assert started is not None
        assert all(parent.completed_at is not None and parent.completed_at <= started for parent in dependencies)


async def test_a_flow_runs_in_order_however_its_workers_are_killed(site: Site):  # X3
    await run_flow(site, layers=12, width=20, kills=3, seconds=0.5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_flow_of_ten_thousand_jobs_completes_once_in_twenty_kills(site: Site):  # X3
    await run_flow(site, layers=50, width=200, kills=20, seconds=0.1)
