"""What kills queues on PostgreSQL, each beside a control in the same run. Takes half an hour; nothing of it is in CI.

    python -m bench.long [drains] [held] [fresh] [--quick] [--url postgresql://…]

drains  20 000 jobs are run where 5 000 000 wait; where 1 000 000 have ended; where 1 000 000 urgent ones wait for next
        year; where 100 000 run that were ready before them: each beside a store with nothing else in it
held    a transaction is held open for 5 minutes under 2 000 jobs/s in 100 queues of 10 priorities each: how long a
        claim takes in the last 30 s, beside another database on the same server where none is
fresh   1 000 queues under one pattern, one of them with 1 000 000 jobs: how soon the first job of a new queue starts

Prints a JSON object for each, then a table of what is wanted. What the rows of CI's own tests say (bounded reads, in
``tests/engines/postgres/test_plans.py``) is shown here in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from typing import Any, Final

import psycopg

from onward.app import App
from onward.bench import scenarios
from onward.bench.environment_postgres import PostgresEnvironment
from onward.bench.handlers import QUEUE, Handler, make_app, make_producer, task_of
from onward.bench.isolated import run_isolated
from onward.bench.statistics import Measurement, run_interleaved
from onward.bench.stopwatch import Stopwatch
from onward.bench.verification import is_verified
from onward.core import core_of
from onward.engine.checked import Observation

Found = dict[str, Any]

FIRST_SEEDED: Final = 100_000_000
"""The numbers of jobs that are there from the start begin here, so that the ledger can tell them apart."""
WAITING: Final = f"""
insert into onward.job (type, queue, payload)
select 'async', '{QUEUE}', json_build_object('n', {FIRST_SEEDED} + n) from generate_series(0, %s - 1) n order by n
"""
ENDED: Final = f"""
insert into onward.history (seq, claim_no, created_at, updated_at, completed_at, claimed_at, started_at, id,
                            max_attempts, priority, attempts, crashes, queue, status, type, payload, worker_id, result)
select nextval('onward.job_seq'), 1, now(), now(), now(), now(), now(), gen_random_uuid(), 5, 0, 1, 0, 'before',
       'completed', 'async', json_build_object('n', {FIRST_SEEDED} + n), 'w', '1' from generate_series(1, %s) n
"""
FUTURE: Final = f"""
insert into onward.job (type, queue, payload, priority, ready_at, next_run_at)
select 'async', '{QUEUE}', '{{"n": 0}}', 10, null, now() + interval '1 year' from generate_series(1, %s)
"""
RUNNING: Final = f"""
insert into onward.job (type, queue, payload, claim_no, attempts, worker_id, ready_at, claimed_at, started_at,
                        lease, lease_until)
select 'async', '{QUEUE}', '{{"n": 0}}', 1, 1, 'w', now() - interval '1 hour', now(), now(), '1 day',
       now() + interval '1 day' from generate_series(1, %s)
