"""Applications that write to Onward's file: in turn with its workers, with jobs in their transactions (X4)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import onward.sqlite
from onward import App
from onward.engine.values import Settlement
from onward.engines.sqlite.database import COMMITS_PER_SIZE_CHECK, WAL_SIZE_LIMIT
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.write_lock import WriteLock
from onward.errors import InvalidValue, StoreBusy
from onward.lifecycle import Complete
from tests.engines.sqlite.applications import BALLAST, async_writer, holder, sync_writer, worker
from tests.engines.sqlite.plain import add, new_job, states, take
from tests.engines.sqlite.processes import processes

try:
    import fcntl  # noqa: F401
except ImportError:
    pytest.skip("there are no write locks here", allow_module_level=True)

ORDERS = "create table orders (writer text, number integer, text text)"
ORDER = "insert into orders values ('test', 1, '')"


@pytest.fixture
def app_connection(engine: SQLiteEngine, path: Path) -> Iterator[onward.sqlite.Connection]:
    """A connection as an application opens it."""
    connection = onward.sqlite.connect(path, busy_timeout=timedelta(milliseconds=100))
    connection.execute(ORDERS)
    yield connection
    connection.close()


@pytest.fixture
def lock(app_connection: sqlite3.Connection, path: Path) -> Iterator[WriteLock]:
    """The write lock as another process has it."""
    lock = WriteLock(path)
    lock.open()
    yield lock
    lock.close()


def is_free(lock: WriteLock) -> bool:
    free = lock.try_acquire()
    if free:
        lock.release()
    return free


# SQLAlchemy -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["prepared", "bare"])
def sync_engine(app_connection: object, path: Path, request: pytest.FixtureRequest) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.1})
    yield onward.sqlite.prepare(engine) if request.param == "prepared" else engine
    engine.dispose()


@pytest.fixture(params=["prepared", "bare"])
async def async_engine(
    app_connection: object, path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 0.1})
    yield onward.sqlite.prepare(engine) if request.param == "prepared" else engine
    await engine.dispose()


def orders(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("select count(*) from orders").fetchone()[0]
    return count


@pytest.mark.parametrize("writes", ["before", "after", "never"])
@pytest.mark.parametrize("kind", ["connection", "session", "scoped"])
async def test_a_job_is_part_of_a_transaction_of_sqlalchemy(
    engine: SQLiteEngine, app_connection: Any, sync_engine: sqlalchemy.Engine, kind: str, writes: str
):  # X4
    make: Any = {
        "connection": sync_engine.connect,
        "session": lambda: Session(sync_engine),
        "scoped": scoped_session(sessionmaker(sync_engine)),
    }[kind]
    for commits in (False, True):
        handle = make()
        if writes == "before":
            handle.execute(sqlalchemy.text(ORDER))
        if commits:
            await engine.enqueue([new_job()], connection=handle)
        else:
            engine.enqueue_sync([new_job()], connection=handle)
        if writes == "after":
            handle.execute(sqlalchemy.text(ORDER))
        assert await states(engine) == {}
        assert orders(app_connection) == 0
        handle.commit() if commits else handle.rollback()
        handle.close()
    assert await states(engine) == {"pending": 1}
    assert orders(app_connection) == (writes != "never")


@pytest.mark.parametrize("writes", ["before", "after", "never"])
@pytest.mark.parametrize("kind", ["connection", "session", "scoped"])
async def test_a_job_is_part_of_an_asynchronous_transaction_of_sqlalchemy(
    engine: SQLiteEngine, app_connection: Any, async_engine: AsyncEngine, kind: str, writes: str
):  # X4
    make: Any = {
        "connection": lambda: AsyncConnection(async_engine),
        "session": lambda: AsyncSession(async_engine),
        "scoped": lambda: async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task),
    }[kind]
    for commits in (False, True):
        handle = make()
        if kind == "connection":
            await handle.start()
        if writes == "before":
            await handle.execute(sqlalchemy.text(ORDER))
        await engine.enqueue([new_job()], connection=handle)
        if writes == "after":
            await handle.execute(sqlalchemy.text(ORDER))
        assert await states(engine) == {}
        assert orders(app_connection) == 0
        await (handle.commit() if commits else handle.rollback())
        await handle.close()
    assert await states(engine) == {"pending": 1}
    assert orders(app_connection) == (writes != "never")


async def test_a_job_ends_with_the_handlers_own_transaction(
    engine: SQLiteEngine, app_connection: Any, async_engine: AsyncEngine
):  # X3
    await add(engine)
    (claim,) = await take(engine)
    for commits in (False, True):
        async with async_engine.connect() as connection:
            await connection.execute(sqlalchemy.text(ORDER))
            assert await engine.settle([Settlement(claim, Complete())], connection=connection) == frozenset()
            await (connection.commit() if commits else connection.rollback())
        assert await states(engine) == ({"completed": 1} if commits else {"running": 1})
    assert orders(app_connection) == 1


async def test_a_failed_enqueue_leaves_a_savepoint_and_the_transaction_as_they_were(
    engine: SQLiteEngine, app_connection: Any, sync_engine: sqlalchemy.Engine
):  # X4
    with Session(sync_engine) as session:
        session.execute(sqlalchemy.text(ORDER))
        with session.begin_nested():
            await engine.enqueue([new_job()], connection=session)
        nested = session.begin_nested()
        await engine.enqueue([new_job()], connection=session)
        nested.rollback()
        session.commit()
    assert await states(engine) == {"pending": 1}
    assert orders(app_connection) == 1


async def test_an_asynchronous_connection_without_await_is_refused(
    engine: SQLiteEngine, app_connection: Any, async_engine: AsyncEngine
):  # X4
    async with async_engine.connect() as connection:
        with pytest.raises(InvalidValue, match="await"):
            engine.enqueue_sync([new_job()], connection=connection)


async def test_a_session_on_another_file_is_refused(engine: SQLiteEngine, tmp_path: Path):  # X4
    other = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with Session(other) as session, pytest.raises(InvalidValue, match="where the jobs are kept"):
        await engine.enqueue([new_job()], connection=session)
    other.dispose()


def test_prepare_refuses_what_it_could_not_prepare(tmp_path: Path):
    with pytest.raises(InvalidValue, match="on SQLite"):
        onward.sqlite.prepare(sqlalchemy.create_engine("postgresql+psycopg://"))
    with pytest.raises(InvalidValue, match="must be an engine"):
        onward.sqlite.prepare("sqlite:///jobs.db")  # type: ignore[type-var]
    used = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    used.connect().close()
    with pytest.raises(InvalidValue, match="before its first use"):
        onward.sqlite.prepare(used)
    used.dispose()
    memory = onward.sqlite.prepare(sqlalchemy.create_engine("sqlite://"))
    with pytest.raises(InvalidValue, match="not in memory"):
        memory.connect()


# The lock -------------------------------------------------------------------------------------------------------------


def test_a_transaction_holds_the_lock_from_its_first_write_until_it_ends(app_connection, lock):
    for statement in ("select 1", "with one as (select 1) select * from one", "pragma user_version"):
        app_connection.execute(statement).fetchall()
        assert is_free(lock), statement
    for end in (app_connection.commit, app_connection.rollback):
        for begin in (ORDER, f"with one as (select 1) {ORDER}", "begin", "BEGIN DEFERRED", "savepoint one"):
            app_connection.execute(begin)
            assert not is_free(lock), begin
            assert app_connection.in_transaction
            end()
            assert is_free(lock), begin
    with app_connection:
        app_connection.executemany("insert into orders values ('many', ?, '')", [(1,), (2,)])
        assert not is_free(lock)
    assert is_free(lock)
    app_connection.executescript(f"begin; {ORDER}; commit")
    assert is_free(lock)
    with pytest.raises(ZeroDivisionError), app_connection:
        app_connection.execute(ORDER)
        1 / 0  # noqa: B018
    assert is_free(lock)


def test_a_connection_that_commits_each_statement_holds_the_lock_for_its_statements_only(app_connection, lock):
    app_connection.isolation_level = None
    app_connection.execute(ORDER)
    assert is_free(lock)
    assert not app_connection.in_transaction
    app_connection.execute("begin")
    assert not is_free(lock)
    app_connection.execute("commit")
    assert is_free(lock)


def test_an_explicit_transaction_writes_from_the_start(app_connection, bare):
    bare.execute("pragma busy_timeout = 0")
    app_connection.execute("begin")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        bare.execute("begin immediate")
    app_connection.rollback()


def test_a_statement_that_fails_leaves_no_lock(app_connection, lock):
    for statement in ("insert into nowhere values (1)", "insert into orders values (1)", "create table orders (x)"):
        with pytest.raises(sqlite3.OperationalError):
            app_connection.execute(statement)
        assert is_free(lock), statement
        assert not app_connection.in_transaction


def test_who_waits_too_long_is_told_who_holds_the_lock(app_connection, lock):
    assert lock.try_acquire()
    with pytest.raises(sqlite3.OperationalError, match=f"process {os.getpid()} has held Onward's write lock") as caught:
        app_connection.execute(ORDER)
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
    assert not app_connection.in_transaction
    lock.release()
    for _ in range(100):  # the wait that was given up gives the lock back, whenever it gets it
        try:
            app_connection.execute(ORDER)
        except sqlite3.OperationalError:
            continue
        break
    app_connection.commit()
    assert is_free(lock)
    assert orders(app_connection) == 1


async def test_an_enqueue_that_waits_too_long_is_answered_as_everywhere(engine, app_connection, lock):
    assert lock.try_acquire()
    with pytest.raises(StoreBusy):
        await engine.enqueue([new_job()], connection=app_connection)
    lock.release()


async def test_a_writer_waits_in_turn_and_gets_the_lock_handed_over(engine, path, lock):
    patient = onward.sqlite.connect(path, busy_timeout=timedelta(seconds=60), check_same_thread=False)
    assert lock.try_acquire()
    writing = asyncio.create_task(asyncio.to_thread(patient.execute, ORDER))
    while "onward-sqlite-turn" not in {thread.name for thread in threading.enumerate()}:
        await asyncio.sleep(0.001)
    lock.release()
    async with asyncio.timeout(60):
        await writing
    assert not is_free(lock)
    patient.commit()
    assert is_free(lock)
    patient.close()


def test_a_dropped_connection_leaves_the_lock(path, app_connection, lock):
    dropped = onward.sqlite.connect(path)
    dropped.execute(ORDER)
    assert not is_free(lock)
    sqlite3.Connection.close(dropped)  # as the interpreter does
    del dropped
    assert is_free(lock)


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(app_connection, lock):
    app_connection.execute(ORDER)
    answers, answer = os.pipe()
    until, parent_lives = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(parent_lives)
        try:
            app_connection.execute(ORDER)
            os.write(answer, b"written")
        except sqlite3.ProgrammingError:
            os.write(answer, b"refused")
        finally:
            os.read(until, 1)
            os._exit(0)
    assert os.read(answers, 16) == b"refused"
    app_connection.execute("insert into orders values ('parent', 2, '')")
    os.close(app_connection._turn._lock._descriptors[1])  # as if the parent had been killed
    app_connection._turn._lock._descriptors = None
    assert is_free(lock)
    app_connection.rollback()
    for descriptor in (answers, answer, until, parent_lives):
        os.close(descriptor)
    os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["", ":memory:", "file:jobs.db?mode=ro"])
def test_what_is_no_file_is_refused(name: str):
    with pytest.raises(InvalidValue, match="path of Onward's file"):
        onward.sqlite.Connection(name)


def test_a_transaction_that_is_always_open_is_refused(path):
    with pytest.raises(InvalidValue, match="autocommit"):
        onward.sqlite.Connection(path, autocommit=False)


async def test_a_connection_is_opened_by_app_url_or_path(engine, path, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(path)
    for store in (App(f"sqlite:///{path}"), f"sqlite:///{path}", path, str(link)):
        connection = onward.sqlite.connect(store)
        assert connection.execute("pragma database_list").fetchone()[2] == str(path)
        assert connection.execute("pragma wal_autocheckpoint").fetchone() == (0,)
        assert connection.execute("pragma foreign_keys").fetchone() == (1,)
        assert connection.execute("pragma synchronous").fetchone() == (2,)
        connection.close()
    async with App("sqlite://") as temporary:
        connection = onward.sqlite.connect(temporary)
        assert Path(connection.execute("pragma database_list").fetchone()[2]) == onward.sqlite.path_of(temporary)
        connection.close()
    for store in ("sqlite://", "postgresql://localhost/x", App("postgresql://localhost/x")):
        with pytest.raises(InvalidValue, match="store"):
            onward.sqlite.connect(store)


def test_an_application_alone_keeps_the_log_short(engine, app_connection):
    longest = 0
    for number in range(3 * WAL_SIZE_LIMIT // len(BALLAST)):
        app_connection.execute("insert into orders values ('log', ?, ?)", (number, BALLAST))
        app_connection.commit()
        longest = max(longest, engine.database.wal.stat().st_size)
    assert longest <= WAL_SIZE_LIMIT + (COMMITS_PER_SIZE_CHECK + 1) * 12 * 4120


def test_django_opens_such_connections(engine, app_connection, lock, path):  # X4
    ran = subprocess.run([sys.executable, "-c", DJANGO, str(path)], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["free", "held", "free"], ran.stderr
    assert orders(app_connection) == 1
    assert app_connection.execute("select count(*) from onward_job").fetchone() == (1,)


DJANGO = """
import sys
import django
from django.conf import settings
import onward.sqlite
from onward import App
from onward.engines.sqlite.write_lock import WriteLock
from pathlib import Path

