"""Our sessions are as they have to be, whatever is set for the role, the database or the server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onward.engine.values import ClaimRequest
from onward.engines.postgres.engine import PostgresEngine
from onward.errors import StoreUnavailable
from onward.job import UniformJobs
from onward.pg import database as database_module
from onward.pg.database import Database
from tests.conformance.driver import new_job
from tests.conformance.postgres_case import PostgresStore
from tests.servers.pgbouncer import pooled_url
from tests.servers.postgres import postgres_url

SET = {
    "client_encoding": "LATIN1",
    "default_transaction_isolation": "serializable",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "standard_conforming_strings": "off",
}
HAVE = ("UTF8", "read committed", "ISO", "postgres", "on")
SHOW = "select " + ", ".join(f"split_part(current_setting('{name}'), ',', 1)" for name in SET)


@pytest.fixture
def odd(store: PostgresStore) -> Iterator[str]:
    """The address of a database of a user who likes things otherwise."""
    name = f"odd_{store.schema}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"create database {name}")
        for setting, value in SET.items():
            connection.execute(f"alter database {name} set {setting} = '{value}'")
        yield make_conninfo(postgres_url(), dbname=name)
        connection.execute(f"drop database {name} with (force)")


async def test_sessions_are_as_they_have_to_be_from_their_first_statement_on(odd: str):
    database = Database(odd)
    with database.connect() as connection:
        assert connection.query(SHOW) == [HAVE]
        read = connection.query("select timestamptz '2026-02-01 03:04:05+00', interval '5 s'")
        assert read == [(datetime(2026, 2, 1, 3, 4, 5, tzinfo=UTC), timedelta(seconds=5))]
        database.detect_settings(connection)
    waiting = await database.aconnect()
    assert await waiting.query(SHOW) == [HAVE]
    await waiting.close()


@pytest.mark.parametrize("count", [1, 300], ids=["one", "copied"])
async def test_text_comes_back_as_it_was(odd: str, count: int):  # O2
    payload = '{"text":"naïve – 東京"}'
    engine = PostgresEngine(odd)
    await engine.open()
    try:
        await engine.enqueue(UniformJobs(new_job(), [payload] * count))
        claims = (await engine.claim(ClaimRequest(worker_id="w", slots=1000))).claims
        assert [claim.payload for claim in claims] == [payload] * count
    finally:
        await engine.close()


@pytest.mark.parametrize("where", ["url", "environment"])
def test_what_else_an_address_says_about_a_session_holds(where: str, monkeypatch: pytest.MonkeyPatch):
    said = r"-c statement_timeout=1234 -c search_path=a,\ b -c DateStyle=German -c client_encoding=LATIN1"
    url = postgres_url()
    if where == "url":
        url = make_conninfo(url, options=said, client_encoding="LATIN1")
    else:
        monkeypatch.setenv("PGOPTIONS", said)
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with Database(url).connect() as connection:
        asked = connection.query("select current_setting('statement_timeout'), current_setting('search_path')")
        assert asked == [("1234ms", "a, b")]
        assert connection.query(SHOW) == [HAVE]


CHECKS = "select current_setting('client_connection_check_interval')"


@pytest.mark.parametrize(("said", "found"), [("", "2s"), ("-c client_connection_check_interval=7s", "7s")])
def test_the_server_looks_whether_we_are_still_there_unless_an_address_says_otherwise(said: str, found: str):
    with Database(make_conninfo(postgres_url(), options=said)).connect() as connection:
        assert connection.query(CHECKS) == [(found,)]


async def test_a_server_that_cannot_look_is_taken_as_it_is(odd: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        database_module._PREFERRED_SETTINGS, "client_connection_check_interval", "-5"
    )  # as where it must be 0
    database = Database(odd)
    for _ in range(2):
        with database.connect() as connection:
            assert connection.query(CHECKS) == [("0",)]
            assert connection.query(SHOW) == [HAVE]
    waiting = await Database(odd).aconnect()
    assert await waiting.query(CHECKS) == [("0",)]
    await waiting.close()


@pytest.mark.parametrize("said", [{"options": "endpoint=ep-cool-night"}, {"service": "jobs"}])
def test_what_is_said_to_a_proxy_or_in_a_file_is_left_alone(said: dict[str, str]):
    used = conninfo_to_dict(Database(make_conninfo("postgresql://h/d", **said))._conninfo)
    assert used.get("options") == said.get("options")


async def test_a_pooler_that_does_not_take_it_is_not_asked_again(store: PostgresStore):
    database = Database(pooled_url())
    for _ in range(2):
        with database.connect() as connection:
            database.detect_settings(connection)
        assert "options" not in conninfo_to_dict(database._conninfo)
    waiting = await Database(pooled_url()).aconnect()
    assert await waiting.query("select 1") == [(1,)]
    await waiting.close()


@pytest.mark.parametrize("name", ["default_transaction_isolation", "IntervalStyle"])
async def test_behind_a_pooler_sessions_that_are_otherwise_are_refused_with_a_remedy(odd: str, name: str):
    dbname = str(conninfo_to_dict(odd)["dbname"])
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        for other in SET.keys() - {name}:
            connection.execute(f"alter database {dbname} reset {other}")
    engine = PostgresEngine(make_conninfo(pooled_url(), dbname=dbname))
    with pytest.raises(StoreUnavailable, match=f'alter role "postgres" set {name} = '):
        await engine.open()
