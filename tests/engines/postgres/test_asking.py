"""How our own connections ask: without a cursor, and without keeping more on the server than is used again."""

from __future__ import annotations

import psycopg
import pytest

from onward.postgresql import patience
from onward.postgresql.database import Database
from onward.postgresql.patience import PatientConnection
from tests.servers.postgres import postgres_url

KEPT = "select count(*)::int from pg_prepared_statements"


@pytest.fixture
def connection():
    database = Database(postgres_url())
    database.is_pooled = False
    with database.connect() as connection:
        yield connection


def test_values_come_back_as_they_are(connection: PatientConnection):
    asked = connection.ask("select $1::text, $2::bigint, $3::text, $4::bytea[]", ["ä", 2**40, None, [b"\0"]])
    assert asked == [("ä", 2**40, None, [b"\0"])]


def test_what_is_asked_often_is_kept_by_the_server_and_what_is_not_is_not(connection: PatientConnection):
    for number in range(5):
        assert connection.ask("select $1::bigint + 1", [number]) == [(number + 1,)]
    assert connection.execute(KEPT).fetchall() == [(1,)]
    connection.ask("select $1::bigint + 2", [1])
    assert connection.execute(KEPT).fetchall() == [(1,)]


def test_no_more_is_kept_than_so_many(connection: PatientConnection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(patience, "_MOST_KEPT", 3)
    for number in range(9):
        for _ in range(4):
            assert connection.ask(f"select $1::bigint + {number}", [1]) == [(number + 1,)]
    assert connection.execute(KEPT).fetchall() == [(3,)]


def test_an_error_is_raised_and_the_connection_goes_on(connection: PatientConnection):
    for _ in range(4):
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.ask("select 1 / $1::bigint", [0])
    assert connection.ask("select 1 / $1::bigint", [1]) == [(1,)]
