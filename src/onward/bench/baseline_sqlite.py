"""SQLite without a queue around it: the same work done by hand, as fast as SQLite allows, finished rows kept.

What it leaves out is what a queue is for: tasks, results, leases that are renewed, fencing, retries, limits, fairness.
What it keeps is what no queue on SQLite can do without: durable commits, a claim in order of priority through a
partial index, one transaction for what has ended and what comes next, reading the payload and calling a function.
"""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from onward.bench.statistics import Measurement

_SCHEMA: Final = """
create table job (
  id integer primary key, queue text not null default 'default', task text not null default 'noop',
  priority integer not null default 0, state integer not null default 0, run_at real not null default 0,
  attempts integer not null default 0, worker integer, lease real, payload text not null
);
create index job_claim on job (priority, run_at, id) where state = 0;
"""
_PAYLOAD: Final = '{"n": 123}'
_INSERT: Final = "insert into job (payload) values (?)"
_READ: Final = "select id, queue, task, priority, state, run_at, attempts, payload from job where id = ?"
_INSERT_ALL: Final = "insert into job (payload) select value from json_each(?)"
_FINISH: Final = "update job set state = 2 where id in (select value from json_each(?))"
_CLAIM: Final = """
update job set state = 1, worker = 1, lease = ?, attempts = attempts + 1
 where id in (select id from job where state = 0 and run_at <= ? order by priority, run_at, id limit ?)
returning id, payload
"""


def _connect(path: Path, durable: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {durable}")
    connection.execute("pragma cache_size = -65536")
    connection.execute("pragma mmap_size = 268435456")
    connection.execute("pragma temp_store = memory")
    connection.executescript(_SCHEMA)
    return connection


class BareStore:
    """One row in, one row out, by hand: what a route of a web application does without a queue."""

    def __init__(self, path: Path, durable: str) -> None:
        self._connection = _connect(path, durable)

    async def insert(self, payload: str) -> str:
        """Insert a row, durably, on the event loop: with one client at a time, a thread would only cost time."""
        return str(self._connection.execute(_INSERT, (payload,)).lastrowid)

    async def read(self, id: str) -> tuple[Any, ...] | None:
        """Read a row."""
        row: tuple[Any, ...] | None = self._connection.execute(_READ, (id,)).fetchone()
        return row


def insert(path: Path, durable: str, jobs: int) -> Measurement:
    """Insert rows one by one, each durable before the next."""
    connection = _connect(path, durable)
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(jobs):
        connection.execute(_INSERT, (_PAYLOAD,))
    return Measurement(jobs, time.monotonic() - began, time.process_time() - cpu)


def insert_at_intervals(path: Path, durable: str, jobs: int, interval: float) -> list[float]:
    """Insert a row now and then; answer how many seconds each took to be durable."""
    connection = _connect(path, durable)
    took = []
    for _ in range(jobs):
        time.sleep(interval)
        began = time.monotonic()
        connection.execute(_INSERT, (_PAYLOAD,))
        took.append(time.monotonic() - began)
    return took


def insert_by_executemany(path: Path, durable: str, jobs: int, batch: int) -> Measurement:
    """Insert rows in batches, a durable transaction for each, bound one by one."""
    connection = _connect(path, durable)
    rows = [(_PAYLOAD,)] * batch
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(0, jobs, batch):
        connection.execute("begin immediate")
        connection.executemany(_INSERT, rows)
        connection.execute("commit")
    return Measurement(-(-jobs // batch) * batch, time.monotonic() - began, time.process_time() - cpu)


def insert_by_json(path: Path, durable: str, jobs: int, batch: int) -> Measurement:
    """Insert rows in batches, a durable statement for each, all of a batch in one JSON text that was there before."""
    connection = _connect(path, durable)
    text = json.dumps([_PAYLOAD] * batch)
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(0, jobs, batch):
        connection.execute(_INSERT_ALL, (text,))
    return Measurement(-(-jobs // batch) * batch, time.monotonic() - began, time.process_time() - cpu)


def drain(path: Path, durable: str, jobs: int, batch: int) -> Measurement:
    """Run jobs that are there already: finish one batch and claim the next in one durable transaction."""
    connection = _connect(path, durable)
    connection.execute(_INSERT_ALL, (json.dumps([_PAYLOAD] * jobs),))
    done: list[int] = []
    ran = 0
    first = last = cpu = 0.0
    while True:
        now = time.time()
        connection.execute("begin immediate")
        if done:
            connection.execute(_FINISH, (json.dumps(done),))
        claimed = connection.execute(_CLAIM, (now + 60, now, batch)).fetchall()
        connection.execute("commit")
        if not claimed:
            break
        if not first:
            first, cpu = time.monotonic(), time.process_time()
        done = []
        for id, payload in claimed:
            _handle(**json.loads(payload))
            done.append(id)
        ran += len(done)
        last = time.monotonic()
    used = time.process_time() - cpu
    finished = connection.execute("select count(*) from job where state = 2 and attempts = 1").fetchone()[0]
    if ran != jobs or finished != jobs:
        message = f"the baseline finished {finished} of {jobs} jobs"
        raise AssertionError(message)
    return Measurement(jobs - 1, last - first, used)


def _handle(n: int) -> int:
    return n
