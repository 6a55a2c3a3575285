"""The schema: made once, by hand or by whoever comes first, and refused where it is not ours (O9)."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onward.app import App
from onward.engine.migrations import Migration
from onward.engines.pgboss.engine import PgBossEngine
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.migrations import MIGRATIONS, migrate, script
from onward.engines.postgres.statements import Schema
from onward.errors import InvalidValue, SchemaChanged, SchemaTooNew, SchemaTooOld, StoreUnavailable
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore
from tests.servers.postgres import binaries

# Of all that a schema is, each as a name and a text. The days of the history are left out: others are made every day.
_CATALOG = r"""
with home as (select oid from pg_namespace where nspname = $1),
relation as (select c.* from pg_class c join home on home.oid = c.relnamespace where c.relname !~ 'history_day_\d')
select 'schema', nspname::text, nspacl::text from pg_namespace where nspname = $1
union all
select 'relation', relname, concat_ws(' ', relkind, relrowsecurity, reloptions, relacl, pg_get_expr(relpartbound, oid),
                                      pg_get_partkeydef(oid)) from relation where relkind <> 'i'
union all
select 'column', r.relname || '.' || a.attnum,
       concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                 a.attcollation::regcollation, a.attstorage, pg_get_expr(d.adbin, d.adrelid), a.attacl)
  from relation r join pg_attribute a on a.attrelid = r.oid and a.attnum > 0
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
union all
select 'index', relname, pg_get_indexdef(oid) from relation where relkind in ('i', 'I')
union all
select 'view', relname, pg_get_viewdef(oid) from relation where relkind = 'v'
union all
select 'constraint', concat_ws('.', conrelid::regclass, contypid::regtype, conname), pg_get_constraintdef(c.oid)
  from pg_constraint c join home on home.oid = c.connamespace
 where conrelid = 0 or conrelid in (select oid from relation)
union all
select 'trigger', tgname, pg_get_triggerdef(t.oid) from pg_trigger t join relation r on r.oid = t.tgrelid
 where not tgisinternal
union all
select 'policy', polname, concat_ws(' ', polrelid::regclass, polcmd, polroles, pg_get_expr(polqual, polrelid),
                                    pg_get_expr(polwithcheck, polrelid))
  from pg_policy join relation r on r.oid = polrelid
union all
select 'function', p.oid::regprocedure::text, pg_get_functiondef(p.oid) || coalesce(proacl::text, '')
  from pg_proc p join home on home.oid = p.pronamespace
union all
select 'type', typname, concat_ws(' ', typtype, format_type(typbasetype, typtypmod), typnotnull, typdefault)
  from pg_type t join home on home.oid = t.typnamespace where typname !~ 'history_day_\d'
