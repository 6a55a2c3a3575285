"""A lookup by key is read on the event loop's own thread, if nothing is in the way; a group of reads shares one."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.transaction import Transaction
from tests.engines.sqlite.plain import add


def reading_thread(transaction: Transaction) -> str:
    transaction.connection.execute("select 1").fetchone()
    return threading.current_thread().name


async def test_a_lookup_is_read_on_the_callers_thread_while_the_connection_is_free(engine: SQLiteEngine):
    (ref,) = await add(engine)
    assert (await engine.get(ref)) is not None
    reader = engine._reader
    assert await reader.run(reading_thread) == "onward-sqlite-reader"
    assert await reader.run_lookup(reading_thread) == threading.current_thread().name
    reader._recent_lookup_seconds = 1.0  # a slow disk must not hold up the loop again and again
    assert await reader.run_lookup(reading_thread) == "onward-sqlite-reader"
    assert reader._recent_lookup_seconds < 1.0


async def test_a_lookup_waits_behind_a_read_that_is_under_way(engine: SQLiteEngine):
    await engine._reader.run(reading_thread)
    began, released = threading.Event(), threading.Event()

    def slow(_: Transaction) -> None:
        began.set()
        assert released.wait(30)

    reading = asyncio.create_task(engine._reader.run(slow))
    await asyncio.to_thread(began.wait, 30)
    lookup = asyncio.create_task(engine._reader.run_lookup(reading_thread))
    await asyncio.sleep(0)
    assert not lookup.done()
    released.set()
    await reading
    assert await lookup == "onward-sqlite-reader"


async def test_reads_that_pile_up_share_a_transaction_and_one_that_fails_hurts_no_other(engine: SQLiteEngine):
    statements: list[str] = []
    await engine._reader.run(lambda transaction: transaction.connection.set_trace_callback(statements.append))
    began, released = threading.Event(), threading.Event()

    def slow(_: Transaction) -> None:
        began.set()
        assert released.wait(30)

    def bad(transaction: Transaction) -> None:
        transaction.connection.execute("select * from absent")

    async def pile_up(*works) -> list[object]:
        began.clear()
        released.clear()
        reading = asyncio.create_task(engine._reader.run(slow))
        await asyncio.to_thread(began.wait, 30)
        statements.clear()
        answers = asyncio.gather(*(engine._reader.run(work) for work in works), return_exceptions=True)
        while len(engine._reader._queue._requests) < len(works):
            await asyncio.sleep(0)
        released.set()
        await reading
        return list(await answers)

    assert await pile_up(*[reading_thread] * 10) == ["onward-sqlite-reader"] * 10
    assert statements.count("begin") == 1
    first, broken, last = await pile_up(reading_thread, bad, reading_thread)
    assert (first, last) == ("onward-sqlite-reader", "onward-sqlite-reader")
    assert "no such table" in str(broken)


async def test_a_lookup_that_fails_raises_and_the_next_one_works(engine: SQLiteEngine):
    await engine._reader.run(reading_thread)
    with pytest.raises(sqlite3.OperationalError):
        await engine._reader.run_lookup(lambda transaction: transaction.connection.execute("select * from absent"))
    assert await engine._reader.run_lookup(reading_thread) == threading.current_thread().name
