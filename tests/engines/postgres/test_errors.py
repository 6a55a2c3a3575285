"""What goes wrong between us and the server: said in plain words with a remedy, and over when it is over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import FinishedPGconn

from onward.engines.postgres.engine import PostgresEngine
from onward.errors import (
    OnwardError,
    SchemaTooOld,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
)
from onward.lifecycle import Complete
from onward.pg.errors import translate
from onward.pg.migrations import check_version
from tests.conformance.driver import Driver, worker_info
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually
from tests.servers.postgres import PostgresServer

DEADLINE = 30
"""Seconds until what must come is given up; never reached where it does."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of our own, which can be stopped."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def store(server: PostgresServer, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    """A schema on it."""
    store = PostgresStore(tmp_path)
    store.url = server.url()
    yield store
    await store.close()


def as_admin(server: PostgresServer, *statements: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


# A server that goes away ----------------------------------------------------------------------------------------------


async def test_a_server_that_was_restarted_is_found_again_without_anybody_noticing(
    driver: Driver, server: PostgresServer
):  # X3
    ref = await driver.add()
    await asyncio.to_thread(driver.engine.heartbeat_sync, worker_info("worker-1"), [])
    server.stop(signal.SIGQUIT)
    server.start()
    claim = await driver.take_one()
    assert claim.ref == ref
    assert not (await asyncio.to_thread(driver.engine.heartbeat_sync, worker_info("worker-1"), [claim])).lost
    assert await driver.end(claim, Complete())


async def test_while_the_server_is_away_every_verb_says_so_and_afterwards_it_works(
    driver: Driver, server: PostgresServer
):
    await driver.add()
    server.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="is it running"):
                await driver.add()
        with pytest.raises(StoreUnavailable, match="is it running"):
            await asyncio.to_thread(driver.engine.heartbeat_sync, worker_info("worker-1"), [])
        with pytest.raises(StoreUnavailable, match="is it running"):
            await PostgresEngine(server.url(), schema="x").open()
    finally:
        server.start()
    assert (await driver.enqueue()).is_new
    assert len(await driver.taken()) == 2


async def test_a_listener_hears_again_after_the_server_was_away(driver: Driver, server: PostgresServer):
    other = Driver(driver.store, await driver.store.connect())
    async with aclosing(other.engine.signals(["*"])) as signals:  # type: ignore[type-var]
        await anext(signals)
        server.stop(signal.SIGQUIT)
        server.start()
        ref = await driver.add()
        async with asyncio.timeout(DEADLINE):
            while [claim.ref for claim in await other.take()] != [ref]:
                await anext(signals)


async def test_a_connection_that_is_cut_in_the_middle_of_a_statement_is_an_error_and_the_next_one_works(
    driver: Driver, store: PostgresStore
):  # X3
    ref = await driver.add()
    with psycopg.connect(store.url) as blocker, psycopg.connect(store.url, autocommit=True) as admin:
        blocker.execute(f"select from {store.schema}.job for update")

        async def is_waiting() -> int | None:
            found = admin.execute(
                "select pid from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'onward'"
            ).fetchone()
            return None if found is None else int(found[0])

        cancelling = asyncio.ensure_future(driver.cancel(ref))
        admin.execute("select pg_terminate_backend(%s)", [await eventually(is_waiting)])
        with pytest.raises(StoreUnavailable):
            await cancelling
    assert [changed.ref for changed in await driver.cancel(ref)] == [ref]


async def test_idle_connections_that_were_cut_are_replaced_unseen(driver: Driver, server: PostgresServer):
    await asyncio.gather(*[driver.add() for _ in range(20)], *[driver.taken() for _ in range(4)])
    with psycopg.connect(server.url(), autocommit=True) as admin:
        ours = "from pg_stat_activity where application_name = 'onward'"
        admin.execute(f"select pg_terminate_backend(pid) {ours}")

        async def all_gone() -> bool | None:
            return admin.execute(f"select count(*) {ours}").fetchone() == (0,) or None

        await eventually(all_gone)
    assert (await driver.enqueue()).is_new


# Addresses and rights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"host": "/nowhere"}, StoreUnavailable, "is it running"),
        ({"host": "no.host.invalid"}, StoreUnavailable, "no such host"),
        ({"database": "no_such_database"}, StoreUnavailable, "createdb -h .* no_such_database$"),
        ({"user": "nobody_knows"}, StoreUnavailable, "createuser -h .* nobody_knows$"),
        ({"user": "nologin"}, StoreUnavailable, 'alter role "nologin" login'),
        ({"user": "locked"}, StoreUnavailable, "password"),
        ({"user": "locked", "password": "swordfish"}, StoreUnavailable, "refused the user or the password"),
        ({"user": "few"}, StoreBusy, "max_connections"),
        ({"user": "reader"}, StoreReadOnly, "primary"),
        ({"user": "guest"}, StoreUnavailable, r"allow_worker\('guest'\)"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
async def test_what_is_wrong_with_an_address_or_a_user_is_said_with_a_remedy_and_without_the_password(
    server: PostgresServer, settings: dict[str, str], kind: type[OnwardError], words: str
):
    as_admin(
        server,
        *[f"drop role if exists {role}" for role in ("locked", "few", "reader", "guest", "nologin")],
        "create role locked login password 'right'",
        "create role few login connection limit 0",
        "create role reader login",
        "alter role reader set default_transaction_read_only = on",
        "create role guest login",
        "create role nologin",
    )
    rules = server.data / "pg_hba.conf"
    if "locked" not in rules.read_text():
        rules.write_text(f"local all locked scram-sha-256\n{rules.read_text()}")
        as_admin(server, "select pg_reload_conf()")
    engine = PostgresEngine(server.url(**settings), schema="elsewhere")
    with pytest.raises(kind, match=words) as raised:
        await engine.open()
    with pytest.raises((kind, SchemaTooOld)):
        await engine.check()
    assert "swordfish" not in str(raised.value)
    assert "swordfish" not in str(engine.describe())


@pytest.mark.parametrize(
    ("said", "used_password", "meant"),
    [
        ("FATAL:  Datenbank »shop« existiert nicht", True, "make it first: createdb -h db1 -p 5433 shop"),
        ("FATAL:  le rôle « web » n'existe pas", False, "make it first: createuser -h db1 -p 5433 web"),
        ("FATAL:  Passwort-Authentifizierung für Benutzer »web« fehlgeschlagen", True, "refused the user or the pass"),
        ("ВАЖНО:  этого не будет", False, "check the user, the password and the database"),
        ("Connection refused", False, "is it running"),
        ('FATAL:  role "database" does not exist', False, "createuser"),
    ],
)
def test_a_server_that_speaks_another_language_is_understood(said: str, used_password: bool, meant: str):
    pgconn = FinishedPGconn(db=b"shop", user=b"web", host=b"db1", port=b"5433", used_password=used_password)
    message = f'connection failed: connection to server at "database" (::1), port 5433 failed: {said}'
    error = translate(psycopg.OperationalError(message, pgconn=pgconn), "PostgreSQL")
    assert isinstance(error, StoreUnavailable)
    assert meant in str(error)


async def test_a_statement_that_is_stopped_for_taking_too_long_is_the_store_being_busy(
    driver: Driver, store: PostgresStore, server: PostgresServer
):
    ref = await driver.add()
    as_admin(
        server,
        "drop role if exists hasty",
        "create role hasty login superuser",
        "alter role hasty set statement_timeout = 50",
    )
    engine = PostgresEngine(server.url(user="hasty"), schema=store.schema, clock=store.clock)
    await engine.open()
    with psycopg.connect(store.url) as blocker:
        blocker.execute(f"select from {store.schema}.job for update")
        with pytest.raises(StoreBusy, match="onward doctor"):
            await Driver(store, engine).cancel(ref)  # type: ignore[arg-type]
    await engine.close()


def test_a_server_that_is_too_old_is_refused():
    class Old:
        class info:  # noqa: N801
            server_version = 130_010

    with pytest.raises(StoreUnavailable, match="PostgreSQL 13, Onward needs 14"):
        check_version(Old, PostgresEngine("postgresql://h/d").database)  # type: ignore[arg-type]


async def test_what_is_not_open_says_so(server: PostgresServer):
    engine = PostgresEngine(server.url(), schema="never_opened")
    with pytest.raises(StoreUnavailable, match="not open"):
        await engine.get("x")
    with pytest.raises(SchemaTooOld, match="onward migrate"):
        await engine.check()
