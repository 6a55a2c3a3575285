"""The official BullMQ for Python, a second oracle beside Node's (B1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import bullmq  # type: ignore[import-untyped]
import pytest

from onward import App
from onward.engines.bullmq.engine import BullMQEngine
from onward.lifecycle import JobStatus
from tests.servers.redis import RedisServer
from tests.worker.harness import eventually


@pytest.fixture(scope="module")
def server() -> Any:
    """A Redis with a port: the package cannot find a socket."""
    with RedisServer(port=True) as server:
        yield server


@pytest.fixture
async def app(server: RedisServer) -> AsyncIterator[App]:
    async with App(engine=BullMQEngine(server.tcp_url)) as app:
        yield app


@pytest.fixture
async def queue(server: RedisServer, name: str) -> AsyncIterator[Any]:
    queue = bullmq.Queue(name, {"connection": server.tcp_url})
    yield queue
    await queue.close()


async def test_it_adds_and_we_run(app: App, queue: Any, name: str):  # B1
    @app.task(name="double", queue=name)
    async def double(n: int) -> int:
        return 2 * n

    plain = await queue.add("double", {"n": 1}, {})
    urgent = await queue.add("double", {"n": 2}, {"priority": 3})
    late = await queue.add("double", {"n": 3}, {"delay": 100, "attempts": 2})
    async with app.worker(queues=[name]):
        await eventually(lambda: _all_done(queue, 3))
    for job, n in ((plain, 1), (urgent, 2), (late, 3)):
        seen = await bullmq.Job.fromId(queue, job.id)
        assert seen.returnvalue == 2 * n
        assert seen.attemptsMade == 1


async def _all_done(queue: Any, count: int) -> bool:
    counts: dict[str, int] = await queue.getJobCounts("completed")
    return counts["completed"] == count


async def test_we_add_and_it_runs(app: App, server: RedisServer, name: str):  # B1
    @app.task(name="double", queue=name)
    async def double(n: int) -> int:
        raise AssertionError("the package runs it")

    async def process(job: Any, _: str) -> int:
        await job.updateProgress(50)
        return int(job.data["n"]) * 2

    handles = await double.enqueue_many([{"n": n} for n in range(20)])
    worker = bullmq.Worker(name, process, {"connection": server.tcp_url, "concurrency": 5})
    try:
        assert [await handle.result(timeout=20) for handle in handles] == [2 * n for n in range(20)]
    finally:
        await worker.close(force=True)
    job = await handles[0].info()
    assert job.status is JobStatus.COMPLETED
    assert job.progress == 50


async def test_it_and_we_share_a_queue_and_each_job_runs_once(
    app: App, server: RedisServer, queue: Any, name: str
):  # O3
    ran: list[int] = []

    @app.task(name="note", queue=name)
    async def note(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(0.001)

    async def process(job: Any, _: str) -> None:
        ran.append(job.data["n"])

    await note.enqueue_many([{"n": n} for n in range(300)])
    worker = bullmq.Worker(name, process, {"connection": server.tcp_url, "concurrency": 5})
    try:
        async with app.worker(queues=[name], concurrency=5):
            await eventually(lambda: _all_done(queue, 300))
    finally:
        await worker.close(force=True)
    assert sorted(ran) == list(range(300))
