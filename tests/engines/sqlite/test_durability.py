"""What is told to be stored is stored: through kill -9, and as far as the settings say through a power cut."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from onward.engine.values import ClaimRequest, Settlement
from onward.engines.sqlite.engine import SQLiteEngine
from onward.lifecycle import Complete
from tests.engines.sqlite.plain import EVERY, add, new_job, on_writer
from tests.engines.sqlite.processes import processes

SYNCHRONOUS = {"normal": 1, "full": 2}


async def settings(engine: SQLiteEngine) -> tuple[str, int]:
    """Read what is in force on the connection that writes."""

    def read(transaction: object) -> tuple[str, int]:
        connection: sqlite3.Connection = transaction.connection  # type: ignore[attr-defined]
        (mode,) = connection.execute("pragma journal_mode").fetchone()
        (synchronous,) = connection.execute("pragma synchronous").fetchone()
        return mode, synchronous

    return await on_writer(engine, read)


async def test_every_commit_is_flushed_unless_told_otherwise(engine):  # X3
    assert await settings(engine) == ("wal", SYNCHRONOUS["full"])
    assert "survives a power cut" in (await engine.check()).durability


async def test_who_asks_for_less_gets_it_and_is_told_so(path):  # X3
    engine = SQLiteEngine(path, synchronous="normal")
    await engine.open()
    assert await settings(engine) == ("wal", SYNCHRONOUS["normal"])
    assert "may lose the last moments" in (await engine.check()).durability
    await engine.close()


async def test_a_connection_that_had_to_be_made_anew_is_as_durable(engine):  # X3
    """Whatever befell the old one."""

    def break_it(transaction: object) -> None:
        transaction.connection.close()  # type: ignore[attr-defined]

    with pytest.raises(sqlite3.ProgrammingError):
        await on_writer(engine, break_it)
    assert await settings(engine) == ("wal", SYNCHRONOUS["full"])
    await add(engine)


async def test_a_temporary_database_goes_when_it_is_closed_and_not_before():
    engine = SQLiteEngine()
    await engine.open()
    folder = engine.database.path.parent
    await add(engine)
    assert engine.database.path.exists()
    assert folder.stat().st_mode & 0o077 == 0, "others on the machine may look into it"
    await engine.close()
    assert not folder.exists()
    await engine.close()


async def test_a_file_stays_when_it_is_closed(path):
    engine = SQLiteEngine(path)
    await engine.open()
    await add(engine)
    await engine.close()
    assert path.exists()


def work_until_killed(pipe: Connection, path: Path) -> None:
    """Enqueue, claim and complete as fast as it goes, and say of each job that it was told to be stored."""

    async def act() -> None:
        engine = SQLiteEngine(path)
        await engine.open()
        pipe.send("ready")
        pipe.recv()
        while True:
            answers = await asyncio.gather(*[engine.enqueue([new_job()]) for _ in range(5)])
            pipe.send([answer.id for (answer,) in answers])
            claims = (await engine.claim(ClaimRequest(worker_id=str(os.getpid()), slots=3))).claims
            await engine.settle([Settlement(claim, Complete('"done"')) for claim in claims])
            pipe.send([])

    asyncio.run(act())


async def test_nothing_that_was_told_is_lost_when_writers_are_killed(path):  # X3
    acknowledged: set[str] = set()
    for messages in (7, 30, 60):
        with processes(work_until_killed, path, count=2) as writers:
            for writer in writers:
                writer.send("begin")
            for number in range(messages):
                acknowledged.update(writers[number % 2].receive())
            for writer in writers:
                writer.kill()
        connection = sqlite3.connect(path)
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        connection.close()
    engine = SQLiteEngine(path)
    await engine.open()
    found: set[str] = set()
    after = None
    while True:
        page = await engine.find(EVERY, cursor=after, limit=500)
        found |= {job.id for job in page.items}
        after = page.next_cursor
        if after is None:
            break
    await engine.close()
    assert len(acknowledged) > 100
    assert acknowledged <= found
