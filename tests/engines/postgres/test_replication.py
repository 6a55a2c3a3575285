"""Every table can be published: logical replication and change data capture need an identity for each row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from onward.engine.values import JobFilter
from onward.engines.postgres.diagnostics import diagnose
from onward.engines.postgres.engine import PostgresEngine
from onward.lifecycle import Complete, Fail, JobStatus, Release
from onward.pg.caller_transaction import on_psycopg
from onward.pg.plan_runner import run
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Driver
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.test_lanes import by_hand, maintain_lanes, move_watermark


@pytest.fixture
def published(driver: Driver, store: PostgresStore) -> Iterator[None]:
    """A publication of all tables of the schema, as Debezium makes one of the whole database."""
    name = f"of_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        if connection.info.server_version < 150000:
            pytest.skip("publications of a schema are new in PostgreSQL 15")
        connection.execute(f"create publication {name} for tables in schema {store.schema}")
    yield
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"drop publication {name}")


@pytest.mark.usefixtures("published")
async def test_all_that_is_done_with_jobs_is_done_while_they_are_published(driver: Driver, store: PostgresStore):  # O6
    await driver.set("q", global_concurrency=5)
    refs = await driver.add_many(6, queue="q")
    await driver.add_many(5)
    first, second, third = await driver.take("q", slots=3)
    await driver.beat(first, second, third)
    assert await driver.end(first, Complete())
    assert await driver.end(second, Fail(BOOM))
    assert await driver.end(third, Release())
    await driver.take(slots=2)
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    for _ in range(2):
        await move_watermark(driver)
        await driver.advance(3)
    await maintain_lanes(driver)
    await driver.set("q", paused=True)
    await driver.replay(second.ref)
    assert await driver.state(second.ref) is JobStatus.PENDING
    await driver.cancel(refs[-1])
    await driver.engine.delete(JobFilter(refs=(refs[-1], refs[-2])))
    for days in (1, 7, 7, 40, 40):
        await driver.advance(timedelta(days=days))
        await driver.prune()
    assert await driver.engine.get(first.ref) is None


async def test_every_table_has_a_replica_identity_partitions_included(driver: Driver, store: PostgresStore):
    for days in (0, 3, 8, 3):
        await driver.advance(timedelta(days=days))
        await driver.add()
        await driver.end(await driver.take_one(), Complete())
        await driver.prune()
    archived = by_hand(store, "select count(*) from pg_inherits where inhparent = 'onward.archive_days'::regclass")
    assert archived > [(0,)]
    assert without_identity(store) == []


def without_identity(store: PostgresStore) -> list[str]:
    engine = PostgresEngine(store.url, schema=store.schema)
    with psycopg.connect(store.url) as connection:
        return list(run(diagnose(engine.schema), on_psycopg(connection)).facts.without_replica_identity)


async def test_the_doctor_names_tables_without_one(driver: Driver, store: PostgresStore):
    by_hand(store, "alter table onward.lane replica identity nothing")
    assert without_identity(store) == ["lane"]
