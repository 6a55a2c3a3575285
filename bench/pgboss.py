"""Onward on the queues of a pg-boss, beside Node's pg-boss on the same server: bulk in, and out.

    python -m bench.pgboss [--jobs 20000] [--rounds 5] [--concurrency 200]

The sides take turns on queues of their own, in the schema that the newest pg-boss made, on a server of our own with
``fsync`` on. Node is given its best settings: ``insert`` of 1 000 jobs a call; out, the fastest of a worker that takes
batches and goes on at once while they are full, with several sizes of batches and several of them at once, and of a
plain loop of ``fetch`` and ``complete``. Onward is an App with a handler that does nothing, and with one worker, or two
as Node's ``localConcurrency`` has them. Each side is done when its last outcome is stored. The last line is a JSON
object with the medians, and the best of the one in terms of the best of the other; the exit code is 1 if a job was not
completed.

Before each round the table is analysed with the jobs in it: without that, Node's claims may fall off the cliff that
``tests/engines/pgboss/test_statistics.py`` shows, and ours would be compared with nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import psycopg

from onward import App
from onward.core import core_of
from onward.engine.values import GroupBy, JobFilter
from tests.servers.pgboss import NodePgBoss, pgboss_packages
from tests.servers.postgres import PostgresServer

SCHEMA = "pgboss"
BATCH = 1000
NODE_BATCH = 200
WORKERS = {"onward": 1, "onward_x2": 2}
NODE_WORKERS = {"node_200": (200, 1), "node_500x2": (500, 2), "node_200x4": (200, 4)}
"""How many jobs a batch has, and how many batches are worked on at once."""
DURABLE = {"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "8GB"}


def app_on(url: str) -> App:
    """Make an App on the queues of the pg-boss there."""
    return App(f"pgboss+{url}&schema={SCHEMA}")


async def send(url: str, queue: str, jobs: int) -> float:
    """Put jobs in, 1 000 a call; answer the seconds it took."""
    async with app_on(url) as app:

        @app.task(name=queue, queue=queue)
        async def mail(to: str, n: int) -> None: ...

        batch = [{"to": "user@example.com", "n": n} for n in range(BATCH)]
        await mail.enqueue_many(batch[:1])
        started = time.perf_counter()
        for _ in range(0, jobs, BATCH):
            await mail.enqueue_many(batch)
        return time.perf_counter() - started


async def drain(url: str, queue: str, jobs: int, concurrency: int, workers: int) -> float:
    """Run jobs that are there; answer the seconds from the first start until the last outcome is stored."""
    async with app_on(url) as app:
        done = 0
        first = 0.0

        over = asyncio.Event()

        @app.task(name=queue, queue=queue)
        async def mail(to: str, n: int) -> None:  # noqa: ARG001 - as the job has them
            nonlocal done, first
            if not done:
                first = time.perf_counter()
            done += 1
            if done == jobs:
                over.set()

        async with AsyncExitStack() as working:
            for _ in range(workers):
                await working.enter_async_context(app.worker(queues=[queue], concurrency=concurrency))
            await over.wait()
        return time.perf_counter() - first


async def completed(url: str, queue: str) -> int:
    """Count what has been completed."""
    async with app_on(url) as app:
        counts = await core_of(app).engine.count(JobFilter(queues=(queue,)), by=GroupBy.STATUS)
        return counts.get("completed", 0) if set(counts) == {"completed"} else 0


def analyse(url: str) -> None:
    """Have the planner know what is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"analyze {SCHEMA}.job")


def rounds(given: argparse.Namespace, url: str, node: NodePgBoss) -> tuple[dict[str, list[float]], bool]:
    """Let the sides take turns."""
    rates: dict[str, list[float]] = {}
    verified = True
    for number in range(given.rounds):
        for side in (*WORKERS, *NODE_WORKERS, "node_fetch"):
            queue = f"{side}-{number}"
            node.createQueue(queue, {"name": queue})
            jobs = given.jobs
            if side in WORKERS:
                sent = asyncio.run(send(url, queue, jobs))
                jobs += 1
            else:
                sent = node.bench_insert(queue, jobs, BATCH)
            analyse(url)
            if side in WORKERS:
                out = asyncio.run(drain(url, queue, jobs, given.concurrency, WORKERS[side]))
            elif side in NODE_WORKERS:
                size, at_once = NODE_WORKERS[side]
                options = {"batchSize": size, "burstWhenBatchFull": True, "localConcurrency": at_once}
                out = node.bench_drain(queue, jobs, options)
            else:
                out = node.bench_fetch(queue, jobs, NODE_BATCH)
            verified &= asyncio.run(completed(url, queue)) == jobs
            rates.setdefault(f"{side}_in", []).append(given.jobs / sent)
            rates.setdefault(f"{side}_out", []).append(jobs / out)
            print(f"{side}: {given.jobs / sent:,.0f} in, {jobs / out:,.0f} out", file=sys.stderr)
    return rates, verified


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=200)
    given = parser.parse_args()
    with PostgresServer.started(**DURABLE) as server, NodePgBoss(server.url(), SCHEMA) as node:
        rates, verified = rounds(given, server.url(), node)
    results: dict[str, Any] = {name: round(statistics.median(values)) for name, values in rates.items()}
    for direction in ("in", "out"):
        ours, node_s = (
            max(
                measurement
                for name, measurement in results.items()
                if name.startswith(side) and name.endswith(f"_{direction}")
            )
            for side in ("onward", "node")
        )
        results[f"{direction}_ratio"] = round(ours / node_s, 2)
    results |= {"pg-boss": pgboss_packages().versions["pg-boss"], "jobs": given.jobs, "verified": verified}
    print(json.dumps({**results, "load": round(os.getloadavg()[0], 1)}))
    return 0 if verified else 1


if __name__ == "__main__":
    sys.exit(main())
