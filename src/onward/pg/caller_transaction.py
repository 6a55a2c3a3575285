"""The caller's own transaction: a plan is driven on whatever connection the caller has.

A *caller connection* is such a connection with a way to execute our statements on it: psycopg (plain or asynchronous),
asyncpg, SQLAlchemy (a connection or a session, plain or asynchronous), or Django's. None of these is imported here: who
hands one in has imported it.

Statements are written with ``$1``. psycopg and asyncpg take them so; the others want names, and get them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onward.engine.sqlalchemy_connection import async_connection_of, sync_connection_of
from onward.errors import InvalidValue, WrongIsolation
from onward.pg.database import Database
from onward.pg.plan_runner import AsyncExecute, Execute, Plan, Row, Statement, arun, run
from onward.pg.pools import ConnectionPools
from onward.pg.timed_connection import TimedAsyncConnection, TimedConnection

T = TypeVar("T")

_SUPPORTED_CONNECTIONS: Final = "a connection of psycopg, asyncpg, SQLAlchemy or Django, or a session of SQLAlchemy"

_PLACEHOLDER: Final = re.compile(r"\$(\d+)")


class Bounds(NamedTuple):
    """What is said before several statements, and behind them to keep what they did, or to undo it."""

    begin: str
    commit: str
    rollback: tuple[str, ...]


_SAVEPOINT: Final = Bounds(
    "savepoint onward",
    "release savepoint onward",
    ("rollback to savepoint onward", "release savepoint onward"),
)
"""Within a transaction that is the caller's to end."""
_TRANSACTION: Final = Bounds("begin", "commit", ("rollback",))
"""Where each statement would be committed by itself."""


@dataclass(frozen=True, slots=True)
class CallerConnection:
    """A connection for plain code."""

    handle: object
    """By which it is known again."""
    execute: Execute
    transaction: AbstractContextManager[object]
    """Around everything, so that it is all or none where the caller has no transaction open."""
    bounds: Bounds | None
    """Around a plan of several statements; None: ``transaction`` is as good."""
    is_two_phase: bool = False
    """Whether the transaction is to be prepared, as far as its driver says so: it must not notify then."""


@dataclass(frozen=True, slots=True)
class AsyncCallerConnection:
    """A connection for an event loop."""

    handle: object
    execute: AsyncExecute
    transaction: AbstractAsyncContextManager[object]
    bounds: Bounds | None
    is_two_phase: bool = False


def caller_connection_of(connection: object) -> CallerConnection | None:
    """Say how to execute on a connection; None: it is none for plain code."""
    if isinstance(connection, psycopg.Connection):
        return CallerConnection(
            connection, on_psycopg(connection), *_transaction_of(connection), is_two_phase=_is_two_phase(connection)
        )
    if (found := sync_connection_of(connection)) is not None:
        return CallerConnection(
            _driver_of(found),
            _on_sqlalchemy(found),
            nullcontext(),
            _bounds_of(found),
            is_two_phase=isinstance(found.get_transaction(), sys.modules["sqlalchemy"].TwoPhaseTransaction),
        )
    if "django.db" in sys.modules and getattr(connection, "vendor", None) == "postgresql":
        return _django_connection(connection)
    return None


async def async_caller_connection_of(connection: object) -> AsyncCallerConnection | None:
    """Say how to execute on a connection; None: it is none for an event loop."""
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncCallerConnection(
            connection,
            on_async_psycopg(connection),
            *_transaction_of(connection),
            is_two_phase=_is_two_phase(connection),
        )
    if (asyncpg := sys.modules.get("asyncpg")) and isinstance(
        connection, (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)
    ):
        is_open = connection.is_in_transaction()
        opened = nullcontext() if is_open else connection.transaction()
        return AsyncCallerConnection(connection, _on_asyncpg(connection), opened, _SAVEPOINT if is_open else None)
    if (found := await async_connection_of(connection)) is not None:
        sync = found.sync_connection
        return AsyncCallerConnection(_driver_of(sync), _on_async_sqlalchemy(found), nullcontext(), _bounds_of(sync))
    return None


