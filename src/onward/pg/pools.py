"""Connections, kept and handed out: some for each event loop, some for threads, one for the pulse.

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
from onward.pg.connection import TimedAsyncConnection, TimedConnection
from onward.pg.database import Database
from onward.pg.per_loop import PerLoop

MAX_CONNECTIONS: Final = 4
"""Connections for one event loop, and for all threads together. A verb takes one for a moment."""

BEAT: Final = 10.0
"""Seconds to wait for the answer to a sign of life at most: there must be time for another before a lease ends."""

AnyConnection = TimedConnection | TimedAsyncConnection


class ConnectionPools:
    """The connections of one engine."""

    def __init__(self, database: Database, *, most: int = MAX_CONNECTIONS) -> None:
        self._database = database
        self._most = most
        self._is_open = False
        self._begin()
        fork_safety.register(self)

    def _begin(self) -> None:
        self._of_loops = PerLoop(lambda: LoopPool(self._most, self._database.query_timeout))
        self._idle: list[TimedConnection] = []
        self._room = threading.BoundedSemaphore(self._most)
        self._pulse: TimedConnection | None = None
        self._beating = threading.Lock()
        self._guard = threading.Lock()

    def reset_after_fork(self) -> None:
        """Forget what is the parent's, in a forked child."""
        self._begin()

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
        with self._guard:
            idle, self._idle = self._idle, []
            pulse, self._pulse = self._pulse, None
            loops = self._of_loops.take_all()
        for connection in idle:
            connection.close()
        if pulse is not None:
            pulse.close()
        for of_loop in loops:
            for waiting in of_loop.idle:
                await waiting.close()
            of_loop.idle.clear()
            of_loop.is_closed = True

    def borrowed(self, *, no_timeout: bool = False) -> Borrowed:
        """Have a connection for a moment, on this event loop; ``at_leisure``: for what may take the server long."""
        return Borrowed(self._of_loops.here(), self._database, None if no_timeout else self._database.query_timeout)

    def here(self) -> LoopPool:
        """Give those of this event loop, for one who has it to itself."""
        return self._of_loops.here()

    @contextmanager
    def borrowed_sync(self) -> Iterator[TimedConnection]:
        """Have a connection for a moment, on this thread."""
        with self._room:
            connection = self._pop()
            while connection is not None and not connection.asks.is_sound():
                connection.close()
                connection = self._pop()
            if connection is None:
                connection = self._database.connect()
            try:
                yield connection
            finally:
                if _is_idle(connection) and self._is_open:
                    with self._guard:
                        self._idle.append(connection)
                else:
                    connection.close()

    def _pop(self) -> TimedConnection | None:
        with self._guard:
            return self._idle.pop() if self._idle else None

    @contextmanager
    def for_heartbeat(self) -> Iterator[TimedConnection]:
        """Have the one connection that is for nothing else: a sign of life must not wait behind other work."""
        with self._beating:
            connection, self._pulse = self._pulse, None
            if connection is not None and not connection.asks.is_sound():
                connection.close()
                connection = None
            if connection is None:
                connection = self._database.connect()
            connection.query_timeout = min(BEAT, self._database.query_timeout)
            try:
                yield connection
            finally:
                if _is_idle(connection) and self._is_open:
                    self._pulse = connection
                else:
                    connection.close()


class Borrowed:
    """A connection for the length of a block."""

    __slots__ = ("_connection", "_database", "_of_loop", "_patience")

    def __init__(self, of_loop: LoopPool, database: Database, query_timeout: float | None) -> None:
        self._of_loop = of_loop
        self._database = database
        self._patience = query_timeout

    async def __aenter__(self) -> TimedAsyncConnection:
        """Take one that is idle, or open one."""
        await self._of_loop.room.acquire()
        try:
            idle = self._of_loop.idle
            connection = idle.pop() if idle else None
            while connection is not None and not connection.asks.is_sound():
                await connection.close()
                connection = idle.pop() if idle else None
            if connection is None:
                connection = await self._database.aconnect()
        except BaseException:
            self._of_loop.room.release()
            raise
        connection.query_timeout = self._patience
        self._connection = connection
        return connection

    async def __aexit__(self, *_: object) -> None:
        """Give it back, if it can be used again."""
        self._of_loop.put_back(self._connection)
        self._of_loop.room.release()


class LoopPool:
    """The connections of one event loop."""

    def __init__(self, most: int, query_timeout: float) -> None:
        self.query_timeout = query_timeout
        """Seconds to wait for an answer."""
        self.room = asyncio.Semaphore(most)
        self.idle: list[TimedAsyncConnection] = []
        self.is_closed = False
        self._most = most

    def has_sound(self) -> bool:
        """Say whether the last of those that lie idle can be used."""
        return bool(self.idle) and self.idle[-1].asks.is_sound()

    def put_back(self, connection: TimedAsyncConnection) -> None:
        """Put back one that was taken from there, if it can be used again."""
        if _is_idle(connection) and not self.is_closed and len(self.idle) < self._most:
            self.idle.append(connection)
        else:
            connection.pgconn.finish()


def _is_idle(connection: AnyConnection) -> bool:
    """Say whether a connection that was given back can be used again."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE  # of one that is closed, it is unknown
