"""PostgreSQL crashed again and again under load, and behind a network that loses answers; every job is accounted for.

The short forms run with the other tests, the long ones by ``make chaos``.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.site import Site, site_at
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy


async def crash(directory: Path, *, crashes: int, jobs: int, pause: float) -> Site:
    """Crash the server at random moments while jobs come in and run."""
    with PostgresServer.started(fsync="on") as server:
        async with site_at(server.url(), directory) as site:

            async def inject_fault() -> None:
                await asyncio.to_thread(server.crash)
                await asyncio.sleep(site.random.choice((0, 0, 3)))  # sometimes for longer than the leases last
                await asyncio.to_thread(server.start)
                site.faults_injected["crashes"] += 1

            await site.inject_faults(inject_fault, faults=crashes, jobs=jobs, pause=pause)
            await site.verify_jobs(jobs)
    return site


async def cut(directory: Path, *, cuts: int, jobs: int, pause: float) -> Site:
    """Cut connections of workers and producers at random moments: so that what they said is done, or is not."""
    with PostgresServer.started(fsync="on") as server:
        async with Proxy.before(server.socket, random.Random(cuts)) as proxy:
            proxy_url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?query_timeout=1"
            async with site_at(server.url(), directory, proxy_url=proxy_url) as site:

                async def inject_fault() -> None:
                    kind = site.random.choice(("resets", "lost answers", "silences"))
                    affected = proxy.reset() if kind == "resets" else proxy.deafen(hang_up=kind == "lost answers")
                    site.faults_injected[kind] += affected

                await site.inject_faults(inject_fault, faults=cuts, jobs=jobs, pause=pause)
                await site.verify_jobs(jobs)
            assert proxy.lost_answers, "no answer was lost: nothing was tried"
    return site


async def test_no_job_is_lost_however_the_server_crashes(tmp_path: Path):  # X3
    await crash(tmp_path, crashes=3, jobs=150, pause=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_job_is_lost_in_twenty_five_crashes_of_the_server(tmp_path: Path):  # X3
    site = await crash(tmp_path, crashes=25, jobs=5000, pause=6)
    assert site.rejections(), "no worker ever found its claim gone: the fence was not tried"


async def test_no_job_is_lost_and_none_ends_twice_where_answers_get_lost(tmp_path: Path):  # X3
    await cut(tmp_path, cuts=12, jobs=150, pause=0.8)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_job_is_lost_and_none_ends_twice_in_three_hundred_cuts(tmp_path: Path):  # X3
    site = await cut(tmp_path, cuts=300, jobs=5000, pause=0.8)
    assert site.rejections(), "no worker ever found its claim gone: the fence was not tried"
