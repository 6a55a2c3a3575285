"""Limits that one language sets and both keep to (B8)."""

from __future__ import annotations

import asyncio
from typing import Any

from onward import App
from onward.engine.values import ClaimRequest
from tests.interop.bullmq.peer import NodePeer
from tests.worker.harness import eventually


async def test_a_concurrency_that_node_set_holds_for_our_worker(app: App, either: NodePeer, name: str):  # B8
    running = most = 0
    ended: list[int] = []

    @app.task(name="slow", queue=name)
    async def slow(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        ended.append(n)

    queue = either.queue(name)
    queue("setGlobalConcurrency", 2)
    queue("addBulk", [{"name": "slow", "data": {"n": n}} for n in range(10)])
    async with app.worker(queues=[name], concurrency=10):
        await eventually(lambda: len(ended) == 10)
    assert most == 2
    assert (await app.queues.get(name)).settings.global_concurrency == 2


async def test_a_concurrency_holds_for_both_workers_together(app: App, node6: NodePeer, name: str):  # B8
    @app.task(name="slow", queue=name)
    async def slow(n: int, steps: list[Any]) -> None:
        await asyncio.sleep(0.01)

    await app.queues.configure(name, global_concurrency=3)
    queue, events = node6.queue(name), node6.events(name)
    assert queue("getGlobalConcurrency") == 3
    await slow.enqueue_many([{"n": n, "steps": [["sleep", 10]]} for n in range(40)])
    async with app.worker(queues=[name], concurrency=10):
        with node6.working(name, concurrency=10):
            await eventually(lambda: queue.getJobCounts("completed") == {"completed": 40})
    active = most = 0
    ended = 0
    while ended < 40:
        event = await node6.receive_async("event", handle=events)
        active += {"active": 1, "completed": -1}.get(event["event"], 0)
        ended += event["event"] == "completed"
        most = max(most, active)
    assert most <= 3


async def test_a_rate_that_node_set_holds_for_our_worker(app: App, node6: NodePeer, name: str):  # B8
    ran: list[int] = []

    @app.task(name="note", queue=name)
    async def note(n: int) -> None:
        ran.append(n)

    queue = node6.queue(name)
    queue("setGlobalRateLimit", 3, 60_000)
    queue("addBulk", [{"name": "note", "data": {"n": n}} for n in range(10)])
    async with app.worker(queues=[name], concurrency=10):
        await eventually(lambda: len(ran) == 3)
        assert queue("getRateLimitTtl") > 0
        with node6.working(name, concurrency=10):
            queue("removeRateLimitKey")
            await eventually(lambda: queue.getJobCounts("completed") == {"completed": 6})
    assert queue.getJobCounts("waiting", "active") == {"waiting": 4, "active": 0}


async def test_a_queue_that_node_closed_for_a_while_gives_us_nothing(app: App, either: NodePeer, name: str):  # B8
    queue = either.queue(name)
    queue.add("note", {})
    queue("rateLimit", 3_600_000)
    request = ClaimRequest(worker_id="w", queues=(name,), slots=1)
    answer = await app._core.engine.claim(request)
    assert answer.claims == ()
    assert answer.retry_after is not None
    assert 3000 < answer.retry_after <= 3600
    queue("removeRateLimitKey")
    assert len((await app._core.engine.claim(request)).claims) == 1
