"""pgqueuer on PostgreSQL, measured by Onward's own stop-watch. Runs in a virtualenv of its own: see postgres_peers.py.

    python pgqueuer_side.py prepare|bulk|drain STOPWATCH.PY URL JOBS     the last two print one JSON object

At its best of what was tried: asyncpg on uvloop, one connection, a hundred jobs at a time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import time
from datetime import timedelta
from types import ModuleType

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

BATCH = 100
TOGETHER = 1_000


def load(path: str) -> ModuleType:
    """Load Onward's stop-watch, without the rest of Onward."""
    spec = importlib.util.spec_from_file_location("stopwatch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def print_result(jobs: int, seconds: float, cpu_seconds: float, *, once: bool) -> None:
    """Print what was found."""
    print(json.dumps({"jobs": jobs, "seconds": seconds, "cpu_seconds": cpu_seconds, "once": once}))


async def fill(queries: Queries, connection: asyncpg.Connection, jobs: int) -> None:
    """Enqueue jobs, a thousand at a time."""
    began, cpu = time.monotonic(), time.process_time()
    for first in range(0, jobs, TOGETHER):
        payloads = [json.dumps({"n": n}).encode() for n in range(first, min(first + TOGETHER, jobs))]
        await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    print_result(jobs, seconds, cpu, once=await connection.fetchval("select count(*) from pgqueuer") == jobs)


async def drain(stopwatch: str, connection: asyncpg.Connection, jobs: int) -> None:
    """Run the jobs."""
    done = asyncio.Event()
    watch = load(stopwatch).Stopwatch(jobs, done.set)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("noop")
    async def noop(job: object) -> None:
        watch.start(json.loads(job.payload)["n"])

    work = asyncio.create_task(queue.run(dequeue_timeout=timedelta(seconds=30), batch_size=BATCH))
    await done.wait()
    await asyncio.sleep(1)
    queue.shutdown.set()
    await work
    once = sorted(watch.started) == list(range(jobs))
    print_result(jobs - 1, watch.seconds, watch.cpu_seconds, once=once)


async def main() -> None:
    """Do what is asked."""
    what, stopwatch, url, number = sys.argv[1:]
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    if what == "prepare":
        await queries.install()
    elif what in {"bulk", "fill"}:
        await fill(queries, connection, int(number))
    else:
        await drain(stopwatch, connection, int(number))


if __name__ == "__main__":
    uvloop.run(main())
