"""A later step is applied while workers of the version before go on, and holds nobody up while it waits (O9)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onward.app import App
from onward.context import JobContext
from onward.control_flow import DoNotRetry
from onward.engine.migrations import Migration
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.migrations import MIGRATIONS, migrate, script
from onward.engines.postgres.statements import Schema
from onward.errors import SchemaTooNew, StoreBusy
from onward.lifecycle import Complete, JobStatus
from onward.pg import migrations
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually

DEADLINE = 30
"""Seconds until what must come is given up; never reached where it does."""

COLOUR = Migration(
    len(MIGRATIONS) + 1,
    "colour",
    """
    -- A column with a default, an index on it, a trigger and a table: what an ordinary later version would bring.
    alter table onward.job add column colour text not null default 'grey';
    create index job_colour on onward.job (colour);
    create table onward.paint (seq bigint primary key);
    alter table onward.paint enable row level security;
    create function onward.paint() returns trigger language plpgsql as $$
    begin
      insert into onward.paint values (new.seq);
      return null;
    end $$;
    create trigger job_paint after insert on onward.job for each row execute function onward.paint();
    """,
)
LATER = (*MIGRATIONS, COLOUR)
ANEW = Migration(
    len(MIGRATIONS) + 1,
    "anew",
    """
    -- A function that takes one thing more cannot be replaced: it is another one, and nobody may call it.
    drop function onward.cancel;
    create function onward.cancel(id uuid, reason text default 'cancelled', gently boolean default true) returns boolean
      language sql security definer set search_path = pg_catalog, pg_temp
      return exists (select from onward.job j where j.id = cancel.id);
    revoke all on function onward.cancel from public;
    """,
)


def upgrade(store: PostgresStore, steps: Sequence[Migration] = LATER) -> list[Migration]:
    """Apply the later step as the engine of the later version does."""
    database = PostgresEngine(store.url).database
    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        return migrate(connection, Schema(store.schema), database, steps)


def upgrade_by_hand(store: PostgresStore, steps: Sequence[Migration] = LATER) -> None:
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(script(Schema(store.schema), steps).encode())


WAYS = pytest.mark.parametrize("way", [upgrade, upgrade_by_hand])
Way = Callable[..., Any]


@pytest.fixture
def roles(store: PostgresStore, driver: Driver) -> Iterator[tuple[str, str]]:
    """Two roles that may do nothing yet."""
    names = f"one_{store.schema}", f"two_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        for name in names:
            connection.execute(f"create role {name} login")
        yield names
        for name in names:
            connection.execute(f"drop owned by {name}")
            connection.execute(f"drop role {name}")


def run(store: PostgresStore, statement: str, role: str = "none") -> list[tuple[Any, ...]]:
    """Run a statement as somebody, or as the owner."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"set role {role}")
        return connection.execute(statement.replace("onward.", f"{store.schema}.").encode()).fetchall()


