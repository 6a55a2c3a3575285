"""PostgreSQL without a queue around it: the same work done by hand, as fast as PostgreSQL allows, finished rows kept.

:func:`drain` is the yardstick of a worker: a bare one, but sound. It holds jobs by a lease which it renews, tries
failed ones again, knows priorities and delays, settles one batch and claims the next in one durable statement, fetches
while handlers run, and moves what has ended into an archive. It uses the quickest that Python has for each part:
asyncpg, uvloop and eager tasks. What it leaves out is what a queue is for: many queues, fairness, limits, results,
fencing, crashes told apart from failures, heartbeats that survive a blocked loop, typed arguments, task options.

:func:`insert` is the yardstick of an enqueue: the row that Onward writes for a job, with such an id and the arguments
as JSON, into a table with those columns and the indexes on them, by a plain psycopg cursor that prepares the
statement. What it leaves out is what a queue adds: an API for it, arguments that are checked, rules that the store
holds, lanes, settings of queues, and word for those who wait for work.

:func:`insert_and_notify` and :func:`listen_and_claim` are the yardstick of a pickup: that row, a notification, and a
claim by the listener. They leave out the same, and an event loop: each waits for nothing else.
"""

from __future__ import annotations

import asyncio
import json
import select
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import psycopg

from onward.bench.isolated import wait_at_barrier
from onward.bench.statistics import Measurement
from onward.bench.stopwatch import Stopwatch
from onward.errors import EngineNotIncluded
from onward.ids import new_id

_SCHEMA: Final = """
create table job (
  id bigint generated always as identity primary key, queue text not null default 'default', task text not null,
  priority smallint not null default 0, run_at timestamptz not null default now(), attempts smallint not null default 0,
  max_attempts smallint not null default 5, worker integer, lease timestamptz, error text, payload jsonb not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index job_claim on job (priority, run_at, id);
create table enqueued (
  seq bigint generated always as identity primary key, id uuid not null unique, queue text not null collate "C",
  type text not null, payload json not null, priority integer not null default 0,
  max_attempts bigint not null default 5,
  ready_at timestamptz not null default clock_timestamp(), created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create index enqueued_claim on enqueued (queue, priority desc, ready_at, seq);
create table archive (
  id bigint, task text, attempts smallint, ok boolean, payload jsonb, finished_at timestamptz default now()
);
"""
_NEXT: Final = """
with d as (delete from job where id = any($3::bigint[]) and worker = $2 returning id, task, attempts, payload),
a as (insert into archive (id, task, attempts, ok, payload) select id, task, attempts, true, payload from d)
update job j set worker = $2, lease = now() + interval '30 s', attempts = j.attempts + 1
 where j.ctid = any (array(
         select ctid from job
          where (lease is null or lease < now()) and run_at <= now() and (select count(*) from d) >= 0
          order by priority, run_at, id limit $1 for update skip locked))
returning j.id, j.task, j.payload, j.attempts
"""
_FAIL: Final = """
update job
   set lease = null, worker = null, run_at = now() + make_interval(secs => least(3600, 2 ^ attempts)), error = $2
 where id = $1
"""
_HEARTBEAT: Final = "update job set lease = now() + interval '30 s' where id = any($1::bigint[]) and worker = $2"
_INSERT: Final = """
insert into enqueued (id, queue, type, payload) values ($1::text::uuid, $2::text, $3::text, $4::text::json)
"""
_READ: Final = (
    "select id, queue, type, priority, max_attempts, ready_at, payload from enqueued where id = $1::text::uuid"
)
_INSERT_AND_NOTIFY: Final = f"with added as ({_INSERT}) select pg_notify('work', '')"
_CLAIM: Final = """
update enqueued set max_attempts = max_attempts - 1
 where ctid = any (array(
         select ctid from enqueued where queue = 'bench' and max_attempts = 5
          order by priority desc, ready_at, seq limit 10 for update skip locked))
returning payload
"""
_FINISH: Final = "delete from enqueued where queue = 'bench' and max_attempts < 5"
_INSERT_ALL: Final = "insert into job (task, payload) select 'noop', p::jsonb from unnest($1::text[]) p"
_COPY: Final = "copy job (task, payload) from stdin"
_PAYLOAD: Final = '{"n": 123}'

