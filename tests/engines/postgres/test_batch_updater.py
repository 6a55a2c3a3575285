"""Whoever ends jobs of a batch sees to what that means for others, soon; what is left undone, the leader does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from onward.batches.values import BatchInfo, Callbacks, NewBatch
from onward.engine.values import Claim, ClaimRequest, JobFilter, Settlement
from onward.engines.postgres import batch_updater
from onward.engines.postgres.batch_updater import BatchUpdater
from onward.engines.postgres.engine import PostgresEngine
from onward.job import JobRef, NewJob
from onward.lifecycle import Complete, JobStatus
from tests.conformance.driver import LEASE
from tests.conformance.postgres_case import PostgresStore
from tests.worker.harness import eventually, in_virtual_time

CALLED = NewJob(type="called", queue="calls")


@pytest.fixture
async def engines(store: PostgresStore) -> AsyncIterator[list[PostgresEngine]]:
    """Two processes, as it were, by the database's own clock."""
    engines = [PostgresEngine(store.url, schema=store.schema) for _ in range(2)]
    for engine in engines:
        await engine.open()
    yield engines
    for engine in engines:
        await engine.close()


async def put(engine: PostgresEngine, *jobs: NewJob) -> list[JobRef]:
    batch = NewBatch(name="b", sealed=True, callbacks=Callbacks(on_finished=CALLED))
    return [one.ref for one in await engine.save_batch(batch, jobs)]


async def take(engine: PostgresEngine, count: int) -> tuple[Claim, ...]:
    return (await engine.claim(ClaimRequest(worker_id="w", queues=("default",), slots=count))).claims


async def info(engine: PostgresEngine) -> BatchInfo:
    (found,) = (await engine.batches()).items
    return found


async def calls(engine: PostgresEngine) -> int:
    return len((await engine.find(JobFilter(types=("called",)))).items)


async def test_who_waits_is_told_by_the_process_that_ended_the_job(engines: list[PostgresEngine]):
    engine = engines[0]
    first, second = await put(engine, NewJob(type="t", batch="b"), NewJob(type="t", batch="b", after=(0,)))
    for ref in (first, second):

        async def is_ready(ref: JobRef = ref) -> bool:
            job = await engine.get(ref)
            return job is not None and job.status is JobStatus.PENDING

        await eventually(is_ready)
        (claim,) = await take(engine, 1)
        assert not await engine.settle([Settlement(claim, Complete())])
    await eventually(lambda: calls(engine))
    assert (await info(engine)).is_finished


async def test_two_processes_at_once_count_everything_once(engines: list[PostgresEngine]):
    await put(engines[0], *[NewJob(type="t", batch="b")] * 200)
    claims = [await take(engine, 100) for engine in engines]

    async def end(engine: PostgresEngine, held: tuple[Claim, ...]) -> None:
        for first in range(0, len(held), 5):
            await engine.settle([Settlement(claim, Complete()) for claim in held[first : first + 5]])

    await asyncio.gather(*(end(engine, held) for engine, held in zip(engines, claims, strict=True)))
    await eventually(lambda: calls(engines[0]))
    found = await info(engines[1])
    assert (found.total, found.completed, found.is_finished) == (200, 200, True)
    assert await calls(engines[0]) == 1


async def test_what_a_process_leaves_undone_the_leader_goes_on_with(
    engines: list[PostgresEngine], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batch_updater, "_MIN_DELAY", 60)
    dies, leads = engines
    await put(dies, NewJob(type="t", batch="b"))
    await eventually(lambda: take_if_there(dies))
    await dies.close()
    assert (await info(leads)).completed == 0
    term = await leads.elect("leader", lease=LEASE)
    assert term is not None
    await leads.promote(term)
    assert (await info(leads)).completed == 1
    assert await calls(leads) == 1


async def take_if_there(engine: PostgresEngine) -> bool:
    """Take the one job and complete it; nobody waits for it, so its end is only to be counted."""
    claims = await take(engine, 1)
    if claims:
        await engine.settle([Settlement(claims[0], Complete())])
    return bool(claims)


def test_the_longer_it_takes_to_count_the_more_seldom_it_is_done():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        began, steps = loop.time(), list[float]()
        takes = 0.0

        async def step() -> bool:
            steps.append(round(loop.time() - began, 3))
            await asyncio.sleep(takes)
            return False

        progress = batch_updater.BatchUpdater(step)
        for takes in (0.0, 0.01, 9.0, 0.0, 0.0):
            began = loop.time()
            progress.request(immediately=False)
            await asyncio.sleep(0.6 + takes)
        await progress.close()
        return steps

    assert in_virtual_time(main) == pytest.approx([0.05, 0.05, 0.2, 0.5, 0.05])


def test_a_loop_that_has_closed_is_not_kept():
    async def step() -> bool:
        return False

    progress = BatchUpdater(step)

    async def act() -> weakref.ref[asyncio.AbstractEventLoop]:
        progress.request(immediately=True)
        await asyncio.sleep(0.05)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(act())
    gc.collect()
    assert loop() is None
    assert progress._tasks.all() == []