"""


# Drains


class Store:
    """One store through all rounds, with something in it from the start."""

    def __init__(
        self, environment: PostgresEnvironment, seed: str | None = None, count: int = 0, *, ready: bool = False
    ) -> None:
        self._url = environment.fresh()
        self._ran: list[int] = []
        self._filled = 0
        self._count = 0 if seed == ENDED else count
        run_isolated(scenarios.fill, self._url, Handler.ASYNC, 1 if ready else 0)
        self._filled = int(ready)
        if seed is not None:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(seed.replace("%s", str(count)))
                connection.execute("vacuum analyze onward.job")
                connection.execute("checkpoint")

    def drain(self, sample: int) -> Measurement:
        """Add some jobs and run as many."""
        run_isolated(scenarios.fill, self._url, Handler.ASYNC, sample, first=self._filled)
        self._filled += sample
        drained = run_isolated(scenarios.drain, self._url, sample, 100)
        self._ran += drained.ran
        return drained.measurement

    def is_verified(self) -> bool:
        """Say whether what ran has been completed once, and all the rest is as it was."""
        return is_verified(self._url, self._ran, waiting=self._filled + self._count - len(self._ran))


def drains(environment: PostgresEnvironment, *, quick: bool) -> Found:
    """Run jobs in stores with much in them, and in one with nothing else."""
    scale, sample, rounds = (100, 2_000, 1) if quick else (1, 20_000, 11)
    tell("seeding")
    stores = {
        "control": Store(environment),
        "waiting": Store(environment, WAITING, 5_000_000 // scale, ready=True),
        "ended": Store(environment, ENDED, 1_000_000 // scale),
        "future": Store(environment, FUTURE, 1_000_000 // scale, ready=True),
        "running": Store(environment, RUNNING, 100_000 // scale, ready=True),
    }
    sides: Mapping[str, Callable[[], Measurement]] = {
        name: (lambda store=store: store.drain(sample)) for name, store in stores.items()
    }
    paces = run_interleaved(rounds, sides, tell)
    control = paces.rate("control")
    return {
        "scenario": "drains",
        "verified": all(store.is_accounted_for() for store in stores.values()),
        "control": round(control),
        **{f"{name}_ratio": round(paces.rate(name) / control, 3) for name in stores if name != "control"},
    }


# A transaction held open


def held(environment: PostgresEnvironment, *, quick: bool) -> Found:
    """Offer the same load to two databases, of which one has an open transaction, and compare what claims take.

    One after the other: side by side they would crowd each other out, and it would show which of them does so.
    """
    seconds, tail = (20, 10) if quick else (300, 30)
    found: Found = {"scenario": "held", "seconds": seconds, "verified": True}
    for name in ("control", "held"):
        url = environment.fresh()
        run_isolated(scenarios.fill, url, Handler.ASYNC, 0)
        with psycopg.connect(url) as blocker:
            if name == "held":
                blocker.execute("set transaction isolation level repeatable read")
                blocker.execute("select count(*) from onward.job")
            offered, ran, claims = under_load(url, name, seconds)
        last = sorted(took for moment, took in claims if moment > claims[-1][0] - tail)
        found |= {
            f"{name}_jobs": ran,
            f"{name}_p50_ms": round(statistics.median(last) * 1e3, 3),
            f"{name}_p99_ms": round(last[round(0.99 * (len(last) - 1))] * 1e3, 3),
        }
        found["verified"] &= offered == ran
    found["p50_ratio"] = round(found["held_p50_ms"] / found["control_p50_ms"], 3)
    found["p99_ratio"] = round(found["held_p99_ms"] / found["control_p99_ms"], 3)
    return found


def under_load(url: str, name: str, seconds: int) -> tuple[int, int, list[tuple[float, float]]]:
    """Enqueue and work for so long; answer how many jobs were offered, how many ran, and what each claim took."""
    spawn = get_context("spawn")
    stop, results = spawn.Event(), spawn.Queue()
    processes = [spawn.Process(target=each, args=(url, stop, results)) for each in (offer_load, claim_under_load)]
    for process in processes:
        process.start()
    for left in range(seconds, 0, -10):
        tell(f"{name}: {left} s left")
        time.sleep(min(10, left))
    stop.set()
    parts = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    offered = next(part for part in parts if isinstance(part, int))
    claims, ran = next(part for part in parts if not isinstance(part, int))
    return offered, ran, claims


def offer_load(url: str, stop: Event, results: Any) -> None:
    """Enqueue 2 000 jobs a second, 20 at a time, to 100 queues of 10 priorities."""

    async def live() -> int:
        drawn, offered = random.Random(7), 0
        async with make_producer(url) as app:
            plain = task_of(app, Handler.ASYNC)
            lanes = [plain.using(queue=f"load/{q}", priority=p) for q in range(100) for p in range(10)]
            due = time.monotonic()
            while not stop.is_set():
                await app.enqueue_many([drawn.choice(lanes).job(n=offered + n) for n in range(20)])
                offered += 20
                due += 0.010
                await asyncio.sleep(max(due - time.monotonic(), 0))
        return offered

    results.put(asyncio.run(live()))


def claim_under_load(url: str, stop: Event, results: Any) -> None:
    """Work, and note how long each claim takes."""
    claims: list[tuple[float, float]] = []

    def note(observation: Observation) -> None:
        if observation.verb == "exchange":
            claims.append((time.monotonic(), observation.seconds))

    async def live() -> int:
        watch = Stopwatch(0)
        app = make_app(url, watch)
        core_of(app).engine.observer = note
        async with app, app.worker(concurrency=100):
            ran = -1
            while not stop.is_set() or ran != len(watch.started):  # until nothing more comes
                ran = len(watch.started)
                await asyncio.sleep(0.5)
        return len(watch.started)

    ran = asyncio.run(live())
    results.put((claims, ran))


# A fresh queue


def fresh(environment: PostgresEnvironment, *, quick: bool) -> Found:
    """Enqueue the first job of a new queue now and then, while a worker is busy with a thousand others."""
    many, times = (10_000, 10) if quick else (1_000_000, 60)
    url = environment.fresh()
    run_isolated(scenarios.fill, url, Handler.ASYNC, 0)
    with psycopg.connect(url, autocommit=True) as connection:
        seed = """
            insert into onward.job (type, queue, payload)
            select 'async', {}, '{{"n": 0}}' from generate_series(1, {}) n
        """
        connection.execute(seed.format("'many/0'", many))
        connection.execute(seed.format("'many/' || n % 1000", 1_000_000 if not quick else 10_000))
        connection.execute(
            "insert into onward.lane (queue, priority, low_mark)"
            " select distinct queue, 0, timestamptz '-infinity' from onward.job"
        )
        connection.execute("vacuum analyze onward.job")
        connection.execute("checkpoint")  # or the disk is busy with what was put in, and every commit waits for it
    waits = run_isolated(first_jobs, url, times)
    waits.sort()
    return {
        "scenario": "fresh",
        "verified": len(waits) == times,
        "p50_ms": round(statistics.median(waits) * 1e3, 2),
        "max_ms": round(waits[-1] * 1e3, 2),
    }


def first_jobs(url: str, times: int) -> list[float]:
    """Work and enqueue in one process each; answer how long each first job waited."""
    spawn = get_context("spawn")
    stop, started = spawn.Event(), spawn.Queue()
    process = spawn.Process(target=work_on_many, args=(url, stop, started))
    process.start()
    started.get(timeout=60)  # it is at work

    async def live() -> list[float]:
        waits: list[float] = []
        async with make_producer(url) as app:
            plain = task_of(app, Handler.ASYNC)
            for number in range(1, times + 1):
                await asyncio.sleep(0.25)
                asked = time.monotonic()
                await plain.using(queue=f"many/new-{number}").enqueue(n=number)
                _, moment = await asyncio.to_thread(started.get, timeout=60)
                waits.append(moment - asked)
        return waits

    waits = asyncio.run(live())
    stop.set()
    process.join()
    return waits


def work_on_many(url: str, stop: Event, started: Any) -> None:
    """Run jobs of all queues; tell of those that have a number."""

    async def live() -> None:
        app = App(url)
        begun = False

        @app.task(name=Handler.ASYNC, queue=QUEUE)
        async def noop(n: int) -> int:
            nonlocal begun
            if n or not begun:
                begun = True
                started.put((n, time.monotonic()))
            return n

        async with app, app.worker(queues=("many/*",), concurrency=100):
            await asyncio.to_thread(stop.wait)

    asyncio.run(live())


WANTED: Final[dict[str, list[tuple[str, str, float, bool]]]] = {
    "drains": [
        ("5 000 000 wait, × 20 000", "waiting_ratio", 0.85, True),
        ("1 000 000 have ended, × none", "ended_ratio", 0.95, True),
        ("1 000 000 urgent ones next year, × none", "future_ratio", 0.9, True),
        ("100 000 run that were ready before, × none", "running_ratio", 0.8, True),
    ],
    "held": [
        ("an open transaction, claim p50, × none", "p50_ratio", 2, False),
        ("an open transaction, claim p99, × none", "p99_ratio", 2, False),
    ],
    "fresh": [("first job of a fresh queue, ms at worst", "max_ms", 50, False)],
}


def tell(line: str) -> None:
    """Say how it goes."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[*WANTED, []], help="all unless given")
    parser.add_argument("--quick", action="store_true", help="small and once: to see that it runs, not how fast")
    parser.add_argument("--url", help="of a server that databases may be made on; else one is started")
    given = parser.parse_args()
    scenarios = {"drains": drains, "held": held, "fresh": fresh}
    rows: list[tuple[str, str, str, str]] = []
    verified = True
    for name in given.scenarios or WANTED:
        with PostgresEnvironment(given.url) as environment:
            found = scenarios[name](environment, quick=given.quick)
        print(json.dumps(found), flush=True)
        verified &= found["verified"]
        for what, key, limit, at_least in WANTED[name]:
            enough = found[key] >= limit if at_least else found[key] <= limit
            rows.append((what, f"{found[key]:.3g}", f"{'≥' if at_least else '≤'} {limit:g}", "yes" if enough else "no"))
    print()
    for row in (("", "found", "wanted", "enough"), *rows):
        print("{:<46} {:>8} {:>8} {:>7}".format(*row))
    sys.exit(0 if verified else 1)


if __name__ == "__main__":
    main()
