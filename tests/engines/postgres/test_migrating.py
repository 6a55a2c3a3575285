"""The schema: made once, by hand or by whoever comes first, and refused where it is not ours (O9)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.migrating import MIGRATIONS, migrate
from onward.engines.postgres.schema import Schema
from onward.errors import InvalidJob, SchemaChanged, SchemaTooNew, SchemaTooOld
from tests.conformance.desk import Desk
from tests.conformance.postgres_case import PostgresStore
from tests.servers.postgres import binaries


def columns_of(url: str, schema: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "select table_name, column_name, data_type, column_default, is_nullable from information_schema.columns"
            " where table_schema = %s order by 1, ordinal_position",
            [schema],
        ).fetchall()


def test_the_schema_written_out_is_what_psql_can_apply_by_hand_and_what_open_finds_in_order(tmp_path: Path):  # O9
    by_hand, by_us = PostgresStore(tmp_path), PostgresStore(tmp_path)
    known = conninfo_to_dict(by_hand.url)
    script = PostgresEngine(by_hand.url, schema=by_hand.schema).schema_script()
    environment = os.environ | {"PGHOST": str(known["host"]), "PGUSER": str(known["user"])}
    psql = [str(binaries() / "psql"), "-v", "ON_ERROR_STOP=1", "-q", "-d", str(known["dbname"])]
    done = subprocess.run(psql, input=script, text=True, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(by_hand.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        database = PostgresEngine(by_hand.url).database
        assert migrate(connection, Schema(by_hand.schema), database) == []
        assert migrate(connection, Schema(by_us.schema), database) == list(MIGRATIONS)
    ours = [(*row[:3], row[4]) for row in columns_of(by_us.url, by_us.schema)]
    assert [(*row[:3], row[4]) for row in columns_of(by_hand.url, by_hand.schema)] == ours
    with psycopg.connect(by_hand.url) as connection:
        for store in (by_hand, by_us):
            connection.execute(f"drop schema {store.schema} cascade")


async def test_a_schema_from_the_future_is_refused(desk: Desk, store: PostgresStore):  # O9
    with psycopg.connect(store.url) as connection:
        connection.execute(f"insert into {store.schema}.migration (number, name, checksum) values (9999, 'later', 'x')")
    for ask in (store.connect, desk.engine.check):
        with pytest.raises(SchemaTooNew, match="upgrade Onward"):
            await ask()


async def test_a_schema_whose_steps_are_not_those_shipped_is_refused(desk: Desk, store: PostgresStore):  # O9
    with psycopg.connect(store.url) as connection:
        connection.execute(f"update {store.schema}.migration set checksum = 'edited' where number = 2")
    with pytest.raises(SchemaChanged, match="0002"):
        await store.connect()


async def test_a_schema_that_lacks_a_step_is_named_by_check_and_mended_by_open(tmp_path: Path):  # O9
    store = PostgresStore(tmp_path)
    database = PostgresEngine(store.url).database
    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        migrate(connection, Schema(store.schema), database, MIGRATIONS[:-1])
    engine = PostgresEngine(store.url, schema=store.schema)
    with pytest.raises(SchemaTooOld, match="run onward migrate"):
        await engine.check()
    await engine.open()
    assert (await engine.check()).schema == len(MIGRATIONS)
    await engine.close()
    await store.close()


async def test_a_step_that_fails_leaves_the_schema_as_it_was(tmp_path: Path):  # O9
    store = PostgresStore(tmp_path)
    database = PostgresEngine(store.url).database
    bad = replace(MIGRATIONS[-1], number=2, sql="create table onward.half (a int); select 1 / 0;")
    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(connection, Schema(store.schema), database, [MIGRATIONS[0], bad])
        assert columns_of(store.url, store.schema) == []


@pytest.mark.parametrize(
    "name", ["", "Onward", "a b", 'a"b', "a;drop table x", "pg_jobs", "1a", "ä", "a" * 49, "on-ward"]
)
def test_a_schema_with_a_name_that_could_mean_something_else_is_refused(name: str):
    with pytest.raises(InvalidJob, match="schema"):
        PostgresEngine("postgresql://h/d", schema=name)


async def test_two_schemas_of_one_database_know_nothing_of_each_other(desk: Desk, tmp_path: Path):
    other_store = PostgresStore(tmp_path)
    other = Desk(other_store, await other_store.connect())
    ref = await desk.add()
    assert await other.jobs() == ()
    assert await other.take() == ()
    await other.add()
    assert await desk.taken() == [ref]
    await other_store.close()
