"""More than one server: a cluster, and a master behind a sentinel that fails over."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from onward.engine.values import ClaimRequest, Exchange, Exchanged, Settlement
from onward.engines.bullmq.engine import BullMQEngine
from onward.errors import StoreUnavailable
from onward.job import Enqueued, NewJob
from onward.lifecycle import Complete, JobStatus
from tests.servers.redis import RedisCluster, RedisSentinels

REQUEST = ClaimRequest(worker_id="w", queues=("*",), slots=500)


async def test_a_queue_works_on_a_cluster_where_its_keys_keep_together():
    with RedisCluster() as cluster:
        engine = BullMQEngine(f"{cluster.url}?cluster=on", prefix="{bull}")
        await engine.open()
        try:
            made = await engine.enqueue([NewJob(type="send", queue="mail")] * 250)
            claims = (await engine.claim(REQUEST)).claims
            claims += (await engine.claim(REQUEST)).claims
            assert [claim.ref for claim in claims] == [one.ref for one in made]
            assert not await engine.settle([Settlement(claim, Complete()) for claim in claims])
            (queue,) = await engine.queues()
            assert queue.counts == {JobStatus.COMPLETED: 250}
            assert engine.enqueue_sync([NewJob(type="send", queue="mail")])[0].is_new
            assert (await engine.check()).server.startswith(("Redis", "Valkey"))
        finally:
            await engine.close()


async def test_a_job_is_brought_to_who_waits_on_a_cluster():
    request = ClaimRequest(worker_id="w", queues=("mail",), slots=1)
    wanted = Exchange(request=request)
    with RedisCluster() as cluster:
        engine = BullMQEngine(f"{cluster.url}?cluster=on", prefix="{bull}")
        await engine.open()
        try:
            async with aclosing(engine.signals(("mail",))) as signals, asyncio.timeout(30):  # type: ignore[type-var]
                listening = asyncio.ensure_future(anext(signals))
                await asyncio.sleep(0)
                assert await engine.exchange(wanted) == Exchanged()
                await listening  # to who can be told from now on
                assert await engine.exchange(wanted) == Exchanged()
                wait = engine._listener.blocking_claim_of(request)
                assert wait is not None
                assert wait.reserved_slots == 1
                (made,) = await engine.enqueue([NewJob(type="send", queue="mail")])
                await anext(signals)
                found = await engine.exchange(wanted)
                assert [claim.ref for claim in found.claimed.claims] == [made.ref]
                assert not await engine.settle([Settlement(claim, Complete()) for claim in found.claimed.claims])
        finally:
            await engine.close()


async def put(engine: BullMQEngine) -> Enqueued:
    """Enqueue as soon as there is a master."""
    deadline = time.monotonic() + 30
    while True:
        try:
            (made,) = await engine.enqueue([NewJob(type="send", queue="mail")])
        except StoreUnavailable:
            assert time.monotonic() < deadline, "nobody takes the master's place"
            await asyncio.sleep(0.01)
        else:
            return made


async def test_work_goes_on_with_whom_the_sentinel_makes_master():  # X3, F3
    with RedisSentinels() as sentinels:
        engine = BullMQEngine(f"{sentinels.url}/0?sentinel={sentinels.NAME}")
        await engine.open()
        try:
            before = await put(engine)
            await asyncio.to_thread(sentinels.fail_over)
            after = await put(engine)
            assert [claim.ref for claim in (await engine.claim(REQUEST)).claims] == [before.ref, after.ref]
        finally:
            await engine.close()
