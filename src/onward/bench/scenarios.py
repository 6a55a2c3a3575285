"""Onward itself at work, one measured part to a function: each runs in its own process (``run_isolated``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from onward.app import App
from onward.bench.handlers import QUEUE, Handler, make_app, make_producer, task_of
from onward.bench.isolated import wait_at_barrier
from onward.bench.statistics import Measurement
from onward.bench.stopwatch import Stopwatch
from onward.clock import SystemClock, moment_of
from onward.core import core_of
from onward.worker.resident_memory import resident_memory

_FILL_BATCH: Final = 5_000
"""Jobs in one call when a store is filled."""
_MIN_RATE: Final = 200
"""Jobs per second below which a worker is given up."""
_FUTURE_DELAY: Final = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What a worker has done."""

    measurement: Measurement
    ran: list[int]
    """The handlers' ledger: the number of every job that has started, as often as it has."""
    memory: int
    """Bytes that the worker's process held at the end."""


def fill(url: str, handler: Handler, jobs: int, *, first: int = 0, future: bool = False, paused: bool = False) -> None:
    """Enqueue jobs; those of the future are urgent, and not due for a year. ``paused``: for :func:`resume`."""

    async def run() -> None:
        async with make_producer(url) as app:
            if paused:
                await app.queues.pause(QUEUE)
            task = task_of(app, handler)
            if future:
                task = task.using(run_at=moment_of(SystemClock().micros()) + _FUTURE_DELAY, priority=10)
            for calls in _calls(jobs, _FILL_BATCH, first):
                await task.enqueue_many(calls)

    asyncio.run(run())


def resume(url: str) -> None:
    """Let workers begin, all at once, that were there before."""

    async def run() -> None:
        async with make_producer(url) as app:
            await app.queues.resume(QUEUE)

    asyncio.run(run())


def enqueue(url: str, jobs: int, first: int = 0) -> Measurement:
    """Enqueue jobs one by one, each durable before the next."""

    async def run() -> Measurement:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            await _connect(app)
            wait_at_barrier()
            began, cpu = time.monotonic(), time.process_time()
            for number in range(first, first + jobs):
                await task.enqueue(n=number)
            return Measurement(jobs, time.monotonic() - began, time.process_time() - cpu)

    return asyncio.run(run())


def enqueue_concurrently(url: str, jobs: int, callers: int) -> Measurement:
    """Enqueue jobs from many callers at once, each of which waits until its own is durable before its next."""

    async def run() -> Measurement:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            await _connect(app)
            numbers = iter(range(jobs))

            async def call() -> None:
                for number in numbers:
                    await task.enqueue(n=number)

            began, cpu = time.monotonic(), time.process_time()
            await asyncio.gather(*(call() for _ in range(callers)))
            return Measurement(jobs, time.monotonic() - began, time.process_time() - cpu)

    return asyncio.run(run())


def enqueue_many(url: str, jobs: int, batch: int) -> Measurement:
    """Enqueue jobs in batches."""

    async def run() -> Measurement:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            batches = list(_calls(jobs, batch, 0))
            await _connect(app)
            began, cpu = time.monotonic(), time.process_time()
            for calls in batches:
                await task.enqueue_many(calls)
            return Measurement(jobs, time.monotonic() - began, time.process_time() - cpu)

    return asyncio.run(run())


def drain(url: str, jobs: int, concurrency: int) -> DrainResult:
    """Run jobs that are there already, with a worker as it is by default; what it runs beyond them is noted as well."""

    async def run() -> DrainResult:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        watch = Stopwatch(jobs, lambda: loop.call_soon_threadsafe(done.set))
        async with make_app(url, watch) as app, app.worker(concurrency=concurrency):
            try:
                async with asyncio.timeout(60 + jobs / _MIN_RATE):
                    await done.wait()
            except TimeoutError:
                pass  # the verification will show what is missing
            memory = resident_memory()
        return DrainResult(Measurement(jobs - 1, watch.seconds, watch.cpu_seconds), watch.started, memory)

    return asyncio.run(run())


def sleep_without_queue(jobs: int, concurrency: int, seconds: float) -> Measurement:
    """Sleep as often, as many at once, by asyncio alone: what there is to be had of sleeping handlers here."""

    async def run() -> Measurement:
        watch = Stopwatch(jobs)
        numbers = iter(range(jobs))

        async def slot() -> None:
            for number in numbers:
                watch.start(number)
                await asyncio.sleep(seconds)

        await asyncio.gather(*(slot() for _ in range(concurrency)))
        return Measurement(jobs - 1, watch.seconds, watch.cpu_seconds)

    return asyncio.run(run())


async def _connect(app: App) -> None:
    """Have the store connected to before the watch starts, as the baseline and the peers do."""
    await core_of(app).engine.workers()


def _calls(jobs: int, batch: int, first: int) -> Iterator[list[dict[str, Any]]]:
    for begin in range(first, first + jobs, batch):
        yield [{"n": number} for number in range(begin, min(begin + batch, first + jobs))]
