"""What is installed is looked at, never touched: other versions, none at all, and one that changes under our hands."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onward.cli.main import onward
from onward.engine.checked import CheckedEngine
from onward.engine.values import GroupBy, JobFilter, QueueChange
from onward.engines.pgboss.engine import PgBossEngine
from onward.errors import SchemaTooNew, SchemaTooOld
from onward.lifecycle import Bury, Complete, JobStatus, Release, Retry
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Driver, new_job
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql
from tests.servers.pgboss import drop_schema, make_schema
from tests.servers.postgres import postgres_url

RELEASES = [
    "10.0.0",
    *[pytest.param(each, marks=pytest.mark.slow) for each in ("10.4.2", "11.0.8", "12.0.0", "12.12.0", "12.20.0")],
    *[pytest.param(each, marks=pytest.mark.slow) for each in ("12.26.4", "12.33.7")],
]
"""Between them, the changes of pg-boss's schema that concern us. Each has to be fetched, so only one by default."""


def catalogue(store: PgBossStore) -> list[tuple[Any, ...]]:
    """Everything that can be seen of pg-boss's schema itself."""
    named = "where n.nspname = %s"
    columns = run_sql(
        store,
        "select c.relname, a.attname, a.atttypid::regtype::text, a.attnotnull from pg_attribute a"
        f" join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace {named} order by 1, 2",
        store.schema,
    )
    rest = run_sql(
        store,
        f"select 'index', pg_get_indexdef(c.oid) from pg_class c join pg_namespace n on n.oid = c.relnamespace {named}"
        " and c.relkind = 'i' union all select 'function', pg_get_functiondef(p.oid) from pg_proc p"
        f" join pg_namespace n on n.oid = p.pronamespace {named} union all"
        " select 'constraint', conname || pg_get_constraintdef(o.oid) from pg_constraint o"
        f" join pg_namespace n on n.oid = o.connamespace {named} order by 1, 2",
        *[store.schema] * 3,
    )
    return columns + rest


async def test_nothing_of_pg_bosss_schema_is_ever_changed(driver: Driver, store: PgBossStore):  # P1
    before = catalogue(store)
    await live(driver)
    assert catalogue(store) == before


async def live(driver: Driver) -> None:
    """Do with jobs all that can be done with them."""
    queue = "whole/life"
    await driver.set(queue, max_attempts=2)
    await driver.put([new_job(queue=queue, payload=str(number), priority=number % 2) for number in range(6)])
    first, second, third, fourth, fifth, _ = await driver.take(queue, slots=6)
    assert await driver.end(first, Complete('{"done": true}'))
    assert await driver.end(second, Retry(PAST_LEASE, BOOM))
    assert await driver.end(third, Bury(BOOM))
    assert await driver.end(fourth, Release())
    await driver.cancel(fifth.ref)
    await driver.beat(first, second)
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    await driver.promote()
    await driver.prune()
    states = {JobStatus.COMPLETED: 1, JobStatus.DEAD_LETTER: 1, JobStatus.CANCELLED: 1, JobStatus.PENDING: 3}
    (info,) = await driver.engine.queues(queue)
    assert info.counts == states
    again = await driver.take(queue, slots=6)
    assert {claim.attempts for claim in again} == {1, 2}
    assert not await driver.end(second, Complete())
    assert await driver.end(again[0], Complete())
    assert len(await driver.replay(third.ref)) == 1
    assert (await driver.job(third.ref)).attempts == 0


def test_where_there_is_no_pg_boss_it_is_said_how_to_make_one():
    url = f"pgboss+{postgres_url()}&schema=nobody"
    said = CliRunner().invoke(onward, ["migrate", "--url", url], prog_name="onward")
    assert said.exit_code == 1
    assert "start a pg-boss once" in " ".join(said.stderr.split())


async def test_a_version_before_10_is_refused(store: PgBossStore):
    run_sql(store, "update boss.version set version = 20")
    with pytest.raises(SchemaTooOld, match="upgrade pg-boss"):
        await store.connect()


async def test_a_later_version_is_taken_with_a_warning(store: PgBossStore, caplog: pytest.LogCaptureFixture):
    run_sql(store, "update boss.version set version = 99")
    with caplog.at_level(logging.WARNING):
        driver = Driver(store, await store.connect())
    assert "newer than 46" in caplog.text
    await live(driver)
    assert "newer than 46" in " ".join((await driver.engine.check()).warnings)


