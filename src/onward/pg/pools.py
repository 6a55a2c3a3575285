"""Connections, kept and handed out: some for each event loop, some for threads, one for heartbeats.

An engine belongs to no event loop: an App may be opened on one and used on another. So asynchronous connections are
kept by loop, and opened when they are first needed. A connection that has broken is let go, and the next one is made
when it is wanted: whoever asks again finds a server that has come back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from psycopg.pq import TransactionStatus

from onward.errors import StoreUnavailable
from onward.pg import fork_safety
from onward.pg.database import Database
from onward.pg.per_loop import PerLoop
from onward.pg.timed_connection import TimedAsyncConnection, TimedConnection

MAX_CONNECTIONS: Final = 4
"""Connections for one event loop, and for all threads together. A verb takes one for a moment."""

HEARTBEAT_TIMEOUT: Final = 10.0
"""Seconds to wait for the answer to a sign of life at most: there must be time for another before a lease ends."""

AnyConnection = TimedConnection | TimedAsyncConnection


class ConnectionPools:
    """The connections of one engine."""

    def __init__(self, database: Database, *, max_size: int = MAX_CONNECTIONS) -> None:
        self._database = database
        self._max_size = max_size
        self._is_open = False
        self._reset()
        fork_safety.register(self)

    def _reset(self) -> None:
        self._loop_pools = PerLoop(lambda: LoopPool(self._max_size, self._database.query_timeout))
        self._idle: list[TimedConnection] = []
        self._semaphore = threading.BoundedSemaphore(self._max_size)
        self._heartbeat_connection: TimedConnection | None = None
        self._heartbeat_lock = threading.Lock()
        self._lock = threading.Lock()

    def reset_after_fork(self) -> None:
        """Forget what is the parent's, in a forked child."""
        self._reset()

    def open(self) -> None:
        """Hand connections out from now on."""
        self._is_open = True

    def check_open(self) -> None:
        """Refuse to go on where :meth:`open` was not called."""
        if not self._is_open:
            message = f"{self._database} is not open: enter the app with `async with app`, or call open()"
            raise StoreUnavailable(message)

    async def close(self) -> None:
        """Let go of all of them."""
        self._is_open = False
        with self._lock:
            idle, self._idle = self._idle, []
            heartbeat_connection, self._heartbeat_connection = self._heartbeat_connection, None
            loop_pools = self._loop_pools.take_all()
        for connection in idle:
            connection.close()
        if heartbeat_connection is not None:
            heartbeat_connection.close()
        for loop_pool in loop_pools:
            for async_connection in loop_pool.idle:
                await async_connection.close()
            loop_pool.idle.clear()
            loop_pool.is_closed = True

    def borrowed(self, *, no_timeout: bool = False) -> Borrowed:
        """Have a connection for a moment, on this event loop; ``no_timeout``: for what may take the server long."""
        return Borrowed(
            self._loop_pools.current(), self._database, None if no_timeout else self._database.query_timeout
        )

    def loop_pool(self) -> LoopPool:
        """Give those of this event loop, for one who has it to itself."""
        return self._loop_pools.current()

    @contextmanager
    def borrowed_sync(self) -> Iterator[TimedConnection]:
        """Have a connection for a moment, on this thread."""
        with self._semaphore:
            connection = self._pop()
            while connection is not None and not connection.executor.is_healthy():
                connection.close()
                connection = self._pop()
            if connection is None:
                connection = self._database.connect()
            try:
                yield connection
            finally:
                if _is_idle(connection) and self._is_open:
                    with self._lock:
                        self._idle.append(connection)
                else:
                    connection.close()

    def _pop(self) -> TimedConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    @contextmanager
    def for_heartbeat(self) -> Iterator[TimedConnection]:
        """Have the one connection that is for nothing else: a sign of life must not wait behind other work."""
        with self._heartbeat_lock:
            connection, self._heartbeat_connection = self._heartbeat_connection, None
            if connection is not None and not connection.executor.is_healthy():
                connection.close()
                connection = None
            if connection is None:
                connection = self._database.connect()
            connection.query_timeout = min(HEARTBEAT_TIMEOUT, self._database.query_timeout)
            try:
                yield connection
            finally:
                if _is_idle(connection) and self._is_open:
                    self._heartbeat_connection = connection
                else:
                    connection.close()


class Borrowed:
    """A connection for the length of a block."""

    __slots__ = ("_connection", "_database", "_loop_pool", "_query_timeout")

    def __init__(self, loop_pool: LoopPool, database: Database, query_timeout: float | None) -> None:
        self._loop_pool = loop_pool
        self._database = database
        self._query_timeout = query_timeout

    async def __aenter__(self) -> TimedAsyncConnection:
        """Take one that is idle, or open one."""
        await self._loop_pool.semaphore.acquire()
        try:
            idle = self._loop_pool.idle
            connection = idle.pop() if idle else None
            while connection is not None and not connection.executor.is_healthy():
                await connection.close()
                connection = idle.pop() if idle else None
            if connection is None:
                connection = await self._database.aconnect()
        except BaseException:
            self._loop_pool.semaphore.release()
            raise
        connection.query_timeout = self._query_timeout
        self._connection = connection
        return connection

    async def __aexit__(self, *_: object) -> None:
        """Give it back, if it can be used again."""
        self._loop_pool.put_back(self._connection)
        self._loop_pool.semaphore.release()


class LoopPool:
    """The connections of one event loop."""

    def __init__(self, max_size: int, query_timeout: float) -> None:
        self.query_timeout = query_timeout
        """Seconds to wait for an answer."""
        self.semaphore = asyncio.Semaphore(max_size)
        self.idle: list[TimedAsyncConnection] = []
        self.is_closed = False
        self._max_size = max_size

    def has_healthy(self) -> bool:
        """Say whether the last of those that lie idle can be used."""
        return bool(self.idle) and self.idle[-1].executor.is_healthy()

    def put_back(self, connection: TimedAsyncConnection) -> None:
        """Put back one that was taken from there, if it can be used again."""
        if _is_idle(connection) and not self.is_closed and len(self.idle) < self._max_size:
            self.idle.append(connection)
        else:
            connection.pgconn.finish()


def _is_idle(connection: AnyConnection) -> bool:
    """Say whether a connection that was given back can be used again."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE  # of one that is closed, it is unknown