@contextmanager
def left_open(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has read the jobs, and does not end."""
    with psycopg.connect(store.url, application_name="a_report") as connection:
        connection.execute(f"select count(*) from {store.schema}.job")
        yield connection
        connection.rollback()


def has_colours(store: PostgresStore) -> bool:
    with psycopg.connect(store.url) as connection:
        asked = "select from pg_attribute where attrelid = %s::regclass and attname = 'colour'"
        return connection.execute(asked, [f"{store.schema}.job"]).fetchone() is not None


async def wants_the_table(store: PostgresStore) -> int | None:
    """Say which session waits to have the jobs for itself alone."""
    with psycopg.connect(store.url) as connection:
        asked = (
            "select pid from pg_locks where relation = %s::regclass and mode = 'AccessExclusiveLock' and not granted"
        )
        found = connection.execute(asked, [f"{store.schema}.job"]).fetchone()
        return None if found is None else int(found[0])


# While workers work ---------------------------------------------------------------------------------------------------


@WAYS
async def test_an_upgrade_loses_no_job_and_the_worker_of_the_version_before_goes_on(
    store: PostgresStore, way: Way
):  # O9
    """The worker has its statements prepared and a job in hand when the schema changes, and jobs keep coming."""
    runs: Counter[str] = Counter()
    held, start_after, enough = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with App(engine=PostgresEngine(store.url, schema=store.schema)) as app:

        @app.task
        async def work(context: JobContext) -> str:
            runs[context.id] += 1
            if runs.total() == 50:
                enough.set()
            return "done"

        @app.task
        async def hold(context: JobContext) -> str:
            runs[context.id] += 1
            held.set()
            await start_after.wait()
            return "held"

        @app.task
        async def refuse(context: JobContext) -> None:
            runs[context.id] += 1
            raise DoNotRetry("never")

        async def produce() -> None:
            while True:
                to_do.append((await work.enqueue()).ref)

        async def more_than(count: int) -> bool | None:
            return len(to_do) > count or None

        async with app.worker(concurrency=4):
            to_do = [handle.ref for handle in await app.enqueue_many([work.job() for _ in range(200)])]
            later = [(await work.using(delay=timedelta(hours=1)).enqueue()).ref for _ in range(3)]
            never = (await refuse.enqueue()).ref
            kept = (await hold.enqueue()).ref
            producer = asyncio.create_task(produce())
            async with asyncio.timeout(DEADLINE):
                await held.wait()
                await enough.wait()

            await asyncio.to_thread(way, store)

            assert has_colours(store)
            many = len(to_do) + 50
            await eventually(lambda: more_than(many))
            producer.cancel()
            await asyncio.wait([producer])
            since = await work.enqueue()
            assert await since.result(timeout=DEADLINE) == "done"
            start_after.set()

            async def all_have_ended() -> bool | None:
                return set(runs) >= {ref.id for ref in (*to_do, never, kept, since.ref)} or None

            await eventually(all_have_ended)
        driver = Driver(store, app._core.engine)
        jobs = {job.ref: job.status for job in await driver.jobs()}
    assert set(runs.values()) == {1}
    assert set(jobs) >= {*to_do, *later, never, kept, since.ref}
    assert {jobs[ref] for ref in (*to_do, kept, since.ref)} == {JobStatus.COMPLETED}
    assert {jobs[ref] for ref in later} == {JobStatus.SCHEDULED}
    assert jobs[never] is JobStatus.FAILED
    newcomer = PostgresEngine(store.url, schema=store.schema)
    with pytest.raises(SchemaTooNew, match=f"has schema {len(LATER)}, this version of Onward knows.*upgrade Onward"):
        await newcomer.open()
    assert upgrade(store) == []


# Who may do what ------------------------------------------------------------------------------------------------------


@WAYS
async def test_workers_that_own_nothing_go_on_after_an_upgrade(
    store: PostgresStore, roles: tuple[str, str], way: Way
):  # O9, G8
    """The table that comes with the step is written by a trigger, and so by workers of the version before."""
    for role in roles:
        run(store, f"select onward.allow_worker('{role}')")
    address = make_conninfo(store.url, options=f"-c role={roles[0]}")
    engine = PostgresEngine(address, schema=store.schema, clock=store.clock)
    await engine.open()
    worker = Driver(store, engine)  # type: ignore[arg-type]
    try:
        await worker.add()
        way(store)
        await worker.add()
        assert [await worker.end(claim, Complete()) for claim in await worker.take(slots=2)] == [True, True]
    finally:
        await engine.close()
    assert run(store, "select count(*) from onward.paint", roles[1]) == [(1,)]
    way(store)


@WAYS
async def test_a_server_goes_on_after_an_upgrade(store: PostgresStore, roles: tuple[str, str], way: Way):  # O9, S5
    server, worker = roles
    run(store, f"select onward.allow_server('{server}')")
    run(store, f"select onward.allow_worker('{worker}')")
    way(store)
    assert run(store, "select count(*) from onward.audit", server) == [(0,)]
    assert run(store, "select count(*) from onward.paint", server) == [(0,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(store, "select count(*) from onward.audit", worker)


@WAYS
async def test_a_reader_of_the_jobs_is_no_worker_after_an_upgrade(
    driver: Driver, store: PostgresStore, roles: tuple[str, str], way: Way
):  # G8
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"grant usage on schema {store.schema} to {roles[0]}")
        connection.execute(f"grant select on {store.schema}.job to {roles[0]}")
        connection.execute(f"create policy worker_hours on {store.schema}.job to {roles[0]} using (true)")
    way(store)
    assert run(store, "select count(*) from onward.job", roles[0]) == [(0,)]
    for statement in ("select count(*) from onward.paint", "delete from onward.job returning id"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(store, statement, roles[0])


@WAYS
async def test_a_producer_goes_on_after_a_step_that_makes_a_function_anew(
    driver: Driver, store: PostgresStore, roles: tuple[str, str], way: Way
):  # O9, G8
    producer, half = roles
    run(store, f"select onward.allow_producer('{producer}', may_cancel => true)")
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"grant usage on schema {store.schema} to {half}")
        connection.execute(f"grant execute on function {store.schema}.enqueue to {half}")
    way(store, (*MIGRATIONS, ANEW))
    ((id,),) = run(store, "select onward.enqueue('send')", producer)
    assert run(store, f"select onward.cancel('{id}')", producer) == [(True,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(store, "select count(*) from onward.job", producer)
    run(store, "select onward.enqueue('send')", half)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(store, f"select onward.cancel('{id}')", half)


# While somebody holds the tables --------------------------------------------------------------------------------------


@WAYS
async def test_a_step_that_needs_no_table_waits_for_none_on_behalf_of_workers(
    driver: Driver, store: PostgresStore, roles: tuple[str, str], way: Way, monkeypatch: pytest.MonkeyPatch
):  # O9
    monkeypatch.setattr(migrations, "MAX_TRIES", 1)
    run(store, f"select onward.allow_worker('{roles[0]}')")
    with left_open(store):
        way(store, (*MIGRATIONS, ANEW))


@WAYS
async def test_a_step_that_waits_for_a_table_holds_nobody_up(driver: Driver, store: PostgresStore, way: Way):  # O9
    await driver.add()
    with left_open(store):
        upgrading = asyncio.create_task(asyncio.to_thread(way, store))
        for _ in range(2):
            await eventually(lambda: wants_the_table(store))
            async with asyncio.timeout(DEADLINE):
                assert (await driver.enqueue()).is_new
                assert await driver.end(await driver.take_one(), Complete())
        assert not upgrading.done()
    await upgrading
    assert has_colours(store)
    assert await driver.end(await driver.take_one(), Complete())


async def test_whoever_holds_the_tables_for_too_long_is_named(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):  # O9
    monkeypatch.setattr(migrations, "MAX_TRIES", 2)
    monkeypatch.setattr(migrations, "RETRY_DELAY", 0.01)
    with left_open(store) as holder:
        named = f"session {holder.info.backend_pid} a_report holds its tables"
        with pytest.raises(StoreBusy, match=f"not brought up to date: {named}.*try again"):
            upgrade(store)
        assert [record.getMessage().count(named) for record in caplog.records] == [1]
        with pytest.raises(psycopg.errors.LockNotAvailable, match=f"not brought up to date: {named}.*try again"):
            upgrade_by_hand(store)
        assert not has_colours(store)
    assert upgrade(store) == [COLOUR]
    assert (await driver.enqueue()).is_new


async def test_of_many_that_would_wait_for_a_table_one_does(driver: Driver, store: PostgresStore):  # O9
    """If each tried as soon as another paused, workers would get nowhere."""
    with left_open(store):
        upgrading = [asyncio.create_task(asyncio.to_thread(way, store)) for way in (upgrade, upgrade_by_hand) * 3]
        wait_seconds = set()
        for _ in range(3):
            wait_seconds.add(await eventually(lambda: wants_the_table(store)))
            async with asyncio.timeout(DEADLINE):
                assert (await driver.enqueue()).is_new
        assert len(wait_seconds) == 1
    await asyncio.gather(*upgrading)
    assert has_colours(store)