async def test_what_would_lose_jobs_is_told(store: PgBossStore):  # X3
    info = await (await store.connect()).check()
    assert "may lose or corrupt everything" in info.durability
    assert "fsync is off" in " ".join(info.problems)  # of a server for tests


async def test_a_later_version_that_lacks_what_is_needed_is_refused_by_name(store: PgBossStore):
    run_sql(store, "update boss.version set version = 99")
    run_sql(store, "alter table boss.job rename column retry_count to tries")
    with pytest.raises(SchemaTooNew, match=r"job\.retry_count is missing"):
        await store.connect()


async def test_a_column_that_goes_while_we_work_is_found_out_at_once(driver: Driver, store: PgBossStore):
    await driver.add(queue="q")
    run_sql(store, "alter table boss.job drop column heartbeat_on cascade")
    claim = await driver.take_one("q")
    assert await driver.end(claim, Complete())
    assert (await driver.beat(claim)).lost == {claim.token}


@pytest.mark.parametrize("release", RELEASES)
async def test_a_whole_life_on_the_schema_of_every_kind_of_release(release: str, tmp_path: Path):  # P1
    store = PgBossStore(tmp_path)
    drop_schema(store.url, store.schema)
    make_schema(store.url, store.schema, release)
    try:
        await live(Driver(store, await store.connect()))
    finally:
        await store.close()


async def test_what_has_gone_to_the_archive_of_pg_boss_10_is_found(tmp_path: Path):  # P1, P9
    store = PgBossStore(tmp_path)
    drop_schema(store.url, store.schema)
    make_schema(store.url, store.schema, "10.0.0")
    try:
        driver = Driver(store, await store.connect())
        ref = await driver.add(queue="q")
        assert await driver.end(await driver.take_one("q"), Complete('"kept"'))
        await driver.advance(timedelta(days=8))
        await driver.prune()
        assert run_sql(store, "select count(*) from boss.job") == [(0,)]
        for named in (ref, str(ref)):
            job = await driver.engine.get(named)
            assert job is not None
            assert (job.ref, job.status, job.result) == (ref, JobStatus.COMPLETED, "kept")
        assert await driver.engine.get("q:00000000-0000-0000-0000-000000000000") is None
        found = await driver.engine.find(JobFilter(status=frozenset({JobStatus.COMPLETED})))
        assert [job.ref for job in found.items] == [ref]
        assert await driver.engine.count(JobFilter(), by=GroupBy.QUEUE) == {"q": 1}
        (queue,) = await driver.engine.queues()
        assert queue.counts == {JobStatus.COMPLETED: 1}
        assert await driver.engine.delete(JobFilter(refs=(ref,))) == []
    finally:
        await store.close()


async def test_the_script_makes_what_stands_beside_and_nothing_of_pg_boss(store: PgBossStore, engine: CheckedEngine):
    script = engine.schema_script()
    assert script is not None
    assert f'"{store.schema}_onward".leader' in script
    assert f'"{store.schema}".' not in script
    assert "pgboss." not in script


async def test_a_handle_needs_no_right_to_make_anything_once_it_is_there(driver: Driver, store: PgBossStore):
    await driver.engine.configure("q", QueueChange())
    role = f"worker_{store.schema}"
    run_sql(store, f"create role {role} login")
    for schema in (store.schema, f"{store.schema}_onward"):
        run_sql(store, f"grant usage on schema {schema} to {role}")
        run_sql(store, f"grant select, insert, update, delete on all tables in schema {schema} to {role}")
        run_sql(store, f"grant execute on all functions in schema {schema} to {role}")
    handle = CheckedEngine(
        PgBossEngine(store.url.replace("user=postgres", f"user={role}"), schema=store.schema, clock=store.clock)
    )
    await handle.open()
    try:
        other = Driver(store, handle)
        await handle.enqueue([new_job(queue="q")])
        assert await other.end(await other.take_one("q"), Complete())
    finally:
        await handle.close()
        run_sql(store, f"drop owned by {role}")
        run_sql(store, f"drop role {role}")
