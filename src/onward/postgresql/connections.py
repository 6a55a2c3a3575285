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
from onward.postgresql import forking
from onward.postgresql.database import Database
from onward.postgresql.loops import OfLoops
from onward.postgresql.patience import PatientAsyncConnection, PatientConnection

MOST: Final = 4
"""Connections for one event loop, and for all threads together. A verb takes one for a moment."""

BEAT: Final = 10.0
"""Seconds to wait for the answer to a sign of life at most: there must be time for another before a lease ends."""

AnyConnection = PatientConnection | PatientAsyncConnection


class Connections:
    """The connections of one engine."""

    def __init__(self, database: Database, *, most: int = MOST) -> None:
        self._database = database
        self._most = most
        self._is_open = False
        self._begin()
        forking.register(self)

    def _begin(self) -> None:
        self._of_loops = OfLoops(lambda: _OfLoop(self._most))
        self._idle: list[PatientConnection] = []
        self._room = threading.BoundedSemaphore(self._most)
        self._pulse: PatientConnection | None = None
        self._beating = threading.Lock()
        self._guard = threading.Lock()

    def begin_anew(self) -> None:
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

    def borrowed(self, *, at_leisure: bool = False, alone: bool = False) -> Borrowed:
        """Have a connection for a moment, on this event loop.

        ``at_leisure``: for what may take the server long. ``alone``: nobody else uses the loop meanwhile.
        """
        patience = None if at_leisure else self._database.patience
        return Borrowed(self._of_loops.here(), self._database, patience, alone=alone)

    def at_hand(self) -> PatientAsyncConnection | None:
        """Take a connection that lies idle on this event loop, for one who has the loop to itself; None: there is none.

        It is to be put back. Nobody waits for it meanwhile, so there may be one more than otherwise for a moment.
        """
        idle = self._of_loops.here().idle
        while idle:
            connection = idle.pop()
            if connection.asks.is_sound():
                connection.patience = self._database.patience
                connection.glances = True
                return connection
            connection.pgconn.finish()
        return None

    def put_back(self, connection: PatientAsyncConnection) -> None:
        """Put back what was at hand, if it can be used again."""
        idle = self._of_loops.here().idle
        if self._is_open and _is_idle(connection) and len(idle) < self._most:
            idle.append(connection)
        else:
            connection.pgconn.finish()

    @contextmanager
    def borrowed_sync(self) -> Iterator[PatientConnection]:
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

    def _pop(self) -> PatientConnection | None:
        with self._guard:
            return self._idle.pop() if self._idle else None

    @contextmanager
    def for_the_pulse(self) -> Iterator[PatientConnection]:
        """Have the one connection that is for nothing else: a sign of life must not wait behind other work."""
        with self._beating:
            connection, self._pulse = self._pulse, None
            if connection is not None and not connection.asks.is_sound():
                connection.close()
                connection = None
            if connection is None:
                connection = self._database.connect()
            connection.patience = min(BEAT, self._database.patience)
            try:
                yield connection
            finally:
                if _is_idle(connection) and self._is_open:
                    self._pulse = connection
                else:
                    connection.close()


class Borrowed:
    """A connection for the length of a block."""

    __slots__ = ("_alone", "_connection", "_database", "_of_loop", "_patience")

    def __init__(self, of_loop: _OfLoop, database: Database, patience: float | None, *, alone: bool) -> None:
        self._of_loop = of_loop
        self._database = database
        self._patience = patience
        self._alone = alone

    async def __aenter__(self) -> PatientAsyncConnection:
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
        connection.patience = self._patience
        connection.glances = self._alone
        self._connection = connection
        return connection

    async def __aexit__(self, *_: object) -> None:
        """Give it back, if it can be used again."""
        try:
            if _is_idle(self._connection) and not self._of_loop.is_closed:
                self._of_loop.idle.append(self._connection)
            else:
                await self._connection.close()
        finally:
            self._of_loop.room.release()


class _OfLoop:
    def __init__(self, most: int) -> None:
        self.room = asyncio.Semaphore(most)
        self.idle: list[PatientAsyncConnection] = []
        self.is_closed = False


def _is_idle(connection: AnyConnection) -> bool:
    """Say whether a connection that was given back can be used again."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE  # of one that is closed, it is unknown
