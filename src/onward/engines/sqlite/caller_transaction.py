"""Work on a caller's own connection: durable, or gone, with the caller's transaction (X4).

A connection of sqlite3 is used as it is, SQLAlchemy's and Django's by the sqlite3 connection under it. Asynchronous
connections of SQLAlchemy (aiosqlite) are used as SQLAlchemy offers them to plain code, by ``run_sync``.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple

from onward.clock import Clock
from onward.engine.sqlalchemy_connection import async_connection_of, sync_connection_of
from onward.engines.sqlite import migrations
from onward.engines.sqlite.application_connection import LEGACY_TRANSACTION_CONTROL
from onward.engines.sqlite.database import Database, translated
from onward.engines.sqlite.transaction import Transaction
from onward.errors import InvalidValue, SchemaTooOld

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_RULE: Final = (
    "must be a connection of sqlite3, SQLAlchemy or Django, or a session of SQLAlchemy, to the same database file; "
    "asynchronous ones where `await` is used"
)


class _Caller(NamedTuple):
    """A caller's connection."""

    connection: sqlite3.Connection
    """Executes statements."""
    settings: sqlite3.Connection
    """Has the attributes of the sqlite3 connection: itself, or aiosqlite's object."""


class CallerTransactions:
    """Runs work on callers' connections to one database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(self, connection: object, work: Callable[[Transaction, *Ts], T], *args: *Ts) -> T:
        """Run work in the transaction of a caller's connection, of whichever kind.

        Raises:
            InvalidValue: it is not a connection to the database.
        """
        asynchronous = await async_connection_of(connection)
        if asynchronous is None:
            return self.run_sync(connection, work, *args)
        result: T = await asynchronous.run_sync(lambda sync: self.run_sync(sync, work, *args))
        return result

    def run_sync(self, connection: object, work: Callable[[Transaction, *Ts], T], *args: *Ts) -> T:
        """Do the same on a connection for plain code."""
        with _joined(_caller_of(connection), self._database, self._clock) as transaction:
            return work(transaction, *args)


def _caller_of(connection: object) -> _Caller:
    if isinstance(connection, sqlite3.Connection):
        return _Caller(connection, connection)
    if (found := sync_connection_of(connection)) is not None:
        _check_dialect(found)
        return _sqlalchemy_caller(found)
    if "django.db" in sys.modules and getattr(connection, "vendor", None) == "sqlite":
        django: Any = connection
        django.ensure_connection()
        return _Caller(django.connection, django.connection)
    raise InvalidValue("connection", connection, _RULE)


def _sqlalchemy_caller(connection: Any) -> _Caller:
    if not connection.in_transaction():
        connection.begin()  # as its first statement would: without it, its commit() would do nothing
    pooled = connection.connection
    return _Caller(pooled.dbapi_connection, pooled.driver_connection)


def _check_dialect(connection: Any) -> None:
    if connection.dialect.name != "sqlite" or connection.dialect.driver not in {"pysqlite", "aiosqlite"}:
        raise InvalidValue("connection", f"{connection.dialect.name}+{connection.dialect.driver}", _RULE)


@contextmanager
def _joined(caller: _Caller, database: Database, clock: Clock) -> Iterator[Transaction]:
    """Give a transaction on the caller's connection. If the block raises, nothing of it remains, not even a begin."""
    with _plain_rows(caller), translated(database):
        _check_same_file(caller.connection, database)
        with _atomic(caller):
            # The write lock first: no other writer may come between the look for a key and the insert.
            caller.connection.execute("delete from onward_leader where false")
            yield Transaction(caller.connection, clock.micros())


@contextmanager
def _plain_rows(caller: _Caller) -> Iterator[None]:
    """Read rows as tuples of text, whatever the connection's own factories are."""
    settings = caller.settings
    factories = settings.row_factory, settings.text_factory
    settings.row_factory, settings.text_factory = None, str
    try:
        yield
    finally:
        settings.row_factory, settings.text_factory = factories


@contextmanager
def _atomic(caller: _Caller) -> Iterator[None]:
    """Keep all or nothing of what the block does."""
    connection, settings = caller
    is_outermost = not settings.in_transaction
    if is_outermost and _begins_transactions(settings):
        connection.execute("begin")
    try:
        connection.execute("savepoint onward")
        yield
        connection.execute("release onward")
    except BaseException:
        _undo(caller, is_whole=is_outermost)
        raise


def run_atomic(connection: object, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run work in the transaction of a caller's connection to any SQLite file, as a whole or not at all."""
    caller = _caller_of(connection)
    with _plain_rows(caller), _atomic(caller):
        return work(caller.connection)


async def run_atomic_async(connection: object, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do the same on an asynchronous connection of SQLAlchemy, or on one for plain code."""
    asynchronous = await async_connection_of(connection)
    if asynchronous is None:
        return run_atomic(connection, work)
    result: T = await asynchronous.run_sync(lambda sync: run_atomic(sync, work))
    return result


def _begins_transactions(connection: sqlite3.Connection) -> bool:
    """Say whether sqlite3 would begin a transaction before a caller's own first write, which its commit() then ends.

    It does so only under its legacy control. With ``autocommit=True`` commit() does nothing, and a transaction begun
    here would never end; with ``autocommit=False`` one is open at all times.
    """
    control = getattr(connection, "autocommit", LEGACY_TRANSACTION_CONTROL)
    return control == LEGACY_TRANSACTION_CONTROL and connection.isolation_level is not None


def _undo(caller: _Caller, *, is_whole: bool) -> None:
    connection = caller.connection
    if not caller.settings.in_transaction:  # SQLite has rolled it back: the disk is full, or the like
        return
    if is_whole:
        connection.execute("rollback")
    else:
        connection.execute("rollback to onward")
        connection.execute("release onward")


def _check_same_file(connection: sqlite3.Connection, database: Database) -> None:
    theirs = connection.execute("select file from pragma_database_list where name = 'main'").fetchone()[0]
    if not theirs or not database.path.exists() or not database.path.samefile(theirs):
        raise InvalidValue(
            "connection",
            theirs or ":memory:",
            f"must be a connection to {database.path}, where the jobs are kept",
        )
    if not migrations.applied(connection):
        message = f"{database} has no jobs table yet: open the app first, or run onward migrate"
        raise SchemaTooOld(message)