class CallerTransactions:
    """Drives plans on callers' connections: what they do is durable, or gone, with the caller's transaction.

    Each connection is asked once whether it leads to our store: ``same_store`` refuses one that does not.
    """

    def __init__(
        self,
        connections: ConnectionPools,
        database: Database,
        same_store: Callable[[], Plan[None]],
        *,
        without_notices: Callable[[], Plan[None]] | None = None,
    ) -> None:
        """``without_notices`` has nothing of the transaction notify, so that it can be prepared (two-phase commit)."""
        self._without_notices = without_notices
        self._connections = connections
        self._database = database
        self._same_store = same_store
        self._verified: WeakSet[Any] = WeakSet()

    async def drive(self, connection: object, plan: Callable[[], Plan[T]], *, multi_statement: bool = True) -> T:
        """Drive a plan on a caller's connection, of whichever kind.

        ``multi_statement``: it may take several statements, and fail in between. Of one that failed nothing is left,
        whether or not the caller goes on and commits. Of a single statement that is so by itself, and costs nothing.
        """
        self._connections.check_open()
        caller = await async_caller_connection_of(connection)
        if caller is None:
            return self.drive_sync(connection, plan, multi_statement=multi_statement)
        with self._database.translated(), _encoding_errors():
            async with caller.transaction:
                if not self._is_verified(caller.handle):
                    await arun(self._same_store(), caller.execute)
                    self._mark_verified(caller.handle)
                if caller.is_two_phase and self._without_notices is not None:
                    await arun(self._without_notices(), caller.execute)
                bounds = caller.bounds if multi_statement else None
                return await arun(plan() if bounds is None else _atomic(plan(), bounds), caller.execute)

    def drive_sync(self, connection: object, plan: Callable[[], Plan[T]], *, multi_statement: bool = True) -> T:
        """Do the same on a connection for plain code."""
        self._connections.check_open()
        caller = _required_caller(connection)
        with self._database.translated(), _encoding_errors(), caller.transaction:
            if not self._is_verified(caller.handle):
                run(self._same_store(), caller.execute)
                self._mark_verified(caller.handle)
            if caller.is_two_phase and self._without_notices is not None:
                run(self._without_notices(), caller.execute)
            bounds = caller.bounds if multi_statement else None
            return run(plan() if bounds is None else _atomic(plan(), bounds), caller.execute)

    def _is_verified(self, handle: object) -> bool:
        try:
            return handle in self._verified
        except TypeError:  # it cannot be remembered: it is asked each time
            return False

    def _mark_verified(self, handle: object) -> None:
        with suppress(TypeError):
            self._verified.add(handle)


async def drive_alone(connection: object, plan: Plan[T]) -> T:
    """Drive a plan on a caller's connection to any database, as a whole or not at all."""
    caller = await async_caller_connection_of(connection)
    if caller is None:
        return drive_alone_sync(connection, plan)
    async with caller.transaction:
        return await arun(plan if caller.bounds is None else _atomic(plan, caller.bounds), caller.execute)


def drive_alone_sync(connection: object, plan: Plan[T]) -> T:
    """Do the same on a connection for plain code."""
    caller = _required_caller(connection)
    with caller.transaction:
        return run(plan if caller.bounds is None else _atomic(plan, caller.bounds), caller.execute)


def _required_caller(connection: object) -> CallerConnection:
    caller = caller_connection_of(connection)
    if caller is None:
        raise InvalidValue(
            "connection", connection, f"must be {_SUPPORTED_CONNECTIONS}; asynchronous ones where `await` is used"
        )
    return caller


def read_committed(plan: Plan[T]) -> Plan[T]:
    """Drive a plan that writes rows which others change, in a transaction in which that can be done.

    Raises:
        WrongIsolation: the transaction is REPEATABLE READ or SERIALIZABLE; it can go on.
    """
    ((isolation,),) = yield Statement("select current_setting('transaction_isolation')")
    if isolation in {"repeatable read", "serializable"}:
        plan.close()
        raise WrongIsolation(isolation)
    return (yield from plan)


def _atomic(plan: Plan[T], bounds: Bounds) -> Plan[T]:
    """Have all that a plan does undone if it fails."""
    yield Statement(bounds.begin)
    try:
        answer = yield from plan
    except Exception:
        with suppress(Exception):  # the connection is gone, and all of the transaction with it: say why
            for text in bounds.rollback:
                yield Statement(text)
        raise
    yield Statement(bounds.commit)
    return answer


@contextmanager
def _encoding_errors() -> Iterator[None]:
    """Say what to do where a driver cannot write what a job says: it writes as the connection's encoding has it."""
    try:
        yield
    except UnicodeEncodeError as error:
        reason = "is how this connection writes text, which cannot write this job: set its client_encoding to utf8"
        raise InvalidValue("connection", error.encoding, reason) from error


