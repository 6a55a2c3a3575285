"""How long single acts on Redis take while a drain is running (B10), as p99 in milliseconds.

    python -m bench.redis_budgets [--jobs 400000] [--seconds 20] [--valkey]

A worker process drains no-op jobs at full speed; meanwhile another, in turns and with a pause before each, reads a job,
takes a job (which locks it), extends a lock, writes an event (a job's progress), enqueues a job and waits until that is
told by app.events(), and, with 1 000 jobs active, looks for stalled ones. Each is timed from the call to its answer, or
to the event, in the process that asks.

Beside these stand two yardsticks of the same moments: a bare PING, which is what any command pays, and how late this
process wakes from a pause, which nobody's server has a part in. The last line printed is one JSON object, with the
budgets beside what was found.
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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

from onward import App
from onward.bench import scenarios
from onward.bench.handlers import QUEUE, Handler
from onward.core import core_of
from onward.engine.values import Claim, ClaimRequest, WorkerInfo
from onward.events import Waiting
from onward.job import JobRef, NewJob
from tests.servers.redis import Kind, RedisServer

BUDGETS = {
    "job read": 10.0,
    "lock taken": 5.0,
    "lock extended": 5.0,
    "event written": 5.0,
    "event received": 5.0,
    "stalled check": 100.0,
}
ACTIVE = 1000
PREFIX = "isolated"
PAUSE = 0.002
"""Seconds between two acts: whoever asks without a pause takes a processor from those it looks at."""
JOBS_TO_TAKE = 5000
"""Jobs to take, one by one."""
LEASE = timedelta(minutes=10)

Action = Callable[[], Awaitable[object]]


async def measure(url: str, seconds: float) -> dict[str, list[float]]:
    """Do each act in turn while the other process drains, and give how many milliseconds each took."""
    # Below another prefix, or the worker that drains would take these jobs too.
    async with (
        App(url) as drained,
        App(f"{url}?prefix={PREFIX}") as app,
        app.events("told", types=[Waiting]) as events,
        ping_connection(url) as ping,
    ):
        engine = core_of(app).engine
        await engine.enqueue([NewJob(type="held", queue="held")] * ACTIVE)
        await engine.enqueue([NewJob(type="taken", queue="taken")] * JOBS_TO_TAKE)
        claims: list[Claim] = []
        while len(claims) < ACTIVE:
            request = ClaimRequest(worker_id="holder", queues=("held",), slots=200, lease=LEASE)
            claims += (await engine.claim(request)).claims
        worker = WorkerInfo(id="holder", hostname="here", pool_size=ACTIVE, version="0", queues=("held",))
        term = await engine.elect("holder", lease=LEASE)
        if term is None:
            sys.exit("somebody else leads: there is a worker where none should be")

        next_event = asyncio.ensure_future(anext(events))

        async def receive_event() -> None:
            nonlocal next_event
            await engine.enqueue([NewJob(type="told", queue="told")])
            await next_event
            next_event = asyncio.ensure_future(anext(events))

        actions: dict[str, Action] = {
            "job read": lambda: drained.engine.get(JobRef(QUEUE, "1")),
            "lock taken": lambda: engine.claim(ClaimRequest(worker_id="holder", queues=("taken",), lease=LEASE)),
            "lock extended": lambda: engine.heartbeat(worker, claims[:1]),
            "event written": lambda: engine.report(claims[0], progress=50),
            "event received": receive_event,
            "stalled check": lambda: engine.rescue(term, lease=LEASE, max_crashes=3),
            "PING": ping,
        }
        found: dict[str, list[float]] = {name: [] for name in (*actions, "woken late")}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, action in actions.items():
                began = time.perf_counter()
                await asyncio.sleep(PAUSE)
                woken = time.perf_counter()
                found["woken late"].append((woken - began - PAUSE) * 1000)
                await action()
                found[name].append((time.perf_counter() - woken) * 1000)
        next_event.cancel()
        await asyncio.wait([next_event])
        return found


@asynccontextmanager
async def ping_connection(url: str) -> AsyncIterator[Action]:
    """Have a line on which nothing is asked but PING."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)

    async def ping() -> None:
        writer.write(b"PING\r\n")
        await reader.readline()

    try:
        yield ping
    finally:
        writer.close()
        await writer.wait_closed()


def p99(durations: list[float]) -> float:
    """Give the time that all but one in a hundred keep to."""
    return statistics.quantiles(durations, n=100)[98]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400_000, help="enough to drain meanwhile")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all acts")
    parser.add_argument("--valkey", action="store_true", help="on Valkey 9 instead of Redis 6.2")
    given = parser.parse_args()
    with RedisServer(Kind.VALKEY if given.valkey else Kind.REDIS, port=True) as server:
        url = server.tcp_url
        scenarios.fill(url, Handler.ASYNC, given.jobs)
        drain = multiprocessing.get_context("spawn").Process(target=scenarios.drain, args=(url, given.jobs, 50))
        drain.start()
        time.sleep(2)
        found = asyncio.run(measure(url, given.seconds))
        was_busy = drain.is_alive()
        drain.kill()
        drain.join()
    figures = {name: round(p99(durations), 2) for name, durations in found.items()}
    medians = {name: round(statistics.median(durations), 2) for name, durations in found.items()}
    head = {
        "store": str(server.kind),
        "scenario": "budgets",
        "p99_ms": figures,
        "wanted_ms": BUDGETS,
        "p50_ms": medians,
    }
    times = len(found["PING"])
    print(json.dumps({**head, "times": times, "drained_throughout": was_busy, "load": round(os.getloadavg()[0], 2)}))
    sys.exit(0 if was_busy else 1)


if __name__ == "__main__":
    main()
