"""Connections to the server for one event loop: a request goes out at once, and replies come back in the same order.

The driver opens the connection by all its means (TLS, passwords, sentinels) and hands it over. What is said on it is
said here, since an idle worker's job waits for three round trips, and the layers that the driver lays around a command
take longer than the server does. A cluster is left to the driver, which knows which node has what.

Nothing is tried again: a command whose answer was lost may have been done. Whoever is cancelled while waiting has asked
all the same, and the answer is thrown away when it comes. A server that owes an answer for too long counts as away, and
takes with it the connection, and whoever else waits on it.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import hiredis
import redis
from redis import exceptions

from onward.engines.bullmq.plan_runner import LOAD_SCRIPTS, Atomic, Command

_ERRORS_BY_CODE: Final[dict[str, type[exceptions.RedisError]]] = {
    "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.ConnectionError,
    "NOAUTH": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
    "NOSCRIPT": exceptions.NoScriptError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
}
"""By the word with which the server begins; any other is a ``ResponseError``."""
_RESPONSE_CALLBACKS: Final = dict(redis.Redis(protocol=2).response_callbacks)
"""How the driver reads answers to plain commands: a plan is told the same, whoever drives it."""


class DriverConnection(Protocol):
    """A connection of the driver's, open, that others may speak on."""

    def attach_protocol(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Have another hear what comes."""
        ...

    def close_writer(self) -> None:
        """Close it."""
        ...


@contextmanager
def preserve_cancellation() -> Iterator[None]:
    """Raise at the end if the task has been cancelled meanwhile.

    The driver waits by asyncio.wait_for, which before Python 3.12 swallows a cancellation that comes in the same turn
    as its end; whoever cancelled would wait for ever.
    """
    task = asyncio.current_task()
    cancelled = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > cancelled:
        raise asyncio.CancelledError


class _PendingRequest:
    __slots__ = ("count", "future", "replies", "sent_at")

    def __init__(self, count: int, future: asyncio.Future[list[Any]], sent_at: float) -> None:
        self.count = count
        self.future = future
        self.sent_at = sent_at
        self.replies: list[Any] = []


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, connection: DriverConnection, *, timeout: float) -> None:
        """Speak on a connection, to a server that should answer ``timeout`` seconds."""
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_PendingRequest] = deque()
        self._reader = hiredis.Reader(
            protocolError=exceptions.InvalidResponse,
            replyError=_error_of,
            encoding="utf-8",
            errors="replace",  # what is no text is shown as such, and fails as damaged
        )
        self._timeout = timeout
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._driver_connection = connection
        self._transport = connection.attach_protocol(self)
        self._poll = select.poll()
        self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.is_open = True

    @property
    def pending_count(self) -> int:
        """How many questions are not answered."""
        return len(self._pending)

    @property
    def has_unexpected_input(self) -> bool:
        """Whether the server has said what nobody asked for: it has hung up, and the loop has not got round to it."""
        return not self._pending and bool(self._poll.poll(0))

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Ask, and give the answers; those that are errors are given as such."""
        if not self.is_open:
            raise exceptions.ConnectionError("the connection is closed")
        if not isinstance(commands, Atomic) or len(commands) == 1:
            replies = await self._send(commands)
            for index, command in enumerate(commands):
                parse = _RESPONSE_CALLBACKS.get(command[0])
                if parse is not None and not isinstance(replies[index], Exception):
                    replies[index] = parse(replies[index])
            return replies
        *queued, done = await self._send([("MULTI",), *commands, ("EXEC",)])
        if isinstance(done, Exception):
            raise next((reply for reply in queued if isinstance(reply, Exception)), done)
        return done  # type: ignore[no-any-return]

    def _send(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        text = b"".join([hiredis.pack_command(command) for command in commands])
        request = _PendingRequest(len(commands), self._loop.create_future(), self._loop.time())
        self._pending.append(request)
        if self._timeout_timer is None:
            self._timeout_timer = self._loop.call_later(self._timeout, self._check_timeout)
        self._transport.write(text)
        return request.future

    def data_received(self, data: bytes) -> None:
        """Hand answers to those who asked."""
        reader, pending = self._reader, self._pending
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                request = pending[0]
                request.replies.append(reply)
                if type(reply) is exceptions.ReadOnlyError:
                    self.is_open = False  # no longer the master: the next question asks for who is
                if len(request.replies) == request.count:
                    pending.popleft()
                    if not request.future.done():
                        request.future.set_result(request.replies)
        except (exceptions.InvalidResponse, IndexError) as error:
            self._abort(exceptions.ConnectionError(f"the server does not keep to the protocol: {error}"))
        if not self.is_open and not pending:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits that no answer will come."""
        self._abort(exceptions.ConnectionError(f"connection lost: {exc or 'closed by the server'}"))

    def close(self) -> None:
        """Hang up."""
        self._abort(exceptions.ConnectionError("the connection is closed"))

    def _check_timeout(self) -> None:
        """Give a server up that owes an answer for too long."""
        self._timeout_timer = None
        if self._pending:
            left = self._pending[0].sent_at + self._timeout - self._loop.time()
            if left <= 0:
                self._abort(exceptions.TimeoutError(f"no answer within {self._timeout:g} s"))
            else:
                self._timeout_timer = self._loop.call_later(left, self._check_timeout)

    def _abort(self, error: Exception) -> None:
        self.is_open = False
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
            self._timeout_timer = None
        while self._pending:
            future = self._pending.popleft().future
            if not future.done():
                future.set_exception(error)
        self._driver_connection.close_writer()


def _error_of(text: str) -> exceptions.RedisError:
    code, _, rest = text.partition(" ")
    kind = _ERRORS_BY_CODE.get(code)
    return exceptions.ResponseError(text) if kind is None else kind(rest)


class Connector(Protocol):
    """Opens connections."""

    async def connect(self) -> Connection:
        """Open one."""
        ...

    async def close(self) -> None:
        """Let go of what it takes to."""
        ...


class Multiplexer:
    """A few connections: whoever asks has one on which nobody waits, where there is one."""

    def __init__(self, connector: Connector, *, max_connections: int) -> None:
        self._connector = connector
        self._max_connections = max_connections
        self._connections: list[Connection] = []
        self._connect_lock = asyncio.Lock()

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """See :class:`~onward.engines.bullmq.plan_runner.AsyncClient`."""
        connection = self._available()
        while connection is not None and connection.has_unexpected_input:
            connection.close()
            connection = self._available()
        return await (connection or await self._open_another()).execute(commands)

    def _available(self) -> Connection | None:
        self._connections = [connection for connection in self._connections if connection.is_open]
        best = min(self._connections, key=lambda connection: connection.pending_count, default=None)
        is_full = len(self._connections) >= self._max_connections
        return best if best is not None and (not best.pending_count or is_full) else None

    async def _open_another(self) -> Connection:
        async with self._connect_lock:
            if (connection := self._available()) is None:
                connection = await self._connector.connect()
                self._connections.append(connection)
            return connection

    async def close(self) -> None:
        """See :class:`~onward.engines.bullmq.plan_runner.AsyncClient`."""
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()
        await self._connector.close()


class DriverClient:
    """A client of the driver's, asked alike."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """See :class:`~onward.engines.bullmq.plan_runner.AsyncClient`."""
        with preserve_cancellation():
            return await self._execute(commands)

    async def _execute(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1 or commands is LOAD_SCRIPTS:  # which goes to every node
            return [await self._execute_one(command) for command in commands]
        async with self._client.pipeline(transaction=isinstance(commands, Atomic)) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers

    async def _execute_one(self, command: Command) -> Any:
        try:
            return await self._client.execute_command(*command)
        except exceptions.ResponseError as error:
            return error

    async def close(self) -> None:
        """See :class:`~onward.engines.bullmq.plan_runner.AsyncClient`."""
        await self._client.aclose()
