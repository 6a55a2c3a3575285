"""A connection for an application's own tables in Onward's file.

It is a :class:`sqlite3.Connection` that writes as Onward itself does: it takes the write lock before a transaction
begins and releases it when the transaction has ended, begins with BEGIN IMMEDIATE, and checkpoints only while it holds
the lock. So application and workers wait for each other in turn, without SQLITE_BUSY, and a killed process leaves the
lock free.

Statements are executed through cursors (by ``Connection.execute``, SQLAlchemy, aiosqlite and Django): the lock is taken
there.
"""

from __future__ import annotations

import os
import re
import sqlite3
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from onward.engines.sqlite import fork_safety
from onward.engines.sqlite.database import COMMITS_PER_SIZE_CHECK, Database, Synchronous
from onward.engines.sqlite.write_turn import WriteTurn
from onward.errors import InvalidValue

_FIRST_WORD: Final = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|[(;])*([a-z]+)", re.IGNORECASE | re.DOTALL)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WRITES: Final = re.compile(
    r"\b(?:insert|replace)\s+(?:or\s+\w+\s+)?into\b|\bdelete\s+from\b|\bupdate\b.*?\bset\b",
    re.IGNORECASE | re.DOTALL,
)
_WRITING_PRAGMA: Final = re.compile(
    r"\b(?:wal_checkpoint|optimize|incremental_vacuum|journal_mode|user_version|application_id)\b", re.IGNORECASE
)
_DEFERRED: Final = re.compile(r"\bbegin\b(?:\s+deferred\b)?(?!\s+(?:immediate|exclusive)\b)", re.IGNORECASE)
_READS: Final = frozenset({"select", "values", "explain", "attach", "detach", "commit", "end", "rollback", "release"})
LEGACY_TRANSACTION_CONTROL: Final = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, which Python 3.11 does not have: it knows nothing else."""
_BEGINS_TRANSACTION: Final = frozenset({"insert", "update", "delete", "replace", "with"})
"""Before these a transaction begins by itself, unless the connection commits each statement by itself. Not before a
savepoint: releasing the outermost one commits, as with sqlite3."""


class ApplicationConnection(sqlite3.Connection):
    """A sqlite3 connection that takes Onward's write lock for its transactions.

    A transaction begins with the first statement that writes, or by an explicit ``BEGIN``, which is always immediate.
    Reads before it take no lock and are not part of it. Waits at most ``timeout`` seconds for the lock, then raises
    ``sqlite3.OperationalError`` (SQLITE_BUSY).
    """

    def __init__(
        self,
        database: str | os.PathLike[str],
        timeout: float = 5.0,
        *arguments: Any,
        synchronous: Synchronous = "full",
        foreign_keys: bool = True,
        **options: Any,
    ) -> None:
        name = os.fspath(database)
        if not isinstance(name, str) or not name or name == ":memory:" or name.startswith("file:"):
            raise InvalidValue("database", name, "must be the path of Onward's file: no URI, and not in memory")
        if options.get("autocommit", LEGACY_TRANSACTION_CONTROL) not in (LEGACY_TRANSACTION_CONTROL, True):
            rule = "would keep a transaction open at all times; leave it out and call commit()"
            raise InvalidValue("autocommit", options["autocommit"], rule)
        self._onward_file = Database(name, synchronous=synchronous, busy_timeout=timeout)
        self._onward_file.check_location()
        self._onward_file.create_private()
        self._process_id = os.getpid()
        self._commits = 0
        self._is_closed = False
        super().__init__(str(self._onward_file.path), timeout, *arguments, **options)
        self._turn = WriteTurn(self._onward_file.path)
        # A connection that is dropped and not closed leaves the lock too; a forked child never had it.
        weakref.finalize(self, self._turn.close)
        fork_safety.register(self)
        try:
            self._acquire()
            try:
                plain_cursor = sqlite3.Cursor(self)
                self._onward_file.configure(plain_cursor)
                plain_cursor.execute(f"pragma foreign_keys = {'on' if foreign_keys else 'off'}")
            finally:
                self._turn.release()
        except BaseException:
            self.close()
            raise

    # What users call

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """Open a cursor that takes the write lock where it is needed."""
        if not isinstance(factory, type) or not issubclass(factory, sqlite3.Cursor):
            raise InvalidValue("factory", factory, "must be a class of cursors: sqlite3.Cursor or one that inherits it")
        return super().cursor(_turn_taking(factory))

    def execute(self, sql: str, *parameters: Any) -> Any:
        """Execute a statement on a new cursor."""
        return self.cursor().execute(sql, *parameters)

    def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
        """Execute a statement for each row, on a new cursor."""
        return self.cursor().executemany(sql, rows)

    def executescript(self, sql: str) -> Any:
        """Execute several statements, on a new cursor."""
        return self.cursor().executescript(sql)

    def commit(self) -> None:
        """Commit the transaction, then release the write lock."""
        try:
            super().commit()
        finally:
            self._end_turn()

    def rollback(self) -> None:
        """Roll the transaction back, then release the write lock."""
        try:
            super().rollback()
        finally:
            self._end_turn()

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> Any:
        """Commit, or roll back after an error, as sqlite3 does."""
        if error_type is not None:
            self.rollback()
            return False
        try:
            self.commit()
        except BaseException:  # a deferred foreign key, a full disk: the block is over, and must leave the lock
            self.rollback()
            raise
        return False

    def close(self) -> None:
        """Close the connection, in its turn: the last one to close checkpoints. Idempotent."""
        if self._is_closed:
            return
        # Without its turn too: a process that holds the lock has a connection, so that this one is not the last.
        if os.getpid() == self._process_id:
            self._turn.acquire(self._onward_file.busy_timeout)
        try:
            super().close()
        except BaseException:  # on another thread than its own: it is still open, perhaps in a transaction
            self._end_turn()
            raise
        self._is_closed = True
        self._turn.close()

    # The lock

    def execute_in_turn(self, sql: str, execute: Callable[[str], Any], *, is_atomic: bool = True) -> Any:
        """Execute a statement of a cursor, holding the write lock if it writes."""
        self._check_process()
        word = _first_word(sql)
        takes_turn = not self.in_transaction and word not in _READS and _may_write(word, sql)
        if takes_turn:
            self._acquire()
        began = False
        try:
            if takes_turn and word == "begin":
                sql = _DEFERRED.sub("begin immediate", sql, count=1)
            elif takes_turn and word in _BEGINS_TRANSACTION and self._begins_by_itself():
                sqlite3.Cursor(self).execute("begin immediate")
                began = True
            return execute(sql)
        except BaseException:
            if began and is_atomic and self.in_transaction:  # nothing but the statement that failed was in it
                super().rollback()
            raise
        finally:
            self._end_turn()

    def _begins_by_itself(self) -> bool:
        return self.isolation_level is not None and getattr(self, "autocommit", None) is not True

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise sqlite3.ProgrammingError(
                "this connection was opened before the process forked, and SQLite's locks do not cross a fork: "
                "open connections after the fork (with SQLAlchemy: engine.dispose(close=False) in the child)"
            )

    def _acquire(self) -> None:
        timeout = self._onward_file.busy_timeout
        if not self._turn.acquire(timeout):
            holder = self._turn.holder()
            named = f"process {holder}" if holder else "another connection"
            error = sqlite3.OperationalError(
                f"database is locked: {named} has held Onward's write lock for more than {timeout:g} s; end its "
                "transaction, or raise the timeout"
            )
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_BUSY, "SQLITE_BUSY"
            raise error

    def _end_turn(self) -> None:
        """Release the lock once no transaction is open."""
        if not self._turn.is_held or self.in_transaction:
            return
        try:
            self._commits += 1
            if self._commits % COMMITS_PER_SIZE_CHECK == 0:
                self._checkpoint()
        finally:
            self._turn.release()

    def _checkpoint(self) -> None:
        try:
            self._onward_file.checkpoint_when_large(sqlite3.Cursor(self))
        except sqlite3.Error:
            return  # what was written is durable; the next one tries again

    # Forks

    def suspend_before_fork(self) -> None:
        """Do nothing: the connection is the application's to close."""

    def resume_after_fork(self) -> None:
        """Do nothing."""

    def reset_after_fork(self) -> None:
        """Close the child's copies of the lock files: if the parent is killed, they must not keep the lock."""
        self._turn.forget()


@cache
def _turn_taking(factory: type[sqlite3.Cursor]) -> type[sqlite3.Cursor]:
    """Derive a class of cursors that takes the write lock from one that does not."""

    class TurnTakingCursor(factory):  # type: ignore[valid-type,misc]
        connection: ApplicationConnection

        def execute(self, sql: str, *parameters: Any) -> Any:
            execute = super().execute
            return self.connection.execute_in_turn(sql, lambda text: execute(text, *parameters))

        def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
            executemany = super().executemany
            return self.connection.execute_in_turn(sql, lambda text: executemany(text, rows), is_atomic=False)

        def executescript(self, sql: str) -> Any:
            return self.connection.execute_in_turn("script", lambda _: super(TurnTakingCursor, self).executescript(sql))

    return TurnTakingCursor


def _first_word(sql: str) -> str:
    found = _FIRST_WORD.match(sql)
    return found[1].lower() if found else ""


def _may_write(word: str, sql: str) -> bool:
    if word == "with":
        return _WRITES.search(_QUOTED.sub("''", sql)) is not None
    if word == "pragma":
        return _WRITING_PRAGMA.search(sql) is not None
    return True
