"""How our own connections ask: without a cursor, and without keeping more on the server than is used again."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.waiting import Wait

from onward.pg.database import Database
from onward.pg.plan_runner import Rows, Statement
from onward.pg.pools import ConnectionPools
from onward.pg.timed_connection import TimedConnection
from tests.engines.postgres.turns import turns_of_the_loop
from tests.servers.postgres import postgres_url

KEPT = "select count(*)::int from pg_prepared_statements"


@pytest.fixture
def connection():
    database = Database(postgres_url())
    database.is_pooled = False
    with database.connect() as connection:
        yield connection


def test_values_come_back_as_they_are(connection: TimedConnection):
    asked = connection.query("select $1::text, $2::bigint, $3::text, $4::bytea[]", ["ä", 2**40, None, [b"\0"]])
    assert asked == [("ä", 2**40, None, [b"\0"])]


def test_what_is_asked_often_is_kept_by_the_server_and_what_is_not_is_not(connection: TimedConnection):
    for number in range(5):
        assert connection.query("select $1::bigint + 1", [number]) == [(number + 1,)]
    assert connection.execute(KEPT).fetchall() == [(1,)]
    connection.query("select $1::bigint + 2", [1])
    assert connection.execute(KEPT).fetchall() == [(1,)]


def test_no_more_is_kept_than_so_many(connection: TimedConnection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onward.pg.timed_connection._MAX_PREPARED", 3)
    for number in range(9):
        for _ in range(4):
            assert connection.query(f"select $1::bigint + {number}", [1]) == [(number + 1,)]
    assert connection.execute(KEPT).fetchall() == [(3,)]


def test_how_many_rows_were_changed_is_said(connection: TimedConnection):
    connection.execute("create temporary table rows (n bigint)")
    for number in range(5):  # prepared or not
        assert connection.execute_rowcount("insert into rows select generate_series(1, $1::bigint)", [number]) == number


async def test_who_waits_on_the_spot_has_late_answers_too_and_holds_nobody_up_for_long():
    database = Database(postgres_url())
    database.is_pooled = False
    connection = await database.aconnect()
    await connection.execute("create temporary table rows (n float8)")
    insert = "insert into rows select $1::float8 from pg_sleep($1::float8)"
    at_once = 0
    try:
        async with turns_of_the_loop() as turns:
            for late in (0, 0, 0, 0, 0, 0, 0.05, 0, 0.05, 0):
                turns.count = 0
                done = connection.try_execute(insert, [late])
                at_once += done is not None
                assert (await connection.execute_rowcount(insert, [late]) if done is None else done) == 1
                assert turns.count > 10 or not late
        rows = await connection.query("select n from rows")
    finally:
        await connection.close()
    assert [n for (n,) in rows] == [0, 0, 0, 0, 0, 0, 0.05, 0, 0.05, 0]
    assert at_once


@pytest.mark.parametrize("copies", [False, True], ids=["statement", "copy"])
@pytest.mark.parametrize("seconds", [30.0, None], ids=["patient", "at_leisure"])
async def test_who_is_cancelled_while_much_is_still_sent_learns_of_that_and_the_connection_can_be_used(
    seconds: float | None, copies: bool
):
    """Or a part of a worker would take its end for a fault of the store, try again, and never end."""
    connection = await Database(postgres_url()).aconnect()
    try:
        connection.query_timeout = seconds
        await connection.execute("create temporary table lines (line text)")
        much, begun = "x" * 20_000_000, asyncio.Event()

        def lines() -> Rows:
            yield b""
            begun.set()
            while not asked.cancelling():
                yield f"{much[:1_000_000]}\n".encode()

        async def ask() -> None:
            if copies:
                await connection.execute_statement(Statement("select $1::text; copy lines from stdin", ["a"], lines()))
            else:
                begun.set()
                await connection.execute_statement(Statement("insert into lines values ($1::text)", [much]))

        asked = asyncio.create_task(ask())
        await begun.wait()  # and until so much was said that the rest has to wait: before, nobody else has a turn
        asked.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert await connection.query("select 1") == [(1,)]
    finally:
        await connection.close()


async def test_whatever_the_driver_says_to_one_who_is_cancelled_that_is_what_it_hears_and_the_connection_is_let_go():
    connections = ConnectionPools(Database(postgres_url()))
    connections.open()
    begun = asyncio.Event()

    def faulty(pgconn: PGconn) -> PQGen[None]:
        pgconn.send_query(b"select pg_sleep(3)")  # the server does not see that nobody waits any more
        pgconn.flush()
        begun.set()
        while not asked.cancelling():
            yield Wait.R
        raise ZeroDivisionError

    async def ask() -> None:
        async with connections.borrowed() as connection:
            await connection.wait(faulty(connection.pgconn))

    asked = asyncio.create_task(ask())
    async with asyncio.timeout(30):
        await begun.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert connections.loop_pool().idle == []
    await connections.close()


def test_an_error_is_raised_and_the_connection_goes_on(connection: TimedConnection):
    for _ in range(4):
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.query("select 1 / $1::bigint", [0])
    assert connection.query("select 1 / $1::bigint", [1]) == [(1,)]


def rows_of(*parts: str) -> Rows:
    """Give what is copied; ``{}`` stands for the last of what was answered before."""
    ((*_, last),) = yield b""
    for part in parts:
        yield part.format(last).encode()


def copy(connection: TimedConnection, values: list[object], parts: list[str]) -> list[tuple[object, ...]]:
    connection.execute("create temporary table if not exists lines (line text)")
    text = "select $1::text, $2::bigint; copy lines from stdin"
    return connection.execute_statement(Statement(text, values, rows_of(*parts, "{}\n")))


def test_what_is_copied_comes_in_order_after_what_was_answered_before_it(
    connection: TimedConnection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("onward.pg.timed_connection._MAX_CHUNK_BYTES", 3)  # a line is sent in parts
    assert copy(connection, ["a", 7], ["first\nsec", "ond\n"]) == [("a", 7)]
    assert connection.execute("select line from lines").fetchall() == [("first",), ("second",), ("7",)]


@pytest.mark.parametrize("value", ["'", "\\", "\\'; select 1; --", "$2", "$1$1", "ä'\n", ""])
def test_no_value_is_read_as_anything_else_where_it_is_written_into_a_query(connection: TimedConnection, value: str):
    assert copy(connection, [value, None], []) == [(value, None)]


def test_all_that_is_sent_as_one_query_is_done_or_none_of_it(connection: TimedConnection):
    copy(connection, ["a", 1], [])
    with pytest.raises(psycopg.errors.BadCopyFileFormat):
        text = "delete from lines where line = $1::text returning line; copy lines from stdin"
        connection.execute_statement(Statement(text, ["1"], rows_of("good\n", "too\tmany\n")))
    assert connection.query("select line from lines") == [("1",)]