_BATCH: Final = 200
"""Jobs that the yardstick takes at a time: the best of what was tried."""
_NOTIFY_TIMEOUT: Final = 60.0
"""Seconds until rows that do not come are given up."""
_SLOTS: Final = 50
_WORKER_ID: Final = 1


def prepare(url: str) -> None:
    """Make the tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_SCHEMA)


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=0)


def _row(number: int) -> tuple[str, ...]:
    return new_id(), "bench", "noop", json.dumps({"n": number})


class BareStore:
    """One row in, one row out, by hand: what a route of a web application does without a queue."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def insert(self, payload: str) -> str:
        """Insert a row, durably."""
        row = (new_id(), "bench", "noop", payload)
        await (await self._connected()).execute(_INSERT, row)
        return row[0]

    async def read(self, id: str) -> tuple[Any, ...] | None:
        """Read a row."""
        found = await (await self._connected()).execute(_READ, (id,))
        row: tuple[Any, ...] | None = await found.fetchone()
        return row

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, cursor_factory=psycopg.AsyncRawCursor, prepare_threshold=0
            )
        return self._connection


def insert(url: str, jobs: int, first: int = 0) -> Measurement:
    """Insert rows one by one, each durable before the next."""
    with _connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("select 1")
        wait_at_barrier()
        began, cpu = time.monotonic(), time.process_time()
        for number in range(first, first + jobs):
            cursor.execute(_INSERT, _row(number))
        return Measurement(jobs, time.monotonic() - began, time.process_time() - cpu)


def insert_and_notify(url: str, jobs: int, interval: float) -> list[float]:
    """Insert a row now and then, and tell of it; answer when each was begun."""
    began = []
    with _connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("select 1")
        wait_at_barrier()
        for number in range(jobs):
            time.sleep(interval)
            began.append(time.monotonic())
            cursor.execute(_INSERT_AND_NOTIFY, _row(number))
    return began


def listen_and_claim(url: str, jobs: int) -> dict[int, float]:
    """Take rows whenever they are told of; answer when each was held, durably."""
    held: dict[int, float] = {}
    with _connect(url) as listener, _connect(url) as connection, connection.cursor() as cursor:
        listener.execute("listen work")
        wait_at_barrier()
        until = time.monotonic() + _NOTIFY_TIMEOUT
        while len(held) < jobs and time.monotonic() < until:
            select.select([listener.fileno()], [], [], 0.1)
            listener.pgconn.consume_input()
            while listener.pgconn.notifies() is not None:
                pass
            taken = cursor.execute(_CLAIM).fetchall()
            held |= dict.fromkeys([payload["n"] for (payload,) in taken], time.monotonic())
            cursor.execute(_FINISH)
    return held


