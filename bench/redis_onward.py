"""What only the comparison on Redis asks of Onward: delayed jobs, an idle worker's first job, an idle worker."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from datetime import timedelta
from urllib.parse import urlsplit

from onward import App
from onward.bench.handlers import Handler, make_producer, task_of
from onward.bench.isolated import run_isolated
from onward.bench.verification import wait_until_finished
from onward.bench.workers import WorkerProcesses

GAP = 0.020
"""Seconds between two jobs: long enough for the worker to be idle again."""


def delay(url: str, jobs: int) -> dict[str, float]:
    """Add jobs that are due at moments spread over two seconds, and say in seconds how late they start."""
    return asyncio.run(_delay(url, jobs))


async def _delay(url: str, jobs: int) -> dict[str, float]:
    app, delays, done = App(url), [], asyncio.Event()

    @app.task(name="noop", queue="bench")
    async def noop(n: int, due: float) -> int:
        delays.append(time.time() - due)
        if len(delays) == jobs:
            done.set()
        return n

    async with app, app.worker(concurrency=50):
        await asyncio.sleep(1)
        for n in range(jobs):
            wait = 200 + (n * 7919) % 2000
            task = noop.using(delay=timedelta(milliseconds=wait))
            await task.enqueue(n=n, due=time.time() + wait / 1000)
        await asyncio.wait_for(done.wait(), 60)
    return {"median": statistics.median(delays), "worst": max(delays)}


def pickup(url: str, jobs: int) -> tuple[list[float], list[float]]:
    """Say in seconds how long jobs waited for an idle worker of another process to begin their handler's first line.

    Twice: from before enqueue was called, which has the enqueue in it, and from when it had returned: by then the job
    has been in the store for half a round trip, and its handler may have begun (less than nothing).
    """
    with WorkerProcesses(url, concurrency=50) as workers:
        sent = run_isolated(_send, url, jobs)
    started = [workers.started[number][0] for number in range(jobs)]
    from_call = [begun - called for begun, (called, _) in zip(started, sent, strict=True)]
    from_return = [begun - returned for begun, (_, returned) in zip(started, sent, strict=True)]
    return from_call, from_return


def _send(url: str, jobs: int) -> list[tuple[float, float]]:
    async def run() -> list[tuple[float, float]]:
        sent = []
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            for number in range(jobs):
                await asyncio.sleep(GAP)
                called = time.monotonic()
                await task.enqueue(n=number)
                sent.append((called, time.monotonic()))
            await wait_until_finished(app, jobs, max_wait=30)
        return sent

    return asyncio.run(run())


def idle(url: str, seconds: float) -> None:
    """Have a worker wait for jobs that never come."""

    async def run() -> None:
        app = App(url)

        @app.task(name="noop", queue="bench")
        async def noop() -> None: ...

        async with app, app.worker(concurrency=50):
            await asyncio.sleep(seconds)

    asyncio.run(run())


def round_trip(url: str, times: int) -> float:
    """Say how many seconds a bare round trip takes, at the median, where both ends have rested before each."""
    parts = urlsplit(url)
    durations = []
    with socket.create_connection((str(parts.hostname), parts.port or 6379)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            time.sleep(GAP)
            began = time.perf_counter()
            connection.sendall(b"PING\r\n")
            connection.recv(16)
            durations.append(time.perf_counter() - began)
    return statistics.median(durations)
