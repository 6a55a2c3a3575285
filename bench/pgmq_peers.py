"""Onward on PGMQ beside PGMQ's own Python client and its bare functions: the same messages, read, run and archived.

    python -m bench.pgmq_peers [--jobs 20000] [--rounds 5]

All sides take messages of a queue that holds them already, a hundred at a time, on one connection, and call a handler
that does nothing for each. What differs is how messages are archived:

- ``bare``: ``pgmq.read`` and ``pgmq.archive`` by psycopg, the ids of a hundred at once.
- ``client, batches``: PyPI's ``pgmq``, ``read_batch`` and ``archive_batch``.
- ``client``: the same, each message archived when its handler has returned, as its manual has it: what has run is not
  run again because its neighbour failed. It gets fewer messages, being slow.
- ``engine``: Onward's engine alone, outcomes of a hundred and the next claim in one round trip, fenced.
- ``worker``: a worker of Onward's, a hundred at once: each outcome is on its way when its handler has returned.

The last line printed is one JSON object: rates, and Onward's in terms of the others'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg

from onward.app import App
from onward.bench.server import temporary_server
from onward.bench.statistics import Measurement, run_interleaved
from onward.core import core_of
from onward.engine.values import ClaimRequest, Exchange, Settlement
from onward.lifecycle import Complete

BATCH = 100
QUEUE = "bench"
MESSAGE = json.dumps({"to": "user@example.com", "n": 1})


def handle(body: Any) -> None:
    """Do nothing."""


class Environment:
    """A server with a PGMQ, and a queue that is filled anew for each turn."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._jobs = 0
        with psycopg.connect(url) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute(files("pgmq").joinpath("sql", "pgmq.sql").read_bytes())

        async def open_once() -> None:
            async with App(f"pgmq+{url}"):
                pass

        asyncio.run(open_once())  # makes our own schema

    def fill(self, jobs: int) -> None:
        """Leave the queue with so many messages, and nothing else to be cleaned up."""
        self._jobs = jobs
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute("select pgmq.drop_queue(%s)", [QUEUE])
            connection.execute("select pgmq.create(%s)", [QUEUE])
            for begin in range(0, jobs, 1000):
                messages = [MESSAGE] * min(1000, jobs - begin)
                connection.execute("select pgmq.send_batch(%s, %s::jsonb[])", [QUEUE, messages])
            connection.execute(f"vacuum analyze pgmq.q_{QUEUE}")
            connection.execute("checkpoint")

    def turn(self, drain: Callable[[], None], jobs: int) -> Measurement:
        """Measure one side once, and see that all was archived."""
        self.fill(jobs)
        began, cpu = time.monotonic(), time.process_time()
        drain()
        measurement = Measurement(self._jobs, time.monotonic() - began, time.process_time() - cpu)
        with psycopg.connect(self.url) as connection:
            ((left, done),) = connection.execute(
                f"select (select count(*) from pgmq.q_{QUEUE}), (select count(*) from pgmq.a_{QUEUE})"
            ).fetchall()
        assert (left, done) == (0, self._jobs), (left, done)
        return measurement

    # The sides

    def baseline(self) -> None:
        """Call PGMQ's functions by hand."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            while rows := connection.execute(
                "select msg_id, read_ct, message from pgmq.read(%s, 60, %s)", [QUEUE, BATCH]
            ).fetchall():
                for row in rows:
                    handle(row[2])
                ids = [row[0] for row in rows]
                connection.execute("select pgmq.archive(%s, %s::bigint[])", [QUEUE, ids])

    def client(self, *, batches: bool) -> None:
        """Use PGMQ's own client."""
        from pgmq import PGMQueue  # noqa: PLC0415 - only this side needs it

        at = parse_qs(urlsplit(self.url).query)
        queue = PGMQueue(
            host=at["host"][0],
            port="5432",
            username="postgres",
            password="-",
            database="postgres",
            init_extension=False,
        )
        try:
            while messages := queue.read_batch(QUEUE, vt=60, batch_size=BATCH):
                for message in messages:
                    handle(message.message)
                    if not batches:
                        queue.archive(QUEUE, message.msg_id)
                if batches:
                    queue.archive_batch(QUEUE, [message.msg_id for message in messages])
        finally:
            queue.close()

    def engine(self) -> None:
        """Use Onward's engine alone."""

        async def live() -> None:
            async with App(f"pgmq+{self.url}") as app:
                request = ClaimRequest(worker_id="bench", queues=(QUEUE,), slots=BATCH)
                ended: tuple[Settlement, ...] = ()
                while claims := (
                    await core_of(app).engine.exchange(Exchange(settlements=ended, request=request))
                ).claimed.claims:
                    for claim in claims:
                        handle(claim.payload)
                    ended = tuple(Settlement(claim, Complete()) for claim in claims)

        asyncio.run(live())

    def worker(self) -> None:
        """Use Onward as its users do."""

        async def live() -> None:
            app = App(f"pgmq+{self.url}")
            left, done = self._jobs, asyncio.Event()

            @app.task(name=QUEUE, queue=QUEUE)
            async def run(to: str, n: int) -> None:
                nonlocal left
                handle((to, n))
                left -= 1
                if not left:
                    done.set()

            async with app, app.worker(queues=(QUEUE,), concurrency=BATCH):
                await done.wait()

        asyncio.run(live())


def main() -> None:
    """Take turns, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with temporary_server() as url:
        environment = Environment(url)
        sides: dict[str, Callable[[], None]] = {
            "baseline": environment.baseline,
            "client, batches": lambda: environment.client(batches=True),
            "client": lambda: environment.client(batches=False),
            "engine": environment.engine,
            "worker": environment.worker,
        }
        turns = {
            name: partial(environment.turn, drain, arguments.jobs // 20 if name == "client" else arguments.jobs)
            for name, drain in sides.items()
        }
        paces = run_interleaved(arguments.rounds, turns, lambda text: print(text, file=sys.stderr, flush=True))
    rates = {name: round(paces.rate(name)) for name in sides}
    found = {
        "jobs": arguments.jobs,
        "rates": rates,
        "engine_of_baseline": round(rates["engine"] / rates["baseline"], 2),
        "engine_of_client_batches": round(rates["engine"] / rates["client, batches"], 2),
        "worker_of_client": round(rates["worker"] / rates["client"], 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
