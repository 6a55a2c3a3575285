"""Onward itself at work, one measured part to a function: each is called in a process of its own (see ``apart``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from onward.app import App
from onward.bench.handlers import QUEUE, Handler, make_app, make_producer, task_of
from onward.bench.isolated import everybody_is_ready
from onward.bench.statistics import Pace
from onward.bench.stopwatch import Stopwatch
from onward.clock import SystemClock, moment_of
from onward.worker.memory import resident_memory

_TOGETHER: Final = 5_000
"""Jobs in one call when a store is filled."""
_SLOWEST: Final = 200
"""Jobs per second below which a worker is given up."""
_FAR: Final = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Drained:
    """What a worker has done."""

    pace: Pace
    ran: list[int]
    """The handlers' ledger: the number of every job that has started, as often as it has."""
    memory: int
    """Bytes that the worker's process held at the end."""


def fill(url: str, handler: Handler, jobs: int, *, first: int = 0, future: bool = False, paused: bool = False) -> None:
    """Enqueue jobs; those of the future are urgent, and not due for a year. ``paused``: for :func:`resume`."""

    async def live() -> None:
        async with make_producer(url) as app:
            if paused:
                await app.queues.pause(QUEUE)
            task = task_of(app, handler)
            if future:
                task = task.using(run_at=moment_of(SystemClock().micros()) + _FAR, priority=10)
            for calls in _calls(jobs, _TOGETHER, first):
                await task.enqueue_many(calls)

    asyncio.run(live())


def resume(url: str) -> None:
    """Let workers begin, all at once, that were there before."""

    async def live() -> None:
        async with make_producer(url) as app:
            await app.queues.resume(QUEUE)

    asyncio.run(live())


def enqueue(url: str, jobs: int, first: int = 0) -> Pace:
    """Enqueue jobs one by one, each durable before the next."""

    async def live() -> Pace:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            await _connect(app)
            everybody_is_ready()
            began, cpu = time.monotonic(), time.process_time()
            for number in range(first, first + jobs):
                await task.enqueue(n=number)
            return Pace(jobs, time.monotonic() - began, time.process_time() - cpu)

    return asyncio.run(live())


def enqueue_together(url: str, jobs: int, callers: int) -> Pace:
    """Enqueue jobs from many callers at once, each of which waits until its own is durable before its next."""

    async def live() -> Pace:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            await _connect(app)
            numbers = iter(range(jobs))

            async def call() -> None:
                for number in numbers:
                    await task.enqueue(n=number)

            began, cpu = time.monotonic(), time.process_time()
            await asyncio.gather(*(call() for _ in range(callers)))
            return Pace(jobs, time.monotonic() - began, time.process_time() - cpu)

    return asyncio.run(live())


def enqueue_many(url: str, jobs: int, batch: int) -> Pace:
    """Enqueue jobs in batches."""

    async def live() -> Pace:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            batches = list(_calls(jobs, batch, 0))
            await _connect(app)
            began, cpu = time.monotonic(), time.process_time()
            for calls in batches:
                await task.enqueue_many(calls)
            return Pace(jobs, time.monotonic() - began, time.process_time() - cpu)

    return asyncio.run(live())


def drain(url: str, jobs: int, concurrency: int) -> Drained:
    """Run jobs that are there already, with a worker as it is by default; what it runs beyond them is noted as well."""

    async def live() -> Drained:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        watch = Stopwatch(jobs, lambda: loop.call_soon_threadsafe(done.set))
        async with make_app(url, watch) as app, app.worker(concurrency=concurrency):
            try:
                async with asyncio.timeout(60 + jobs / _SLOWEST):
                    await done.wait()
            except TimeoutError:
                pass  # the account will show what is missing
            memory = resident_memory()
        return Drained(Pace(jobs - 1, watch.seconds, watch.cpu_seconds), watch.started, memory)

    return asyncio.run(live())


def sleep_without_a_queue(jobs: int, concurrency: int, seconds: float) -> Pace:
    """Sleep as often, as many at once, by asyncio alone: what there is to be had of sleeping handlers here."""

    async def live() -> Pace:
        watch = Stopwatch(jobs)
        numbers = iter(range(jobs))

        async def hand() -> None:
            for number in numbers:
                watch.start(number)
                await asyncio.sleep(seconds)

        await asyncio.gather(*(hand() for _ in range(concurrency)))
        return Pace(jobs - 1, watch.seconds, watch.cpu_seconds)

    return asyncio.run(live())


async def _connect(app: App) -> None:
    """Have the store connected to before the watch starts, as the bare side and the peers do."""
    await app.engine.workers()


def _calls(jobs: int, batch: int, first: int) -> Iterator[list[dict[str, Any]]]:
    for begin in range(first, first + jobs, batch):
        yield [{"n": number} for number in range(begin, min(begin + batch, first + jobs))]
