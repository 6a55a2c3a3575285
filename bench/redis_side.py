"""Python's queues on Redis, by Onward's own stop-watch, each in a virtualenv of its own: see peers.py.

    python redis_side.py PEER fill    STOPWATCH.PY URL JOBS
    python redis_side.py PEER drain   STOPWATCH.PY URL JOBS     prints one JSON object
    python redis_side.py bullmq bulk  STOPWATCH.PY URL JOBS     the same
    python redis_side.py bullmq delay STOPWATCH.PY URL JOBS     the same
    python redis_side.py bullmq idle  STOPWATCH.PY URL SECONDS  a worker with nothing to do

Each as it comes, in one process, with its log off. Results are off where that is a setting, so that they have less to
do than Onward, which keeps them. Where a queue can run several jobs at once, it may run fifty.
"""
# ruff: noqa: PLC0415 - a virtualenv has the packages of one peer only

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from side import CONCURRENCY, LONGEST, TOGETHER, Measure


def huey(measure: Measure) -> None:
    """Huey: one thread, which is its fastest."""
    from huey import RedisHuey

    queue = RedisHuey("bench", url=measure.url, results=False, blocking=True)

    @queue.task()
    def noop(n: int) -> int:
        measure.start(n)
        return n

    if measure.is_fill:
        for n in range(measure.jobs):
            noop(n=n)
        return
    consumer = queue.create_consumer(workers=1, worker_type="thread", periodic=False)
    consumer.start()
    measure.done.wait(LONGEST)
    consumer.stop(graceful=True)
    measure.tell(queue.pending_count())


def rq(measure: Measure) -> None:
    """RQ: its worker that does not fork for each job, which is ten times as fast as the one that does."""
    import redis
    import rq as package

    connection = redis.Redis.from_url(measure.url)
    queue = package.Queue("bench", connection=connection)
    if measure.is_fill:
        for first in range(0, measure.jobs, TOGETHER):
            numbers = range(first, min(first + TOGETHER, measure.jobs))
            queue.enqueue_many([package.Queue.prepare_data("rq_noop.noop", kwargs={"n": n}) for n in numbers])
        return
    module = ModuleType("rq_noop")  # it finds its functions by their names
    module.noop = lambda *, n: measure.start(n)
    sys.modules["rq_noop"] = module
    package.SimpleWorker([queue], connection=connection).work(burst=True, logging_level="CRITICAL")
    measure.tell(queue.count)


def dramatiq(measure: Measure) -> None:
    """Dramatiq: eight threads, its default."""
    import dramatiq as package
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=measure.url)
    package.set_broker(broker)

    @package.actor(queue_name="bench")
    def noop(n: int) -> None:
        measure.start(n)

    if measure.is_fill:
        for n in range(measure.jobs):
            noop.send(n=n)
        return
    worker = package.Worker(broker, worker_threads=8)
    worker.start()
    measure.done.wait(LONGEST)
    broker.join("bench")
    worker.stop()
    measure.tell(0)


def celery(measure: Measure) -> None:
    """Celery: the pool within its own process, which is faster here than processes; results off, 64 prefetched."""
    from celery import Celery
    from celery.worker import state

    app = Celery("bench", broker=measure.url)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
    )

    @app.task(name="noop")
    def noop(n: int) -> None:
        measure.start(n)

    if measure.is_fill:
        for n in range(measure.jobs):
            noop.delay(n=n)
        return

    def stop() -> None:
        state.should_stop = 0

    measure.on_done(stop)
    quiet = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True, "quiet": True}
    with contextlib.suppress(SystemExit):
        app.Worker(pool="solo", concurrency=1, **quiet).start()
    measure.tell(0)


def saq(measure: Measure) -> None:
    """SAQ."""
    from saq import Queue, Worker

    async def noop(_: Any, *, n: int) -> int:
        measure.start(n)
        return n

    async def run() -> None:
        queue = Queue.from_url(measure.url, name="bench")
        await queue.connect()
        if measure.is_fill:
            for n in range(measure.jobs):
                await queue.enqueue("noop", n=n)
            await queue.disconnect()
            return
        worker = Worker(queue, [("noop", noop)], concurrency=CONCURRENCY)
        working = asyncio.create_task(worker.start())
        await measure.until_done()
        while left := await queue.count("incomplete"):  # noqa: ASYNC110 - there is nothing else to go by
            await asyncio.sleep(0.01)
        await worker.stop()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        measure.tell(left)

    asyncio.run(run())


