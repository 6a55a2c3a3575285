"""A worker obeys what it is told with the answer to its heartbeat (A2)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from onward.app import App
from onward.lifecycle import JobStatus
from tests.worker.conftest import FaultyEngine
from tests.worker.harness import eventually

LEASE = timedelta(seconds=1)


async def worker_id_of(app: App) -> str:
    async def registered() -> str | None:
        return next((worker.id for worker in await app.workers.list()), None)

    await eventually(registered)
    (worker,) = await app.workers.list()
    return worker.id


async def beaten(store: FaultyEngine) -> None:
    """Wait for heartbeats that begin from now on, until the answer to the first of them has been obeyed."""
    before = len(store.heartbeats)
    await eventually(lambda: len(store.heartbeats) >= before + 3)


def claim_requests(store: FaultyEngine) -> int:
    return sum(exchange.request is not None for exchange in store.exchanges)


async def test_a_quiet_worker_claims_nothing_until_it_is_resumed(app: App, store: FaultyEngine):  # A2
    ran: list[int] = []
    held = asyncio.Event()

    @app.task
    async def work(n: int) -> None:
        if n == 0:
            await held.wait()
        ran.append(n)

    async with app.worker(lease=LEASE, poll=timedelta(milliseconds=20)):
        first = await work.enqueue(0)
        await eventually(lambda: _is_running(app, first.id))
        worker_id = await worker_id_of(app)
        assert await app.workers.quiet(worker_id)
        await beaten(store)
        second = await work.enqueue(1)
        held.set()
        await first.result()  # what it holds goes on
        claims = claim_requests(store)
        await beaten(store)
        assert claim_requests(store) == claims
        assert (ran, (await second.info()).status) == ([0], JobStatus.PENDING)
        assert await app.workers.resume(worker_id)
        await asyncio.wait_for(second.result(), 20)
    assert ran == [0, 1]


async def test_a_worker_that_is_told_to_stop_ends_in_good_order(app: App):  # A2
    @app.task
    async def work() -> str:
        return "done"

    running = asyncio.create_task(app.work(lease=LEASE))
    worker_id = await worker_id_of(app)
    assert await app.workers.stop(worker_id)
    await asyncio.wait_for(running, 20)
    assert await app.workers.list() == []
    handle = await work.enqueue()
    assert (await handle.info()).status is JobStatus.PENDING


async def _is_running(app: App, job: str) -> bool:
    return (await app.jobs.get(job)).status is JobStatus.RUNNING
