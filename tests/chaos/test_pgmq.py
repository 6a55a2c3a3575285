"""Workers on PGMQ killed and stopped at random moments, beside a consumer that is not Onward's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from onward.engine.values import QueueChange
from tests.chaos.site import Site, site_at
from tests.servers.pgmq import pgmq_sql
from tests.servers.postgres import PostgresServer


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A server of its own, as durable as servers are. What is poison is for other tests: here the innocent are hit."""
    with PostgresServer.started(fsync="on") as server:
        with psycopg.connect(server.url()) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute(pgmq_sql())
        async with site_at(f"pgmq+{server.url()}&max_reads=1000", tmp_path) as site:
            await site.app._core.engine.configure("default", QueueChange())
            yield site


async def kill_workers_under_load(site: Site, *, kills: int, jobs: int) -> None:
    """Kill and stop workers while jobs come in and another client reads some of them and drops them."""

    async def read_and_drop() -> None:
        url = site.url.removeprefix("pgmq+").replace("&max_reads=1000", "")
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while True:
                await connection.execute("select pgmq.read('default', 1, 3)")
                await asyncio.sleep(0.3)

    async def kill() -> None:
        site.kill()

    dropping = asyncio.create_task(read_and_drop())
    try:
        await site.inject_faults(kill, faults=kills, jobs=jobs, pause=1)
    finally:
        dropping.cancel()
        await asyncio.gather(dropping, return_exceptions=True)
    await site.verify_jobs(jobs)


async def test_no_message_is_lost_however_workers_are_killed(site: Site):  # X3, G2, Counting
    await kill_workers_under_load(site, kills=3, jobs=60)


@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_two_hundred_kills_on_a_mixed_fleet(site: Site):  # X3, G2, Counting
    await kill_workers_under_load(site, kills=200, jobs=3000)