def arq(measure: Measure) -> None:
    """Arq."""
    from arq import create_pool
    from arq.connections import RedisSettings
    from arq.worker import Worker, func

    settings = RedisSettings.from_dsn(measure.url)

    async def noop(_: Any, n: int) -> int:
        measure.start(n)
        return n

    async def run() -> None:
        pool = await create_pool(settings)
        if measure.is_fill:
            for n in range(measure.jobs):
                await pool.enqueue_job("noop", n=n)
            await pool.aclose()
            return
        worker = Worker(
            [func(noop, name="noop")],
            redis_settings=settings,
            max_jobs=CONCURRENCY,
            store_result=0,
            handle_signals=False,
            log_results=False,
        )
        working = asyncio.create_task(worker.async_run())
        await measure.until_done()
        while left := await pool.zcard("arq:queue"):  # noqa: ASYNC110 - there is nothing else to go by
            await asyncio.sleep(0.01)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await worker.close()
        measure.tell(left)

    asyncio.run(run())


def taskiq(measure: Measure) -> None:
    """Taskiq on a Redis list, which is its fastest; results off."""
    from taskiq.api import run_receiver_task
    from taskiq_redis import ListQueueBroker

    async def run() -> None:
        broker = ListQueueBroker(url=measure.url)

        @broker.task(task_name="noop")
        async def noop(n: int) -> None:
            measure.start(n)

        await broker.startup()
        if measure.is_fill:
            for n in range(measure.jobs):
                await noop.kiq(n=n)
            await broker.shutdown()
            return
        working = asyncio.create_task(run_receiver_task(broker, max_async_tasks=CONCURRENCY))
        await measure.until_done()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await broker.shutdown()
        measure.tell(0)

    asyncio.run(run())


def bullmq(measure: Measure) -> None:
    """The official BullMQ for Python."""
    from bullmq import Queue, Worker

    async def bulk(queue: Any) -> None:
        jobs = [{"name": "noop", "data": {"n": n}, "opts": {}} for n in range(measure.jobs)]
        began, cpu = time.monotonic(), time.process_time()
        for first in range(0, measure.jobs, TOGETHER):
            await queue.addBulk(jobs[first : first + TOGETHER])
        found = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
        if not measure.is_fill:
            print(json.dumps({"jobs": measure.jobs, "once": True, **found}))

    async def run() -> None:
        queue = Queue("bench", {"connection": measure.url})
        if measure.what in {"fill", "bulk"}:
            await bulk(queue)
            await queue.close()
            return
        delays: list[float] = []

        async def noop(job: Any, _: str) -> int:
            if "due" in job.data:
                delays.append(time.time() - job.data["due"])
            measure.start(job.data["n"])
            return job.data["n"]

        worker = Worker("bench", noop, {"connection": measure.url, "concurrency": CONCURRENCY})
        if measure.what == "idle":
            await asyncio.sleep(measure.jobs)
            await worker.close(force=True)
            await queue.close()
            return
        if measure.what == "delay":
            await asyncio.sleep(1)
            await add_delayed(measure.jobs, lambda data, delay: queue.add("noop", data, {"delay": delay}))
        await measure.until_done()
        while (counts := await queue.getJobCounts("waiting", "active"))["active"]:  # noqa: ASYNC110 - there is nothing else to go by
            await asyncio.sleep(0.01)
        await worker.close()
        await queue.close()
        if measure.what == "delay":
            print(json.dumps({"jobs": measure.jobs, "median": statistics.median(delays), "worst": max(delays)}))
        else:
            measure.tell(counts["waiting"] + counts["active"])

    asyncio.run(run())


async def add_delayed(jobs: int, add: Callable[[dict[str, Any], int], Awaitable[object]]) -> None:
    """Add jobs that are due at moments spread over two seconds, in no order."""
    for n in range(jobs):
        delay = 200 + (n * 7919) % 2000
        await add({"n": n, "due": time.time() + delay / 1000}, delay)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    peer, what, stopwatch, url, number = sys.argv[1:]
    globals()[peer](Measure(what, stopwatch, url, int(number)))
