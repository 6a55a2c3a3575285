"""Who keeps the database from cleaning up is named to ``onward doctor``, and nobody who does not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus, PGconn

from onward.engines.postgres.diagnostics import Diagnosis, diagnose
from onward.engines.postgres.statements import Schema
from onward.pg.caller_transaction import on_psycopg
from onward.pg.plan_runner import run
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore, other_database
from tests.conformance.processes import eventually
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of our own, which lets transactions be prepared and changes be decoded."""
    with PostgresServer.started(max_prepared_transactions="3", wal_level="logical", fsync="on") as server:
        yield server


@pytest.fixture
async def store(server: PostgresServer, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    """A schema on it."""
    store = PostgresStore(tmp_path)
    store.url = server.url()
    yield store
    await store.close()


def examined(store: PostgresStore, **settings: str) -> Diagnosis:
    """Look as another session does, at what is as young as can be."""
    address = make_conninfo(store.url, **settings)
    with psycopg.connect(address, cursor_factory=psycopg.RawCursor) as connection:
        return run(
            diagnose(Schema(store.schema), long_transaction=timedelta(0), old_slot_age=0), on_psycopg(connection)
        )


@contextmanager
def in_transaction(url: str, *statements: str) -> Iterator[int]:
    """Have a session that is idle in its transaction behind some statements; its number."""
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection.info.backend_pid
        connection.rollback()


READS = ("set transaction isolation level repeatable read", "select 'a reader'")
WRITES = ("select pg_current_xact_id(), 'a writer'",)


@pytest.mark.parametrize("statements", [READS, WRITES], ids=["reads", "writes"])
async def test_a_session_that_pins_the_horizon_is_named_with_its_statement(
    driver: Driver, store: PostgresStore, statements: tuple[str, ...]
):
    with in_transaction(store.url, *statements) as pid:
        (about,) = examined(store).warnings
    assert f"session {pid}" in about
    assert "idle in transaction" in about
    assert "'a " in about
    assert f"select pg_terminate_backend({pid})" in about


async def test_who_only_has_a_transaction_open_pins_nothing(driver: Driver, store: PostgresStore):
    with in_transaction(store.url, "select 'read committed'"):
        assert examined(store).warnings == []


async def test_of_two_the_one_is_named_that_holds_back_the_other(driver: Driver, store: PostgresStore):
    with in_transaction(store.url, *WRITES) as cause, in_transaction(store.url, *READS):
        (about,) = examined(store).warnings
    assert f"session {cause}" in about


@pytest.mark.parametrize("statements", [READS, WRITES], ids=["reads", "writes"])
async def test_a_session_of_another_database_is_not_accused(
    driver: Driver, store: PostgresStore, statements: tuple[str, ...]
):
    with in_transaction(other_database(store.url), *statements):
        assert examined(store).warnings == []
        with in_transaction(store.url, *READS) as pid:
            (about,) = examined(store).warnings
    assert f"session {pid}" in about


async def test_a_vacuum_is_not_accused_of_holding_up_others(driver: Driver, store: PostgresStore):
    with psycopg.connect(store.url, autocommit=True) as admin, psycopg.connect(store.url, autocommit=True) as slow:
        admin.execute(f"create table {store.schema}.wide as select repeat('x', 7000) from generate_series(1, 1000)")
        admin.execute(f"alter table {store.schema}.wide replica identity full")
        slow.execute("set vacuum_cost_delay = 100")
        slow.execute("set vacuum_cost_limit = 1")
        pid = slow.info.backend_pid

        async def has_begun() -> bool | None:
            progress = (
                "select from pg_stat_progress_vacuum p join pg_stat_activity using (pid) where backend_xmin is not null"
            )
            return admin.execute(f"{progress} and pid = %s", [pid]).fetchone() is not None or None

        vacuum = asyncio.create_task(asyncio.to_thread(slow.execute, f"vacuum {store.schema}.wide"))
        await eventually(has_begun)
        assert examined(store).warnings == []
        admin.execute("select pg_cancel_backend(%s)", [pid])
        with pytest.raises(psycopg.errors.QueryCanceled):
            await vacuum


async def test_a_role_that_may_not_look_at_others_is_told_so(driver: Driver, store: PostgresStore):
    role = f"Worker {store.schema}"
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute(f'create role "{role}" login')
        try:
            admin.execute(f"select {store.schema}.allow_worker(%s)", [role])
            with in_transaction(store.url, *WRITES) as pid:
                (told,) = examined(store, user=role).warnings
                assert "cannot be seen" in told
                assert f'grant pg_monitor to "{role}"' in told
                admin.execute(f'grant pg_monitor to "{role}"')
                (told,) = examined(store, user=role).warnings
                assert f"session {pid}" in told
        finally:
            admin.execute(f'drop owned by "{role}"')
            admin.execute(f'drop role "{role}"')


async def test_where_nobody_is_nobody_is_named(driver: Driver, store: PostgresStore):
    _, problems, warnings = examined(store)
    assert (problems, warnings) == ([], [])


async def test_a_prepared_transaction_is_named(driver: Driver, store: PostgresStore):
    with psycopg.connect(store.url, autocommit=True) as admin, psycopg.connect(other_database(store.url)) as other:
        other.execute("select pg_current_xact_id()")
        other.execute("prepare transaction 'elsewhere'")
        admin.execute("begin; select pg_current_xact_id(); prepare transaction 'it''s here'")
        (about,) = examined(store).warnings
        admin.execute("rollback prepared 'it''s here'")
        other.rollback()
        other.autocommit = True
        other.execute("rollback prepared 'elsewhere'")
    assert "rollback prepared 'it''s here'" in about


async def test_a_standby_that_tells_what_its_queries_need_is_named(driver: Driver, store: PostgresStore):
    with standby(store.url):
        (about,) = await eventually(lambda: found(store))
    assert "the standby stand_in" in about
    assert "hot_standby_feedback = off" in about


async def test_a_standby_with_a_slot_is_named_by_its_slot(driver: Driver, store: PostgresStore):
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute("select pg_create_physical_replication_slot('of_a_standby')")
        with standby(store.url, slot="of_a_standby"):
            (about,) = await eventually(lambda: found(store))
        assert "(active)" in about

        async def is_left() -> str | None:
            (about,) = await found(store) or [""]
            return about if "(inactive)" in about else None

        about = await eventually(is_left)
        admin.execute("select pg_drop_replication_slot('of_a_standby')")
    assert "nothing that ended since can be cleaned up" in about
    assert "select pg_drop_replication_slot('of_a_standby')" in about


async def test_a_slot_that_decodes_is_not_accused_of_more_than_it_does(driver: Driver, store: PostgresStore):
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute("select pg_create_logical_replication_slot('changes', 'pgoutput')")
        admin.execute("select pg_current_xact_id()")
        (about,) = examined(store).warnings
        admin.execute("select pg_drop_replication_slot('changes')")
    assert "the database's own tables" in about
    assert "select pg_drop_replication_slot('changes')" in about


async def found(store: PostgresStore) -> list[str] | None:
    """Say who is named, if somebody is; something is written before, so that what is held back is old."""
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute("select pg_current_xact_id()")
    return examined(store).warnings or None


@contextmanager
def standby(url: str, slot: str | None = None) -> Iterator[None]:
    """Speak to a server as a standby does on which a query began just now."""
    with psycopg.connect(url, autocommit=True) as admin:
        ((needed, at),) = admin.execute(
            "select pg_current_xact_id()::text::bigint, pg_current_wal_flush_lsn()"
        ).fetchall()
    pgconn = PGconn.connect(make_conninfo(url, replication="true", application_name="stand_in").encode())
    try:
        begun = pgconn.exec_(f"START_REPLICATION {f'SLOT {slot} ' if slot else ''}PHYSICAL {at}".encode())
        assert begun.status == ExecStatus.COPY_BOTH, pgconn.error_message
        # A message of hot standby feedback: when, and the oldest transactions needed, each with its epoch.
        pgconn.put_copy_data(struct.pack("!cqIIII", b"h", 0, needed, 0, 0, 0))
        pgconn.flush()
        yield
    finally:
        pgconn.finish()
