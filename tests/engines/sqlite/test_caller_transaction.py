"""Work on a caller's own connection, whatever its settings are."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.engines.sqlite import enqueue
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import StoreBusy
from tests.engines.sqlite.plain import add, new_job, states

CONTROLS = [True, False] if sys.version_info >= (3, 12) else [True]


class AutocommitConnection(sqlite3.Connection):
    """What ``autocommit=True`` of Python 3.12 is, for Python 3.11: commit() and rollback() do nothing."""

    autocommit = True

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""


def connect(path: Path, *, autocommit: bool) -> sqlite3.Connection:
    if sys.version_info >= (3, 12):
        options: dict[str, Any] = {"autocommit": autocommit}
        return sqlite3.connect(path, **options)
    return sqlite3.connect(path, factory=AutocommitConnection)


@pytest.fixture
def caller(engine: SQLiteEngine, path: Path) -> Iterator[sqlite3.Connection]:
    """A connection as ``sqlite3.connect`` gives it."""
    connection = sqlite3.connect(path, timeout=0.1)
    yield connection
    connection.close()


@pytest.mark.parametrize("autocommit", CONTROLS)
async def test_a_job_of_a_connection_with_the_newer_transaction_control_is_kept(engine, path, autocommit):  # X4
    caller = connect(path, autocommit=autocommit)
    await engine.enqueue([new_job()], connection=caller)
    caller.commit()
    assert await states(engine) == {"pending": 1}
    await add(engine)  # the write lock is free
    caller.close()
    assert await states(engine) == {"pending": 2}


async def test_an_explicit_transaction_of_an_autocommit_connection_is_the_callers(engine, path):  # X4
    caller = connect(path, autocommit=True)
    caller.execute("begin")
    await engine.enqueue([new_job()], connection=caller)
    assert await states(engine) == {}
    caller.execute("rollback")
    await engine.enqueue([new_job()], connection=caller)
    assert await states(engine) == {"pending": 1}
    caller.close()


async def test_a_refused_enqueue_leaves_no_transaction_behind(engine, caller, bare):  # X4
    bare.execute("begin immediate")
    with pytest.raises(StoreBusy):
        await engine.enqueue([new_job()], connection=caller)
    assert not caller.in_transaction
    bare.execute("rollback")


async def test_a_failed_enqueue_leaves_the_callers_transaction_as_it_was(engine, caller, monkeypatch):  # X4
    caller.execute("create table note (text text)")
    caller.execute("insert into note values ('kept')")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(enqueue, "enqueue", fail)
    with pytest.raises(ZeroDivisionError):
        await engine.enqueue([new_job()], connection=caller)
    assert caller.in_transaction
    caller.commit()
    assert caller.execute("select text from note").fetchall() == [("kept",)]


async def test_a_transaction_that_read_before_another_wrote_gets_its_own_remedy(engine, caller):  # X4
    caller.execute("begin")
    caller.execute("select count(*) from onward_job").fetchone()
    await add(engine)
    with pytest.raises(StoreBusy, match="BEGIN IMMEDIATE"):
        await engine.enqueue([new_job()], connection=caller)
    caller.rollback()
    await engine.enqueue([new_job()], connection=caller)
    caller.commit()
    assert await states(engine) == {"pending": 2}


async def test_the_factories_of_a_connection_do_not_matter_and_are_kept(engine, caller):  # X4
    caller.text_factory = bytes
    caller.row_factory = sqlite3.Row
    first = await engine.enqueue([new_job(idempotency_key="once")], connection=caller)
    again = await engine.enqueue([new_job(idempotency_key="once")], connection=caller)
    caller.commit()
    assert [answer.ref for answer in again] == [answer.ref for answer in first]
    assert isinstance(again[0].ref.id, str)
    assert (caller.text_factory, caller.row_factory) == (bytes, sqlite3.Row)
