"""An application's own tables in Onward's SQLite file: connections that write in turn with Onward.

SQLite has one writer at a time. Onward's processes take a lock before they begin a transaction, so that each writer
gets its turn, and checkpoint only while they hold it. Connections made here do the same::

    import onward.sqlite

    with closing(onward.sqlite.connect("sqlite:///jobs.db")) as connection, connection:
        connection.execute("insert into orders (id) values (?)", (7,))
        charge.using(connection=connection).sync.enqueue(order_id=7)

    engine = onward.sqlite.prepare(create_engine("sqlite:///jobs.db"))                    # SQLAlchemy
    engine = onward.sqlite.prepare(create_async_engine("sqlite+aiosqlite:///jobs.db"))

A transaction begins, and takes the lock, with its first write or an explicit ``BEGIN``; keep it short, for it keeps
workers from claiming. Reads take no lock. See docs/guides/transactions.md.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from onward.app import App
from onward.core import core_of
from onward.engines.sqlite.application_connection import ApplicationConnection as Connection
from onward.engines.sqlite.database import Database
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.urls import open_engine
from onward.errors import InvalidValue

__all__ = ["Connection", "connect", "path_of", "prepare"]


class SQLAlchemyEngine(Protocol):
    """An engine of SQLAlchemy: ``Engine`` or ``AsyncEngine``."""

    @property
    def dialect(self) -> Any: ...
    @property
    def url(self) -> Any: ...
    def dispose(self, close: bool = True) -> Any: ...  # noqa: FBT001, FBT002 - as SQLAlchemy has it


E = TypeVar("E", bound=SQLAlchemyEngine)


def connect(
    store: App | str | os.PathLike[str],
    *,
    busy_timeout: timedelta = timedelta(seconds=5),
    foreign_keys: bool = True,
    check_same_thread: bool = True,
) -> Connection:
    """Open a sqlite3 connection to Onward's file, given as an App, a URL or a path.

    Waits at most ``busy_timeout`` for other writers, then raises ``sqlite3.OperationalError``.

    Raises:
        InvalidValue: the store is not a SQLite file.
        StoreUnavailable: the folder does not exist, or is on a network file system.
    """
    database = _database_of(store)
    return Connection(
        database.path,
        busy_timeout.total_seconds(),
        synchronous=database.synchronous,
        foreign_keys=foreign_keys,
        check_same_thread=check_same_thread,
    )


def prepare(engine: E, *, synchronous: Literal["full", "normal"] = "full", foreign_keys: bool = True) -> E:
    """Make an engine of SQLAlchemy (sync or async) open connections that write in turn with Onward; return it.

    Call it before the engine's first connection. ``connect_args={"timeout": seconds}`` of SQLAlchemy says how long to
    wait for other writers.

    Raises:
        InvalidValue: it is no engine for a SQLite file, or has connected already.
    """
    if getattr(getattr(engine, "dialect", None), "name", None) != "sqlite":
        raise InvalidValue("engine", engine, "must be an engine of SQLAlchemy on SQLite: create_engine('sqlite:///…')")
    from sqlalchemy import event  # noqa: PLC0415 - the caller has imported it

    sync_engine: Any = getattr(engine, "sync_engine", engine)
    if any(getattr(sync_engine.pool, count, int)() for count in ("checkedin", "checkedout")):
        raise InvalidValue("engine", engine, "has connected already: prepare it before its first use")

    def open_connection(_dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
        if "factory" in options:
            raise InvalidValue("connect_args", options["factory"], "must not name a factory: Onward's is needed")
        options["factory"] = partial(Connection, synchronous=synchronous, foreign_keys=foreign_keys)

    event.listen(sync_engine, "do_connect", open_connection)
    return engine


def path_of(app: App) -> Path:
    """Return the path of the file that an App keeps its jobs in, also of a temporary one (``sqlite://``).

    Raises:
        InvalidValue: the App is on another store.
    """
    return _database_of(app).path


def _database_of(store: App | str | os.PathLike[str]) -> Database:
    if isinstance(store, App):
        engine = core_of(store).engine.inner
    elif isinstance(store, str) and "://" in store:
        if store == "sqlite://":
            raise InvalidValue("store", store, "is a private temporary file: pass the App itself")
        engine = open_engine(store)
    else:
        return Database(store)
    if not isinstance(engine, SQLiteEngine):
        raise InvalidValue("store", store, "must be on SQLite: an App, sqlite:///file.db, or a path")
    return engine.database