path = Path(sys.argv[1])
options = {"factory": onward.sqlite.Connection, "transaction_mode": "IMMEDIATE"}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": options}})
django.setup()
from django.db import connection, transaction

lock = WriteLock(path)
lock.open()

def say():
    free = lock.try_acquire()
    print("free" if free else "held")
    if free:
        lock.release()

task = App(f"sqlite:///{path}").task(name="t")(lambda: None)
connection.ensure_connection()
say()
with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute("insert into orders values ('django', %s, '')", [1])
    task.using(connection=connection).sync.enqueue()
    say()
say()
connection.close()
"""


# Processes ------------------------------------------------------------------------------------------------------------


async def test_applications_and_workers_share_a_file_without_a_busy_error(engine, app_connection, path):  # X4
    """A busy error would end its process, and the test with it."""
    count = 120
    kept = count - count // 3
    longest = 0
    with (
        processes(sync_writer, path, count, count=1) as sync_writers,
        processes(async_writer, path, count, count=1) as async_writers,
        processes(worker, path, count=2) as workers,
    ):
        for process in (*sync_writers, *async_writers, *workers):
            process.send("go")
        for process in (*sync_writers, *async_writers):
            assert await asyncio.to_thread(process.receive) == "done"
            longest = max(longest, engine.database.wal.stat().st_size)
        async with asyncio.timeout(60):
            while await states(engine) != {"completed": 2 * kept}:
                await asyncio.sleep(0.01)
        for process in workers:
            process.send("stop")
            assert await asyncio.to_thread(process.receive) == "done"
    rows = app_connection.execute("select writer, number from orders order by 1, 2").fetchall()
    assert rows == [(writer, number) for writer in ("async", "sync") for number in range(count) if number % 3 != 2]
    assert longest <= 2 * WAL_SIZE_LIMIT


async def test_a_killed_application_leaves_the_lock_and_nothing_else(engine, app_connection, lock, path):  # X4
    with processes(holder, path, count=1) as (killed,):
        killed.send("go")
        assert await asyncio.to_thread(killed.receive) == "holds"
        assert not is_free(lock)
        killed.kill()
        await add(engine)
    assert orders(app_connection) == 0
    assert await states(engine) == {"pending": 1}


def test_a_transaction_that_cannot_begin_leaves_the_lock(
    app_connection: sqlite3.Connection, lock: WriteLock, path: Path
):
    foreign = sqlite3.connect(path, isolation_level=None)  # a program that takes SQLite's own lock alone
    foreign.execute("begin immediate")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        app_connection.execute(ORDER)
    assert not app_connection.in_transaction
    assert is_free(lock)
    foreign.rollback()
    foreign.close()


def test_a_block_whose_commit_fails_leaves_the_lock(app_connection: sqlite3.Connection, lock: WriteLock):
    app_connection.execute("create table parent (id integer primary key)")
    app_connection.execute("create table child (id references parent deferrable initially deferred)")
    with pytest.raises(sqlite3.IntegrityError), app_connection:
        app_connection.execute("insert into child values (7)")
    assert not app_connection.in_transaction
    assert is_free(lock)


@pytest.mark.parametrize(
    "sql",
    [
        "with a as (select replace('x', 'y', 'z') as v) select v from a",
        "with a as (select 'delete from orders' as v) select v from a",
        'with a as (select 1 as "update x set") select * from a -- insert into orders',
    ],
)
def test_a_read_that_looks_like_a_write_takes_no_lock(app_connection: sqlite3.Connection, lock: WriteLock, sql: str):
    app_connection.execute(sql).fetchall()
    assert not app_connection.in_transaction
    assert is_free(lock)


def test_releasing_the_outermost_savepoint_commits(app_connection: sqlite3.Connection, lock: WriteLock, path: Path):
    app_connection.execute("savepoint outer_one")
    app_connection.execute(ORDER)
    assert not is_free(lock)
    app_connection.execute("release outer_one")
    assert not app_connection.in_transaction
    assert is_free(lock)
    other = sqlite3.connect(path)
    assert other.execute("select count(*) from orders").fetchone() == (1,)
    other.close()


def test_a_close_on_another_thread_keeps_the_lock_of_an_open_transaction(
    app_connection: sqlite3.Connection, lock: WriteLock
):
    app_connection.execute(ORDER)
    errors: list[BaseException] = []

    def close() -> None:
        try:
            app_connection.close()
        except sqlite3.ProgrammingError as error:
            errors.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert not is_free(lock)
    app_connection.rollback()
    assert is_free(lock)
