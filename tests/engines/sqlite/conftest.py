"""A database file for each test, an engine on it, and a bare connection as another program would have."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from onward.clock import ManualClock
from onward.engines.sqlite.engine import SQLiteEngine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database is."""
    return tmp_path / "jobs.db"


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock."""
    return ManualClock()


@pytest.fixture
async def engine(path: Path, clock: ManualClock) -> AsyncIterator[SQLiteEngine]:
    """An open engine that soon gives up a lock."""
    engine = SQLiteEngine(path, clock=clock, busy_timeout=0.2)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def bare(engine: SQLiteEngine, path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection, in no transaction, as ``sqlite3`` gives it but for its checkpoints."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma wal_autocheckpoint = 0")
    yield connection
    connection.close()
