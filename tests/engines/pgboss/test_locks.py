"""Locks: strangers can take none that we need, and who keeps workers from claiming is named."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import QueueChange
from onward.engines.pgboss.engine import PgBossEngine
from onward.keys import digest
from onward.pg.caller_transaction import on_psycopg
from onward.pg.claim_blockers import claim_problems
from onward.pg.plan_runner import run
from tests.conformance.driver import Driver, new_job
from tests.conformance.pgboss_case import PgBossStore
from tests.conformance.processes import eventually


@pytest.fixture
def stranger(store: PgBossStore) -> Iterator[psycopg.Connection[Any]]:
    """A session of a role that may connect, and nothing else."""
    name = f"stranger_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {name}")
        connection.execute(f"set role {name}")
        yield connection
        connection.execute("reset role")
        connection.execute(f"drop role {name}")


async def test_a_stranger_cannot_hold_up_keyed_jobs_nor_the_creation_of_queues(
    store: PgBossStore, driver: Driver, engine: CheckedEngine, stranger: psycopg.Connection[Any]
):  # G8
    await driver.add(queue="q")
    key = int.from_bytes(digest(store.schema, "q", "k")[:8], "big", signed=True)
    stranger.execute("select pg_advisory_lock(%s)", [key])
    name = f"{stranger.info.dbname}.pgboss.{store.schema}create-queue"
    create = int.from_bytes(hashlib.sha224(name.encode()).digest()[:8], "big", signed=True)
    stranger.execute("select pg_advisory_lock(%s)", [create])
    for table in (f"{store.schema}.queue", f"{store.schema}_onward.key_lock"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
            stranger.execute(f"lock table {table} in row exclusive mode")
    async with asyncio.timeout(20):
        first, second = await engine.enqueue([new_job(queue="q", dedupe_key="k")] * 2)
        assert (first.is_new, second.is_new, first.id == second.id) == (True, False, True)
        await engine.configure("another", QueueChange())
    assert "another" in [queue.name for queue in await engine.queues()]


async def test_a_key_that_is_being_added_is_waited_for_and_leaves_nothing_behind(
    store: PgBossStore, driver: Driver, engine: CheckedEngine
):  # H5
    await driver.add(queue="q")
    with psycopg.connect(store.url) as caller, psycopg.connect(store.url) as other:
        (first,) = await engine.enqueue([new_job(queue="q", dedupe_key="k")], connection=caller)
        waiting = asyncio.create_task(engine.enqueue([new_job(queue="q", dedupe_key="k")]))
        (elsewhere,) = await engine.enqueue([new_job(queue="q", dedupe_key="l")], connection=other)
        assert elsewhere.is_new
        other.commit()

        async def is_blocked() -> bool | None:
            blocked = "select from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
            return waiting.done() or bool(other.execute(blocked, [caller.info.backend_pid]).fetchall()) or None

        await eventually(is_blocked)
        assert not waiting.done()
        caller.commit()
        (second,) = await waiting
        assert (second.is_new, second.id) == (False, first.id)
        assert other.execute(f"select from {store.schema}_onward.key_lock").fetchall() == []


@pytest.mark.parametrize(
    ("table", "mode"), [("job", "access exclusive"), ("job_common", "share"), ("queue", "access exclusive")]
)
async def test_who_lets_nobody_claim_is_named_with_the_remedy(
    store: PgBossStore, driver: Driver, engine: CheckedEngine, table: str, mode: str
):  # O3
    inner = engine.inner
    assert isinstance(inner, PgBossEngine)
    text = inner.schema.text("claim_blockers")
    with psycopg.connect(store.url) as holder, psycopg.connect(store.url) as connection:
        execute = on_psycopg(connection)
        holder.execute(f"lock table only {store.schema}.{table} in {mode} mode")
        (said,) = run(claim_problems(text, timedelta(0)), execute)
        assert f"session {holder.info.backend_pid} (user " in said
        assert f"holds a lock on {store.schema}.{table}" in said
        assert f"pg_terminate_backend({holder.info.backend_pid})" in said
        assert run(claim_problems(text), execute) == []  # not long enough
        holder.rollback()
        holder.execute(f"lock table {store.schema}.queue in share mode")  # claims only read it
        assert run(claim_problems(text, timedelta(0)), execute) == []