order by 1, 2, 3
"""


def catalog_of(url: str, schema: str) -> list[tuple[str, ...]]:
    """Everything that a schema is, but for its name."""
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        rows = connection.execute(_CATALOG, [schema]).fetchall()
    return sorted(tuple(str(value).replace(schema, "onward") for value in row) for row in rows)


def steps_of(store: PostgresStore) -> list[tuple[object, ...]]:
    with psycopg.connect(store.url) as connection:
        ledger = f"{store.schema}.migration"
        return connection.execute(f"select number, name, checksum, applied_at from {ledger} order by 1").fetchall()


def make_by_us(store: PostgresStore, steps: int = len(MIGRATIONS)) -> int:
    """Bring a schema up to a step, as the engine does; say how many were applied."""
    database = PostgresEngine(store.url).database
    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        return len(migrate(connection, Schema(store.schema), database, MIGRATIONS[:steps]))


def psql(url: str, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    known = conninfo_to_dict(url)
    environment = os.environ | {
        f"PG{name.upper()}": str(known[name]) for name in ("host", "user", "port") if name in known
    }
    command = [str(binaries() / "psql"), "-X", "-d", str(known["dbname"]), *options]
    return subprocess.run(command, input=text, text=True, env=environment, capture_output=True, check=False)


def make_by_psql(store: PostgresStore) -> None:
    done = psql(store.url, script(Schema(store.schema)), "-v", "ON_ERROR_STOP=1")
    assert done.returncode == 0, done.stderr


def make_by_another_client(store: PostgresStore) -> None:
    """Send the whole text at once, as a console in a browser does."""
    with psycopg.connect(store.url) as connection:
        connection.execute(script(Schema(store.schema)).encode())


BY_HAND = pytest.mark.parametrize("make", [make_by_psql, make_by_another_client])
Make = Callable[[PostgresStore], None]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[PostgresStore]:
    """Another schema, to compare with."""
    store = PostgresStore(tmp_path)
    yield store
    with psycopg.connect(store.url) as connection:
        connection.execute(f"drop schema if exists {store.schema} cascade")


# By hand --------------------------------------------------------------------------------------------------------------


@BY_HAND
def test_the_schema_made_by_hand_is_the_one_that_we_make(store: PostgresStore, other: PostgresStore, make: Make):  # O9
    make(store)
    assert make_by_us(store) == 0
    assert make_by_us(other) == len(MIGRATIONS)
    assert catalog_of(store.url, store.schema) == catalog_of(other.url, other.schema)


@BY_HAND
def test_the_script_can_be_run_any_number_of_times(store: PostgresStore, make: Make):  # O9
    make(store)
    before = catalog_of(store.url, store.schema), steps_of(store)
    make(store)
    make(store)
    assert (catalog_of(store.url, store.schema), steps_of(store)) == before


@BY_HAND
def test_the_script_leaves_alone_what_we_have_made(store: PostgresStore, make: Make):  # O9
    make_by_us(store)
    before = catalog_of(store.url, store.schema), steps_of(store)
    make(store)
    assert (catalog_of(store.url, store.schema), steps_of(store)) == before


@pytest.mark.parametrize("steps", range(1, len(MIGRATIONS)))
async def test_the_script_brings_an_older_schema_up_to_date_and_keeps_its_jobs(
    store: PostgresStore, other: PostgresStore, steps: int
):  # O9
    make_by_us(store, steps)
    early = steps_of(store)
    with psycopg.connect(store.url) as connection:
        connection.execute(f"insert into {store.schema}.job (type, queue) values ('send', 'mail'), ('send', 'mail')")
        ids = [str(id) for (id,) in connection.execute(f"select id from {store.schema}.job order by seq").fetchall()]
    make_by_psql(store)
    make_by_us(other)
    assert catalog_of(store.url, store.schema) == catalog_of(other.url, other.schema)
    assert steps_of(store)[:steps] == early
    assert [step[:3] for step in steps_of(store)] == [step[:3] for step in steps_of(other)]
    driver = Driver(store, await store.connect())
    assert [job.id for job in await driver.jobs()] == ids


async def test_many_can_make_it_at_once_in_either_way(store: PostgresStore, other: PostgresStore):  # O9
    ways = (make_by_us, make_by_psql, make_by_another_client) * 3
    await asyncio.gather(*(asyncio.to_thread(make, store) for make in ways))
    make_by_us(other)
    assert catalog_of(store.url, store.schema) == catalog_of(other.url, other.schema)


def test_a_text_that_holds_our_own_quotes_is_quoted_with_others(store: PostgresStore):  # O9
    step = replace(MIGRATIONS[0], sql="create view onward.quotes as select $step$a$step$ || $script$b$script$ as both;")
    text = script(Schema(store.schema), [step])
    with psycopg.connect(store.url) as connection:
        connection.execute(text.encode())
        assert connection.execute(f"select * from {store.schema}.quotes").fetchall() == [("ab",)]


# What is refused ------------------------------------------------------------------------------------------------------


def refused_by_hand(store: PostgresStore, *words: str) -> None:
    """The script says why, and no more; psql ends as it was told to."""
    text = script(Schema(store.schema))
    stopped = psql(store.url, text, "-v", "ON_ERROR_STOP=1")
    assert stopped.returncode == 3
    for said in (stopped, psql(store.url, text)):
        assert said.stderr.count("ERROR") == 1
        for word in words:
            assert word in said.stderr


async def test_a_schema_from_the_future_is_refused(driver: Driver, store: PostgresStore):  # O9
    with psycopg.connect(store.url) as connection:
        connection.execute(f"insert into {store.schema}.migration (number, name, checksum) values (9999, 'later', 'x')")
    before = catalog_of(store.url, store.schema), steps_of(store)
    for ask in (store.connect, driver.engine.check):
        with pytest.raises(SchemaTooNew, match="upgrade Onward"):
            await ask()
    refused_by_hand(store, "is at step 9999", "upgrade Onward")
    assert (catalog_of(store.url, store.schema), steps_of(store)) == before


async def test_a_schema_whose_steps_are_not_those_shipped_is_refused(driver: Driver, store: PostgresStore):  # O9
    with psycopg.connect(store.url) as connection:
        connection.execute(f"update {store.schema}.migration set checksum = 'edited' where number = 2")
    with pytest.raises(SchemaChanged, match="0002"):
        await store.connect()
    refused_by_hand(store, "another step 2 (enqueue)", "fresh store")


async def test_a_schema_that_lacks_a_step_is_named_by_check_and_mended_by_open(store: PostgresStore):  # O9
    make_by_us(store, len(MIGRATIONS) - 1)
    engine = PostgresEngine(store.url, schema=store.schema)
    with pytest.raises(SchemaTooOld, match="run onward migrate"):
        await engine.check()
    await engine.open()
    assert (await engine.check()).schema == len(MIGRATIONS)
    await engine.close()


async def test_a_step_that_fails_leaves_the_schema_as_it_was(store: PostgresStore):  # O9
    database = PostgresEngine(store.url).database
    bad = replace(MIGRATIONS[-1], number=2, sql="create table onward.half (a int); select 1 / 0;")
    steps = [MIGRATIONS[0], bad]
    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(connection, Schema(store.schema), database, steps)
        assert catalog_of(store.url, store.schema) == []
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute(script(Schema(store.schema), steps).encode())
        assert catalog_of(store.url, store.schema) == []


@pytest.mark.parametrize(
    "name", ["", "Onward", "a b", 'a"b', "a;drop table x", "pg_jobs", "pg_catalog", "1a", "ä", "a" * 49, "on-ward"]
)
def test_a_schema_with_a_name_that_could_mean_something_else_is_refused(name: str):
    with pytest.raises(InvalidValue, match="schema"):
        PostgresEngine("postgresql://h/d", schema=name)


@pytest.mark.parametrize("name", ["public", "information_schema"])
def test_a_schema_that_is_for_everybody_cannot_be_ours(name: str):
    for make in (Schema, lambda name: PostgresEngine("postgresql://h/d", schema=name)):
        with pytest.raises(InvalidValue, match=r"a schema of its own, for example \?schema=onward") as refused:
            make(name)
        assert refused.value.field == "schema"
    with pytest.raises(InvalidValue, match="schema"):
        App(f"postgresql://h/d?schema={name}")
    PgBossEngine("postgresql://h/d", schema=name)  # it is somebody else's: we only look, and are beside it


FOREIGN = {
    "table": "create table {}.orders (id int)",
    "table of our ledger's name": "create table {}.migration (id int, name text)",
    "view": "create view {}.orders as select 1 as id",
    "sequence": "create sequence {}.orders",
    "function": "create function {}.orders() returns int language sql as 'select 1'",
    "domain": "create domain {}.orders as int",
    "operator": "create operator {}.=== (leftarg = int, rightarg = int, function = int4eq)",
}


@pytest.mark.parametrize("made", FOREIGN.values(), ids=FOREIGN)
async def test_a_schema_that_is_in_use_for_something_else_is_refused_and_left_alone(store: PostgresStore, made: str):
    with psycopg.connect(store.url) as connection:
        connection.execute(f"create schema {store.schema}")
        connection.execute(made.format(store.schema))
    before = catalog_of(store.url, store.schema)
    engine = PostgresEngine(store.url, schema=store.schema)
    for ask in (engine.check, engine.open):
        with pytest.raises(
            InvalidValue, match=rf"{store.schema}.*not Onward's: .*for example \?schema=onward"
        ) as refused:
            await ask()
        assert refused.value.field == "schema"
    refused_by_hand(store, f"schema {store.schema} holds objects that are not Onward's", "?schema=onward")
    assert catalog_of(store.url, store.schema) == before


def test_who_has_something_else_in_a_schema_of_the_usual_name_is_told_another():
    assert "?schema=onward_jobs" in script()
    assert "?schema=onward_jobs" not in script(Schema("shop"))


async def test_what_somebody_adds_to_our_schema_later_is_no_reason_to_refuse_it(driver: Driver, store: PostgresStore):
    with psycopg.connect(store.url) as connection:
        connection.execute(f"create view {store.schema}.mine as select id from {store.schema}.job")
    await store.connect()
    make_by_psql(store)


# Who may make it ------------------------------------------------------------------------------------------------------


@pytest.fixture
def owner(store: PostgresStore) -> Iterator[str]:
    """A role that may not make schemas."""
    name = f"owner_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {name} login")
        yield name
        connection.execute(f"drop owned by {name} cascade")
        connection.execute(f"drop role {name}")


def go_on_by_us(url: str, schema: str, steps: Sequence[Migration]) -> None:
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        migrate(connection, Schema(schema), PostgresEngine(url).database, steps)


def go_on_by_script(url: str, schema: str, steps: Sequence[Migration]) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(script(Schema(schema), steps).encode())


async def make_by_engine(url: str, schema: str) -> None:
    engine = PostgresEngine(url, schema=schema)
    await engine.open()
    assert (await engine.check()).schema == len(MIGRATIONS)
    await engine.close()


async def make_by_script(url: str, schema: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(script(Schema(schema)).encode())


MAKES = pytest.mark.parametrize("make", [make_by_engine, make_by_script])


@MAKES
@pytest.mark.parametrize("given", ["alter schema {0} owner to {1}", "grant usage, create on schema {0} to {1}"])
async def test_who_may_not_make_schemas_can_fill_an_empty_one(
    store: PostgresStore, owner: str, given: str, make: Any
):  # O9
    with psycopg.connect(store.url) as connection:
        connection.execute(f"create schema {store.schema}")
        connection.execute(f"alter default privileges in schema {store.schema} grant select on tables to {owner}")
        connection.execute(given.format(store.schema, owner))
    await make(make_conninfo(store.url, options=f"-c role={owner}"), store.schema)
    driver = Driver(store, await store.connect())
    assert (await driver.enqueue()).is_new


@pytest.mark.parametrize("go_on", [go_on_by_us, go_on_by_script])
async def test_what_somebody_else_has_added_does_not_keep_the_owner_from_going_on(
    store: PostgresStore, owner: str, go_on: Any
):  # O9
    """Workers get their leave again after a step, and nobody can give leave for what is not theirs."""
    worker = f"worker_{store.schema}"
    url = make_conninfo(store.url, options=f"-c role={owner}")
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create schema {store.schema} authorization {owner}")
        await make_by_engine(url, store.schema)
        connection.execute(f"create role {worker}")
        connection.execute(f"select {store.schema}.allow_worker('{worker}')")
        connection.execute(f"create table {store.schema}.mine (id int)")
        connection.execute(f"create function {store.schema}.mine() returns int language sql return 1")
        connection.execute(f"revoke all on function {store.schema}.mine from public")
        step = Migration(len(MIGRATIONS) + 1, "more", "create table onward.more (id int);")
        go_on(url, store.schema, (*MIGRATIONS, step))
        connection.execute(f"set role {worker}")
        assert connection.execute(f"select count(*) from {store.schema}.more").fetchall() == [(0,)]
        connection.execute("reset role")
        connection.execute(f"drop owned by {worker}")
        connection.execute(f"drop role {worker}")


async def test_who_may_not_make_schemas_and_has_none_is_told_whom_to_ask(store: PostgresStore, owner: str):
    engine = PostgresEngine(make_conninfo(store.url, options=f"-c role={owner}"), schema=store.schema)
    with pytest.raises(StoreUnavailable, match="let its owner run onward migrate"):
        await engine.open()


# Several --------------------------------------------------------------------------------------------------------------


async def test_two_schemas_of_one_database_know_nothing_of_each_other(driver: Driver, tmp_path: Path):
    other_store = PostgresStore(tmp_path)
    other = Driver(other_store, await other_store.connect())
    ref = await driver.add()
    assert await other.jobs() == ()
    assert await other.take() == ()
    await other.add()
    assert await driver.taken() == [ref]
    await other_store.close()
