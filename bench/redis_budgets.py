"""How long single acts on Redis take while a drain is running (B10), as p99 in milliseconds.

    python -m bench.redis_budgets [--jobs 40000] [--seconds 5] [--valkey]

A worker process drains no-op jobs at full speed; meanwhile another, one act after the other, reads a job, extends a
lock, waits for its own event to come by app.events(), and, with 1 000 jobs active, looks for stalled ones. The last
line printed is one JSON object, with the budgets beside what was found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from onward import App
from onward.bench import product
from onward.bench.handlers import QUEUE, Handler
from onward.engine.values import ClaimRequest, WorkerInfo
from onward.events import JobWaiting
from onward.job import JobRef, NewJob
from tests.servers.redis import Kind, RedisServer

BUDGETS = {"job read": 10.0, "lock": 5.0, "event": 5.0, "stalled check": 100.0}
ACTIVE = 1000
APART = "apart"
PAUSE = 0.002
"""Seconds between two acts: whoever asks without a pause takes a processor from those it looks at."""


async def timed(act: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    """Do something again and again, and give how many milliseconds each took."""
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(PAUSE)
        began = time.perf_counter()
        await act()
        took.append((time.perf_counter() - began) * 1000)
    return took


async def measure(url: str, seconds: float) -> dict[str, list[float]]:
    """Do each act while the other process drains."""
    # Below another prefix, or the worker that drains would take these jobs too.
    async with App(url) as drained, App(f"{url}?prefix={APART}") as app:
        engine = app.engine
        await engine.enqueue([NewJob(type="held", queue="held")] * ACTIVE)
        claims = []
        while len(claims) < ACTIVE:
            asked = ClaimRequest(worker_id="holder", queues=("held",), slots=200, lease=timedelta(minutes=10))
            claims += (await engine.claim(asked)).claims
        card = WorkerInfo(id="holder", hostname="here", pool_size=ACTIVE, version="0", queues=("held",))
        first = JobRef(QUEUE, "1")
        term = await engine.elect("holder", lease=timedelta(minutes=10))
        if term is None:
            sys.exit("somebody else leads: there is a worker where none should be")

        found = {
            "job read": await timed(lambda: drained.engine.get(first), seconds),
            "lock": await timed(lambda: engine.heartbeat(card, claims[:1]), seconds),
            "stalled check": await timed(
                lambda: engine.rescue(term, worker_timeout=timedelta(minutes=10), max_crashes=3), seconds
            ),
        }
        found["event"] = await _events(app, seconds)
        return found


async def _events(app: App, seconds: float) -> list[float]:
    """Add jobs to a queue of their own, and see how long each takes to come by app.events()."""
    took = []
    end = time.monotonic() + seconds
    async with app.events("told", types=[JobWaiting]) as events:
        while time.monotonic() < end:
            listening = asyncio.ensure_future(anext(events))
            await asyncio.sleep(PAUSE)
            began = time.perf_counter()
            await app.engine.enqueue([NewJob(type="told", queue="told")])
            await listening
            took.append((time.perf_counter() - began) * 1000)
    return took


def p99(took: list[float]) -> float:
    """Give the time that all but one in a hundred keep to."""
    return statistics.quantiles(took, n=100)[98]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400_000, help="enough to drain meanwhile")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each act")
    parser.add_argument("--valkey", action="store_true", help="on Valkey 9 instead of Redis 6.2")
    given = parser.parse_args()
    with RedisServer(Kind.VALKEY if given.valkey else Kind.REDIS, port=True) as server:
        url = server.tcp_url
        product.fill(url, Handler.ASYNC, given.jobs)
        drain = multiprocessing.get_context("spawn").Process(target=product.drain, args=(url, given.jobs, 50))
        drain.start()
        time.sleep(2)
        found = asyncio.run(measure(url, given.seconds))
        was_busy = drain.is_alive()
        drain.kill()
        drain.join()
    figures = {what: round(p99(took), 2) for what, took in found.items()}
    head = {"store": str(server.kind), "scenario": "budgets", "p99_ms": figures, "wanted_ms": BUDGETS}
    times = {what: len(took) for what, took in found.items()}
    print(json.dumps({**head, "times": times, "drained_throughout": was_busy, "load": round(os.getloadavg()[0], 2)}))
    sys.exit(0 if was_busy else 1)


if __name__ == "__main__":
    main()