def on_psycopg(connection: psycopg.Connection[Any]) -> Execute:
    """Execute on a psycopg connection, whatever its own cursors and rows are like."""
    timed = connection if isinstance(connection, TimedConnection) else None

    def execute(statement: Statement) -> Sequence[Row]:
        if timed is not None:
            return timed.execute_statement(statement)
        with psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement.text, statement.values or None)
            return cursor.fetchall() if cursor.description is not None else []

    return execute


def on_async_psycopg(connection: psycopg.AsyncConnection[Any]) -> AsyncExecute:
    """Execute on an asynchronous psycopg connection, whatever its own cursors and rows are like."""
    timed = connection if isinstance(connection, TimedAsyncConnection) else None

    async def execute(statement: Statement) -> Sequence[Row]:
        if timed is not None:
            return await timed.execute_statement(statement)
        async with psycopg.AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement.text, statement.values or None)
            return await cursor.fetchall() if cursor.description is not None else []

    return execute


def _is_two_phase(connection: Any) -> bool:
    """Say whether a transaction of psycopg's was begun by ``tpc_begin``, for which it has no public attribute."""
    return getattr(connection, "_tpc", None) is not None


def _transaction_of(connection: Any) -> tuple[Any, Bounds | None]:
    """Give a transaction for a psycopg connection that commits each statement by itself, and has none open."""
    idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
    return (connection.transaction(), None) if connection.autocommit and idle else (nullcontext(), _SAVEPOINT)


def _on_asyncpg(connection: Any) -> AsyncExecute:
    async def execute(statement: Statement) -> Sequence[Row]:
        return [tuple(record) for record in await connection.fetch(statement.text, *statement.values)]

    return execute


def _driver_of(connection: Any) -> Any:
    return connection.connection.driver_connection


def _bounds_of(connection: Any) -> Bounds:
    """Say whether a connection of SQLAlchemy's has a transaction, or begins one with the next statement."""
    if not getattr(connection.connection.dbapi_connection, "autocommit", False):
        return _SAVEPOINT
    driver = _driver_of(connection)
    if hasattr(driver, "is_in_transaction"):  # asyncpg's
        return _SAVEPOINT if driver.is_in_transaction() else _TRANSACTION
    return _TRANSACTION if driver.info.transaction_status == TransactionStatus.IDLE else _SAVEPOINT


def _on_sqlalchemy(connection: Any) -> Execute:
    paramstyle = connection.dialect.paramstyle

    def execute(statement: Statement) -> Sequence[Row]:
        result = connection.exec_driver_sql(*_with_paramstyle(statement, paramstyle))
        return [tuple(row) for row in result] if result.returns_rows else []

    return execute


def _on_async_sqlalchemy(connection: Any) -> AsyncExecute:
    paramstyle = connection.dialect.paramstyle

    async def execute(statement: Statement) -> Sequence[Row]:
        result = await connection.exec_driver_sql(*_with_paramstyle(statement, paramstyle))
        return [tuple(row) for row in result] if result.returns_rows else []

    return execute


def _django_connection(connection: Any) -> CallerConnection:
    def execute(statement: Statement) -> Sequence[Row]:
        with connection.cursor() as cursor:
            cursor.execute(*_with_named_parameters(statement))
            return list(cursor.fetchall()) if cursor.description is not None else []

    connection.ensure_connection()
    atomic = sys.modules["django.db"].transaction.atomic
    is_open = connection.in_atomic_block
    opened = nullcontext() if is_open else atomic(using=connection.alias)
    return CallerConnection(connection.connection, execute, opened, _SAVEPOINT if is_open else None)


def _with_paramstyle(statement: Statement, paramstyle: str) -> tuple[str, Any]:
    """Write a statement as a driver of SQLAlchemy's wants it."""
    if paramstyle == "numeric_dollar":
        return statement.text, tuple(statement.values)
    if paramstyle == "pyformat":
        return _with_named_parameters(statement)
    raise InvalidValue(
        "connection",
        paramstyle,
        f"is a driver's way to write parameters that is not known here; give {_SUPPORTED_CONNECTIONS}",
    )


def _with_named_parameters(statement: Statement) -> tuple[str, dict[str, Any]]:
    """Write a statement with ``%(p1)s`` for ``$1``."""
    text = _PLACEHOLDER.sub(r"%(p\1)s", statement.text.replace("%", "%%"))
    return text, {f"p{number}": value for number, value in enumerate(statement.values, start=1)}
