"""Node and Python workers on one queue, killed at random while jobs come in: every job is accounted for."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.interop.pgboss.conftest import QUICK
from tests.servers.pgboss import NodePgBoss, drop_schema
from tests.servers.postgres import postgres_url

DEADLINE = 120.0
"""Seconds until what was left behind must have been run; never reached where all is well."""


class Fleet:
    """Two workers of each kind, and whoever takes the place of one that was killed."""

    def __init__(self, url: str, schema: str, queue: str) -> None:
        self._random = random.Random(7)
        parameters = url.partition("?")[2]
        address = f"pgboss+postgresql:///postgres?{parameters}&schema={schema}"
        command = [sys.executable, "-m", "tests.interop.pgboss.worker_process", address, queue]

        def node() -> NodePgBoss:
            boss = NodePgBoss(url, schema, **QUICK)
            boss.work_on(queue, {"batchSize": 3})
            return boss

        self._factories: list[Callable[[], Any]] = [node, node, lambda: subprocess.Popen(command)]
        self._factories.append(self._factories[2])
        self._workers = [make() for make in self._factories]

    def kill(self) -> str:
        """Kill one without a word, put another in its place, and say of which kind it was."""
        at = self._random.randrange(len(self._workers))
        victim = self._workers[at]
        victim.kill()
        if isinstance(victim, NodePgBoss):
            victim.close()
        else:
            victim.wait()
        self._workers[at] = self._factories[at]()
        return "node" if isinstance(victim, NodePgBoss) else "python"

    def close(self) -> None:
        """End all."""
        for worker in self._workers:
            worker.kill()
            if isinstance(worker, NodePgBoss):
                worker.close()
            else:
                worker.wait()


def kill_workers_under_load(kills: int, jobs: int) -> None:
    """Kill so many workers while so many jobs come in, then account for all."""
    url, schema, queue = postgres_url(), f"fleet_{os.getpid()}", "labour"
    done: Counter[str] = Counter()
    with NodePgBoss(url, schema, **QUICK) as producer:
        producer.createQueue(queue, {"name": queue, "retryLimit": 1000, "retryDelay": 0, "expireInSeconds": 3})
        fleet = Fleet(url, schema, queue)
        try:
            sent = []
            for _ in range(kills):
                for n in range(jobs // kills):
                    sent.append(producer.send(queue, {"n": n, "seconds": 0.01 * (n % 7)}))
                done[fleet.kill()] += 1
            assert len(set(sent)) == len(sent) == jobs // kills * kills
            rows = _all_completed(url, schema, len(sent))
        finally:
            fleet.close()
    drop_schema(url, schema)
    assert {id for id, *_ in rows} == set(sent), "a job was lost"
    assert set(done) == {"node", "python"}, "only one kind was killed"
    ran: Counter[str] = Counter()
    for id, retry_count, began, output in rows:
        ran[output.get("by", "node")] += 1
        if output.get("by") == "python":
            assert output["run"] == [retry_count, began], f"{id}: the outcome of a claim that was lost"
    assert set(ran) == {"node", "python"}, "only one kind has worked"


def _all_completed(url: str, schema: str, jobs: int) -> list[tuple[Any, ...]]:
    deadline = time.monotonic() + DEADLINE
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            rows = connection.execute(
                "select id::text, retry_count, (date_part('epoch', started_on) * 1000000)::bigint,"
                f" coalesce(output, '{{}}') from {schema}.job where name = 'labour' and state = 'completed'"
            ).fetchall()
            if len(rows) == jobs:
                return rows
            assert time.monotonic() < deadline, f"{jobs - len(rows)} of {jobs} jobs have not been completed"
            time.sleep(0.1)


@pytest.mark.timeout(300)
def test_no_job_is_lost_and_no_lost_claim_is_heard_however_a_mixed_fleet_is_killed():  # X3, P1
    kill_workers_under_load(kills=8, jobs=160)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_job_is_lost_and_no_lost_claim_is_heard_in_two_hundred_kills_of_a_mixed_fleet():  # X3, P1
    kill_workers_under_load(kills=200, jobs=6000)
