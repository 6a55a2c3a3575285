"""An idle worker: it asks no more often than BullMQ's own, and misses nothing for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import redis

from onward.engine.values import ClaimRequest, SignalKind
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.bullmq.listening import Listener
from onward.job import NewJob
from tests.engines.bullmq.queue import Queue
from tests.servers.redis import redis_url

DEADLINE = 20


@asynccontextmanager
async def listening(engine: BullMQEngine) -> AsyncIterator[asyncio.Queue[SignalKind]]:
    """Have a worker's ear on the queue for the length of a block."""
    heard: asyncio.Queue[SignalKind] = asyncio.Queue()

    async def listen() -> None:
        async with aclosing(engine.signals(("mail",))) as signals:  # type: ignore[type-var]
            async for signal in signals:
                heard.put_nowait(signal.kind)

    ear = asyncio.create_task(listen())
    try:
        yield heard
    finally:
        ear.cancel()
        await asyncio.gather(ear, return_exceptions=True)


def claims_of(client: redis.Redis) -> int:
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    return stats.get("cmdstat_evalsha", {"calls": 0})["calls"]


async def come_to_rest(queue: Queue) -> None:
    """Claim until the server is waited for."""
    async with asyncio.timeout(DEADLINE):
        while not queue.engine._listener.is_resting(("mail",)):
            assert await queue.take() == ()
            await asyncio.sleep(0)


async def test_who_waits_for_markers_does_not_ask_in_vain(queue: Queue):
    async with listening(queue.engine):
        await come_to_rest(queue)
        before = claims_of(queue.client)
        for _ in range(10):
            assert await queue.take() == ()
        assert claims_of(queue.client) == before


async def test_a_marker_ends_the_rest_and_so_does_a_job_of_our_own(queue: Queue, prefix: str):
    other = BullMQEngine(redis_url(), prefix=prefix)
    await other.open()
    try:
        for enqueue in (other.enqueue, queue.engine.enqueue):
            async with listening(queue.engine) as heard:
                await come_to_rest(queue)
                (made,) = await enqueue([NewJob(type="send", queue="mail")])
                async with asyncio.timeout(DEADLINE):
                    while await heard.get() is not SignalKind.WORK:
                        pass
                assert [claim.ref for claim in await queue.take()] == [made.ref]
    finally:
        await other.close()


async def test_a_claim_that_was_under_way_when_something_was_told_does_not_begin_a_rest(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """Its answer is older than what was told."""
    async with listening(queue.engine):
        await come_to_rest(queue)
        listener, hunger = queue.engine._listener, Listener.hunger

        def told_meanwhile(*arguments: object) -> None:
            listener.tell(("mail",))
            hunger(*arguments)  # type: ignore[arg-type]

        listener.tell(("mail",))
        monkeypatch.setattr(Listener, "hunger", told_meanwhile)
        assert await queue.take() == ()
        assert not listener._waits[asyncio.get_running_loop()].rests


async def test_nobody_rests_on_a_pattern_which_may_mean_queues_to_come(queue: Queue):
    async with listening(queue.engine):
        await queue.engine.claim(ClaimRequest(worker_id="w", queues=("mail/*",), slots=1))
        assert ("mail/*",) not in queue.engine._listener._waits[asyncio.get_running_loop()].rests