def insert_by_unnest(url: str, jobs: int, batch: int) -> Measurement:
    """Insert rows in batches, a durable statement for each, from an array that was there before."""
    payloads = [_PAYLOAD] * batch
    with _connect(url) as connection, connection.cursor() as cursor:
        began, cpu = time.monotonic(), time.process_time()
        for _ in range(0, jobs, batch):
            cursor.execute(_INSERT_ALL, (payloads,))
        return Measurement(-(-jobs // batch) * batch, time.monotonic() - began, time.process_time() - cpu)


def insert_by_copy(url: str, jobs: int, batch: int) -> Measurement:
    """Insert rows in batches, a durable COPY for each, of a text that was there before."""
    text = f"noop\t{_PAYLOAD}\n" * batch
    with _connect(url) as connection, connection.cursor() as cursor:
        began, cpu = time.monotonic(), time.process_time()
        for _ in range(0, jobs, batch):
            with cursor.copy(_COPY) as copy:
                copy.write(text)
        return Measurement(-(-jobs // batch) * batch, time.monotonic() - began, time.process_time() - cpu)


def drain(url: str, jobs: int, batch: int | None = None) -> Measurement:
    """Run jobs that are there already, with the yardstick's worker; see that each is in the archive, once."""
    try:
        import uvloop  # noqa: PLC0415 - only the yardstick needs them, and few who have Onward have both
    except ModuleNotFoundError:
        raise EngineNotIncluded("the yardstick for PostgreSQL needs: pip install asyncpg uvloop") from None

    with _connect(url) as connection:
        for first in range(0, jobs, 5_000):
            payloads = [json.dumps({"n": number}) for number in range(first, min(first + 5_000, jobs))]
            connection.execute(_INSERT_ALL, (payloads,))
    watch: Stopwatch = uvloop.run(_run(url, jobs, batch or _BATCH))
    with _connect(url) as connection:
        kept, different, left = connection.execute(
            "select count(*), count(distinct payload), (select count(*) from job) from archive where attempts = 1"
        ).fetchall()[0]
    if sorted(watch.started) != list(range(jobs)) or (kept, different, left) != (jobs, jobs, 0):
        message = f"the baseline finished {kept} of {jobs} jobs"
        raise AssertionError(message)
    return Measurement(jobs - 1, watch.seconds, watch.cpu_seconds)


async def _run(url: str, jobs: int, batch: int) -> Stopwatch:
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    if hasattr(asyncio, "eager_task_factory"):  # since 3.12
        loop.set_task_factory(asyncio.eager_task_factory)
    watch = Stopwatch(jobs, finished.set)

    async def noop(n: int) -> None:
        watch.start(n)

    worker = _Worker(url, {"noop": noop}, batch)
    await worker.open()
    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(part()) for part in (worker.run, worker.fetch, worker.heartbeat)]
        await finished.wait()
        await worker.wait_until_idle()
        for part in parts:
            part.cancel()
    await worker.close()
    return watch


class _Worker:
    """Fetches batches, runs what they hold, as many at once as there are slots."""

    def __init__(self, url: str, tasks: dict[str, Callable[..., Coroutine[Any, Any, None]]], batch: int) -> None:
        self._url = url
        self._batch = batch
        self._tasks = tasks
        self._alive: set[asyncio.Task[None]] = set()
        self._ready: deque[Sequence[Any]] = deque()
        self._running: set[int] = set()
        self._done: list[int] = []
        self._settling: list[int] = []
        """On its way to the store."""
        self._failed: list[tuple[int, str]] = []
        self._arrived, self._slot, self._hint, self._wake = (asyncio.Event() for _ in range(4))

    async def open(self) -> None:
        import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415 - see drain()

        self._connection = await asyncpg.connect(self._url)
        self._second_connection = await asyncpg.connect(self._url)
        await self._second_connection.add_listener("bench", lambda *_: self._wake.set())
        self._next = await self._connection.prepare(_NEXT)

    async def close(self) -> None:
        await self._connection.close()
        await self._second_connection.close()

    async def wait_until_idle(self) -> None:
        while self._done or self._settling or self._running or self._ready:
            self._wake.set()
            await asyncio.sleep(0.001)

    async def _one(self, work: Coroutine[Any, Any, None], id: int) -> None:
        try:
            await work
            self._done.append(id)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises
            self._failed.append((id, repr(error)))
        finally:
            self._running.discard(id)
            self._slot.set()
            if len(self._done) >= self._batch // 2:
                self._wake.set()

    async def run(self) -> None:
        begun = 0
        create_task, running, tasks = asyncio.get_running_loop().create_task, self._running, self._tasks
        while True:
            while self._ready:
                id, task, payload, _ = self._ready.popleft()
                running.add(id)
                one = create_task(self._one(tasks[task](**json.loads(payload)), id))
                if not one.done():
                    self._alive.add(one)
                    one.add_done_callback(self._alive.discard)
                while len(running) >= _SLOTS:
                    self._slot.clear()
                    await self._slot.wait()
                begun += 1
                if begun % 50 == 0:  # let the next round trip begin early
                    self._hint.set()
                    await asyncio.sleep(0)
            self._hint.set()
            self._arrived.clear()
            await self._arrived.wait()

    async def fetch(self) -> None:
        while True:
            if len(self._ready) > self._batch // 2:
                self._hint.clear()
                await self._hint.wait()
                continue
            self._settling, self._done = self._done, []
            self._wake.clear()
            rows = await self._next.fetch(self._batch, _WORKER_ID, self._settling)
            self._settling = []
            while self._failed:
                await self._connection.execute(_FAIL, *self._failed.pop())
            if rows:
                rows.sort(key=lambda row: row[0])
                self._ready.extend(rows)
                self._arrived.set()
                await asyncio.sleep(0)
            elif not self._done:
                try:
                    async with asyncio.timeout(0.05 if self._running else 1.0):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def heartbeat(self) -> None:
        while True:
            await asyncio.sleep(10)
            if held := [*self._running, *(row[0] for row in self._ready)]:
                await self._second_connection.execute(_HEARTBEAT, held, _WORKER_ID)
