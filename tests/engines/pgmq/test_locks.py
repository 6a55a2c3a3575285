"""Locks: strangers can take none that we need, and who keeps workers from claiming is named."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import QueueChange
from onward.engines.pgmq import schema_probe
from onward.engines.pgmq.statements import SQL
from onward.pg.caller_transaction import on_psycopg
from onward.pg.claim_blockers import claim_problems
from onward.pg.plan_runner import run
from tests.servers.pgmq import drop_database, make_database


async def test_a_stranger_cannot_hold_up_the_settings_of_queues(engine: CheckedEngine, queue: str, url: str):  # G8
    with psycopg.connect(url, autocommit=True) as stranger:
        stranger.execute(f"create role stranger_{queue}")
        stranger.execute(f"set role stranger_{queue}")
        stranger.execute("select pg_advisory_lock(hashtextextended('onward_pgmq.configure', 0))")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
            stranger.execute("lock table onward_pgmq.queue in row exclusive mode")
        async with asyncio.timeout(20):
            assert (await engine.configure(queue, QueueChange(paused=True))).settings.paused
        stranger.execute("reset role")
        stranger.execute(f"drop role stranger_{queue}")


async def test_of_several_that_install_pgmq_at_once_one_does_and_no_stranger_can_hold_them_up():  # G8, O9
    url = make_database(sql=b"select")

    def install() -> str | None:
        with psycopg.connect(url) as connection:
            return schema_probe.install(connection)

    try:
        with psycopg.connect(url, autocommit=True) as stranger:
            stranger.execute("select pg_advisory_lock(hashtextextended('onward_pgmq.install', 0))")
            async with asyncio.timeout(60):
                done = await asyncio.gather(*(asyncio.to_thread(install) for _ in range(4)))
        assert len([version for version in done if version is not None]) == 1
    finally:
        drop_database(url)


@pytest.mark.parametrize("mode", ["access exclusive", "share"])
async def test_who_lets_nobody_claim_is_named_with_the_remedy(
    engine: CheckedEngine, queue: str, url: str, mode: str
):  # O3
    with psycopg.connect(url) as holder, psycopg.connect(url) as connection:
        execute = on_psycopg(connection)
        holder.execute(f"lock table pgmq.q_{queue} in {mode} mode")
        (said,) = run(claim_problems(SQL.claim_blockers, timedelta(0)), execute)
        assert f"session {holder.info.backend_pid} (user " in said
        assert f"holds a lock on pgmq.q_{queue}" in said
        assert f"pg_terminate_backend({holder.info.backend_pid})" in said
        assert run(claim_problems(SQL.claim_blockers), execute) == []  # not long enough
        holder.rollback()
        holder.execute("lock table pgmq.meta, onward_pgmq.queue in share mode")  # claims only read these
        assert run(claim_problems(SQL.claim_blockers, timedelta(0)), execute) == []
