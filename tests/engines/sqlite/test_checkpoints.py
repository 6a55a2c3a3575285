"""The write-ahead log: kept short by us, in our turn, and never by two at once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from onward.engine.values import EngineInfo
from onward.engines.sqlite import database, writer
from onward.engines.sqlite.database import COMMITS_PER_SIZE_CHECK, WAL_SIZE_LIMIT, Database
from onward.engines.sqlite.engine import SQLiteEngine
from tests.engines.sqlite.plain import add, complete, on_writer, states, take

try:
    import fcntl
except ImportError:
    pytest.skip("there are no write locks here", allow_module_level=True)

PAGE = '{"text": "' + "x" * 4000 + '"}'


async def pragma(engine: SQLiteEngine, name: str) -> object:
    """Read a setting of the writer's connection."""
    return await on_writer(engine, lambda transaction: transaction.connection.execute(f"pragma {name}").fetchone()[0])


async def test_sqlite_never_checkpoints_by_itself(engine, path):
    assert await pragma(engine, "wal_autocheckpoint") == 0
    (of_reader,) = await engine._reader.run(lambda t: t.connection.execute("pragma wal_autocheckpoint").fetchone())
    assert of_reader == 0
    connection = Database(path).connect(read_only=True)
    assert connection.execute("pragma wal_autocheckpoint").fetchone() == (0,)
    connection.close()


async def test_the_log_stays_bounded_however_much_is_written(engine):
    longest = 0
    for _ in range(120):
        await add(engine, 40, payload=PAGE)
        longest = max(longest, engine.database.wal.stat().st_size)
    written = engine.database.path.stat().st_size + longest
    assert written > 4 * WAL_SIZE_LIMIT, "too little was written to prove anything"
    a_commit = 60 * 4120
    assert longest <= WAL_SIZE_LIMIT + (COMMITS_PER_SIZE_CHECK + 1) * a_commit


async def test_a_database_behind_a_symbolic_link_is_the_same_database(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "jobs.db")
    (tmp_path / "folder").symlink_to(tmp_path / "data")
    engine = SQLiteEngine(tmp_path / "link.db")
    beside = SQLiteEngine(tmp_path / "folder" / "jobs.db")
    await engine.open()
    await beside.open()
    longest = 0
    for _ in range(80):
        await add(engine, 40, payload=PAGE)
        longest = max(longest, (tmp_path / "data" / "jobs.db-wal").stat().st_size)
    assert longest <= WAL_SIZE_LIMIT + (COMMITS_PER_SIZE_CHECK + 1) * 60 * 4120
    await add(beside)
    await engine.close()
    await beside.close()
    # One pair of lock files, beside the file itself: writers who come by different paths take turns.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "folder", "link.db"]
    assert {"jobs.db-turn", "jobs.db-write"} <= {path.name for path in (tmp_path / "data").iterdir()}


async def test_a_short_log_is_left_alone(engine):
    """Each checkpoint costs a flush; few jobs must not pay for it."""
    statements: list[str] = []
    await on_writer(engine, lambda transaction: transaction.connection.set_trace_callback(statements.append))
    for _ in range(3 * COMMITS_PER_SIZE_CHECK):
        await add(engine)
    assert engine.database.wal.stat().st_size < WAL_SIZE_LIMIT
    assert not any("checkpoint" in statement for statement in statements)


async def test_a_checkpoint_is_made_in_our_turn_to_write(engine, path):
    """Before 3.51.3 SQLite does not survive two at once; the write lock is what keeps them apart."""
    lock_file = path.with_name(f"{path.name}-write")
    shut: list[bool] = []

    def look(statement: str) -> None:
        if "checkpoint" in statement:
            descriptor = os.open(lock_file, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shut.append(False)
            except BlockingIOError:
                shut.append(True)
            finally:
                os.close(descriptor)

    await on_writer(engine, lambda transaction: transaction.connection.set_trace_callback(look))
    for _ in range(60):
        await add(engine, 40, payload=PAGE)
    assert shut
    assert all(shut)


async def test_a_reader_in_the_way_is_not_waited_for_and_the_log_is_cut_back_when_it_has_gone(engine, path):
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("pragma wal_autocheckpoint = 0")
    reader.execute("begin")
    reader.execute("select count(*) from onward_job").fetchone()
    for _ in range(60):
        await add(engine, 40, payload=PAGE)
    grown = engine.database.wal.stat().st_size
    assert grown > WAL_SIZE_LIMIT
    assert reader.execute("select count(*) from onward_job").fetchone() == (0,)
    reader.execute("rollback")
    reader.close()
    for _ in range(2 * COMMITS_PER_SIZE_CHECK):
        await add(engine)
    assert engine.database.wal.stat().st_size <= WAL_SIZE_LIMIT


async def test_a_checkpoint_that_fails_fails_no_caller(engine, monkeypatch):  # X3
    """What the caller asked for is durable by then; to say that it failed would make it come twice."""
    monkeypatch.setattr(database, "WAL_SIZE_LIMIT", -1)
    monkeypatch.setattr(writer, "COMMITS_PER_SIZE_CHECK", 1)

    def deny(action: int, first: str | None, *_: object) -> int:
        is_checkpoint = action == sqlite3.SQLITE_PRAGMA and first == "wal_checkpoint"
        return sqlite3.SQLITE_DENY if is_checkpoint else sqlite3.SQLITE_OK

    await on_writer(engine, lambda transaction: transaction.connection.set_authorizer(deny))
    assert len(await add(engine)) == 1
    assert len(await asyncio.gather(*[add(engine) for _ in range(10)])) == 10
    await complete(engine, *await take(engine))
    assert await states(engine) == {"pending": 10, "completed": 1}


async def test_the_last_to_close_leaves_no_log(path: Path):
    first, second = SQLiteEngine(path), SQLiteEngine(path)
    for engine in (first, second):
        await engine.open()
        await add(engine)
        await states(engine)
    await first.close()
    assert path.with_name("jobs.db-wal").exists()
    await second.close()
    assert not path.with_name("jobs.db-wal").exists()


@pytest.mark.parametrize(("version", "warned"), [((3, 51, 2), True), ((3, 51, 3), False), ((3, 60, 0), False)])
async def test_an_sqlite_that_does_not_survive_two_checkpoints_is_warned_of(engine, monkeypatch, version, warned):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    info: EngineInfo = await engine.check()
    assert any("wal_autocheckpoint = 0" in warning for warning in info.warnings) is warned
