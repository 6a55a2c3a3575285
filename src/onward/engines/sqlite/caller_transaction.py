"""Work on a caller's own connection: durable, or gone, with the caller's transaction (X4)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from onward.clock import Clock
from onward.engines.sqlite import migrations
from onward.engines.sqlite.database import Database, translated
from onward.engines.sqlite.transaction import Transaction
from onward.errors import InvalidValue, SchemaTooOld

_LEGACY_TRANSACTION_CONTROL: Final = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, which Python 3.11 does not have: it knows nothing else."""


@contextmanager
def joined(connection: object, database: Database, clock: Clock) -> Iterator[Transaction]:
    """Give a transaction on the caller's connection. If the block raises, nothing of it remains, not even a begin.

    Raises:
        InvalidValue: it is not a connection to the database.
    """
    if not isinstance(connection, sqlite3.Connection):
        raise InvalidValue("connection", connection, "must be a sqlite3.Connection to the same database file")
    factories = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        with translated(database):
            _check_same_file(connection, database)
            is_outermost = not connection.in_transaction
            if is_outermost and _begins_transactions(connection):
                connection.execute("begin")
            try:
                connection.execute("savepoint onward")
                # The write lock first: no other writer may come between the look for a key and the insert.
                connection.execute("delete from onward_leader where false")
                yield Transaction(connection, clock.micros())
                connection.execute("release onward")
            except BaseException:
                _undo(connection, is_whole=is_outermost)
                raise
    finally:
        connection.row_factory, connection.text_factory = factories


def _begins_transactions(connection: sqlite3.Connection) -> bool:
    """Say whether sqlite3 would begin a transaction before a caller's own first write, which its commit() then ends.

    It does so only under its legacy control. With ``autocommit=True`` commit() does nothing, and a transaction begun
    here would never end; with ``autocommit=False`` one is open at all times.
    """
    control = getattr(connection, "autocommit", _LEGACY_TRANSACTION_CONTROL)
    return control == _LEGACY_TRANSACTION_CONTROL and connection.isolation_level is not None


def _undo(connection: sqlite3.Connection, *, is_whole: bool) -> None:
    if not connection.in_transaction:  # SQLite has rolled it back: the disk is full, or the like
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
