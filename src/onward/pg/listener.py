"""Hears of changes: on each event loop where somebody waits, by a connection that only listens.

PostgreSQL tells who listens when a transaction that made work ready has committed. What it tells is a hint: while the
connection is down, workers find jobs by asking now and then. Whenever it begins to listen, it tells everyone to look:
something may have come before. Behind a pooler nobody can listen; everyone is then told to look once a second.

The loop itself reads what is told: a thread for that would have to wake it each time, and a job waits for that. Who is
told of work may ask for it on the same connection (``query``): at that moment the server's process behind it is awake.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready

from onward.engine.values import Signal, SignalKind
from onward.errors import StoreUnavailable
from onward.pg import fork_safety
from onward.pg.database import Database
from onward.pg.per_loop import PerLoop
from onward.pg.plan_runner import Row, Statement
from onward.pg.timed_connection import TimedAsyncConnection
from onward.validation import matches

log = logging.getLogger("onward.pg")

_MIN_BACKOFF: Final = 0.1
_MAX_BACKOFF: Final = 5.0
"""Seconds between attempts to listen again: doubling, and never in step with others."""

_POLL_INTERVAL: Final = 1.0
"""Seconds between looks where nobody can be told."""
PROBE_INTERVAL: Final = 20.0
"""Seconds of silence after which the server is asked whether it is there: a connection that has gone deaf says nothing,
and so does one on which there is nothing to say."""

_BUSY_PAUSE: Final = 1.0
"""Seconds until a connection is probed that was waiting for an answer when it was due."""
PRESENCE_LEASE: Final = 2 * PROBE_INTERVAL
"""Seconds for which a listener shows that it exists. Renewed by each probe, so one that is late by less stays shown."""

ALL_QUEUES: Final = "*"
"""Told where work is ready in queues that nobody lists."""
DUE: Final = "@"
"""Told, by itself or beside the names of queues, where a job comes due soon."""
CANCELLED: Final = "!"
"""Told where held jobs may have been taken back."""
SETTINGS_CHANGED: Final = "?"
"""What is said here when something may have been missed."""
_SIGNAL_KINDS: Final = {CANCELLED: SignalKind.CANCELLED, SETTINGS_CHANGED: SignalKind.CHANGED}


ExternalChannels = Callable[[psycopg.AsyncConnection[Any]], Awaitable[Mapping[str, str]]]
"""Says which channels somebody else tells of work on, and the queue that each is for."""
OnResult = Callable[[list[Row] | None], None]
"""Is given the rows that were answered; None: the statement was refused, or nobody knows: the connection is lost."""


class Listener:
    """Tells those who wait, on any event loop, that something may have changed."""

    def __init__(
        self,
        database: Database,
        channel: str,
        *,
        probe_interval: float = PROBE_INTERVAL,
        external_channels: ExternalChannels | None = None,
        on_notification: Callable[[str], None] = lambda _: None,
        show_presence: Statement | None = None,
    ) -> None:
        """Listen on a channel of ours, and on those that ``external_channels`` names: it is called now and then.

        ``on_notification`` is called with all that is told, before those who wait for it are woken. ``show_presence``
        shows those who enqueue that a listener exists, and answers whether one was shown until now. Without it they
        notify always.
        """
        self.database = database
        self.channel = channel
        self.probe_interval = probe_interval
        self.external_channels = external_channels
        self.on_notification = on_notification
        self.show_presence = show_presence
        self.reset_after_fork()
        fork_safety.register(self)

    @property
    def is_listening(self) -> bool:
        """Whether whatever is told now will be heard."""
        return any(loop_listener.is_listening for loop_listener in self._loop_listeners.all())

    async def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        loop_listener, subscription = self._loop_listeners.current(), _Subscription(queues)
        loop_listener.subscribe(subscription)
        try:
            while True:
                await subscription.notified.wait()
                for kind in subscription.take_kinds():
                    yield Signal(kind)
        finally:
            loop_listener.subscriptions.remove(subscription)

    def query(self, statement: Statement, on_result: OnResult) -> bool:
        """Send a statement on the connection that listens for this event loop; ``on_result`` is called once, later.

        False: nothing is sent, since there is no such connection, or it waits for another answer.
        """
        return self._loop_listeners.current().query(statement, on_result)

    async def close(self) -> None:
        """Listen no more, on whatever loop."""
        for loop_listener in self._loop_listeners.take_all():
            await loop_listener.close()

    def reset_after_fork(self) -> None:
        """Forget what is the parent's, in a forked child."""
        self._loop_listeners = PerLoop(lambda: _LoopListener(self))


class _LoopListener:
    """Where one event loop listens."""

    def __init__(self, listener: Listener) -> None:
        self.is_listening = False
        self.subscriptions: list[_Subscription] = []
        self._listener = listener
        self._queues: dict[str, str] = {}
        """Of others' channels, which queue each is for."""
        self._task: asyncio.Task[None] | None = None
        """While it lasts: it would keep a loop that has closed."""
        self._listening: _ListenConnection | None = None
        """While the loop reads what is told."""

    def subscribe(self, subscription: _Subscription) -> None:
        """Listen for one more."""
        self.subscriptions.append(subscription)
        if self._task is None:
            self._task = asyncio.create_task(self._run_listener(), name="onward-postgres-listener")
            self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, _: asyncio.Task[None]) -> None:
        self._task = None

    async def close(self) -> None:
        """Listen no more; from any loop."""
        if (task := self._task) is None:
            return
        if (loop := task.get_loop()) is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        elif loop.is_running():
            with suppress(RuntimeError):  # it has just closed
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), loop))

    def query(self, statement: Statement, on_result: OnResult) -> bool:
        """See :meth:`Listener.query`."""
        return self._listening is not None and self._listening.query(statement, on_result)

    def _dispatch(self, notification: str) -> None:
        """Wake whom it may concern."""
        self._listener.on_notification(notification)
        for subscription in self.subscriptions:
            subscription.deliver(notification)

    async def _run_listener(self) -> None:
        database, channel, backoff = self._listener.database, self._listener.channel, _MIN_BACKOFF
        while database.is_pooled:
            self._dispatch(SETTINGS_CHANGED)
            await asyncio.sleep(_POLL_INTERVAL)
        while True:
            try:
                connection = await database.aconnect()
                try:
                    await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                    await self._probe(connection)
                    self.is_listening = True
                    self._dispatch(SETTINGS_CHANGED)
                    backoff = _MIN_BACKOFF
                    await self._listen(connection)
                finally:
                    self.is_listening = False
                    connection.pgconn.finish()  # without a word: it may have gone deaf
            except (psycopg.Error, StoreUnavailable, OSError) as error:
                log.warning("cannot listen to %s, workers poll meanwhile: %s", database, error)
            self._dispatch(SETTINGS_CHANGED)
            await asyncio.sleep(backoff * (0.5 + random.random()))  # noqa: S311 - jitter
            backoff = min(backoff * 2, _MAX_BACKOFF)

    async def _listen(self, connection: TimedAsyncConnection) -> None:
        """Pass on what is told, for as long as the connection lasts."""
        listener, self._queues = self._listener, {}
        listening = _ListenConnection(
            connection, lambda channel, payload: self._dispatch(self._queues.get(channel, payload))
        )
        await self._listen_to_external(connection)
        probe_at = monotonic() + listener.probe_interval
        try:
            while True:
                self._listening = listening
                listening.start_reading()
                try:
                    await asyncio.wait([listening.broken], timeout=probe_at - monotonic())
                finally:
                    listening.stop_reading()
                    self._listening = None
                if listening.broken.done():
                    listening.broken.result()
                if listening.has_pending_query:
                    probe_at = monotonic() + _BUSY_PAUSE  # the query has its own timeout
                    continue
                if not await self._probe(connection):
                    self._dispatch(SETTINGS_CHANGED)  # since the presence ran out, those who enqueue have not notified
                await self._listen_to_external(connection)
                probe_at = monotonic() + listener.probe_interval
        finally:
            listening.abort_query()

    async def _probe(self, connection: TimedAsyncConnection) -> bool:
        """Ask the server something; show that a listener exists, and return whether one was shown until now."""
        if (statement := self._listener.show_presence) is not None:
            return bool((await connection.query(statement.text, statement.values))[0][0])
        if self._listener.external_channels is None:  # which asks for them in any case
            await connection.execute("select")
        return True

    async def _listen_to_external(self, connection: TimedAsyncConnection) -> None:
        """Listen to channels of others that have come since."""
        external_channels = self._listener.external_channels
        for channel, queue in (await external_channels(connection) if external_channels is not None else {}).items():
            if channel not in self._queues:
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                self._queues[channel] = queue
                self._dispatch(queue)


class _ListenConnection:
    """A connection that listens, while the loop reads it: what is told on it, and the answer to what was asked.

    Whoever finds it lost puts it down at once. libpq has closed the descriptor by then, and says its number no more;
    and as soon as the loop has its next turn, the number may be another connection's.
    """

    def __init__(self, connection: TimedAsyncConnection, dispatch: Callable[[str, str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        """Raises why it can be read no more."""
        self._connection = connection
        self._dispatch = dispatch
        self._descriptor = connection.fileno()
        self._is_reading = False
        self._pending_query: PQGen[list[PGresult]] | None = None
        self._on_result: OnResult = lambda _: None
        self._timeout: asyncio.TimerHandle | None = None
        # What is told while it is asked.
        connection.add_notify_handler(lambda notification: dispatch(notification.channel, notification.payload))

    @property
    def has_pending_query(self) -> bool:
        """Whether an answer is on its way."""
        return self._pending_query is not None

    def start_reading(self) -> None:
        """Have the loop read it."""
        self._loop.add_reader(self._descriptor, self.read)
        self._is_reading = True

    def stop_reading(self) -> None:
        """Have the loop read it no more, if it does."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def query(self, statement: Statement, on_result: OnResult) -> bool:
        """See :meth:`Listener.query`."""
        if self._pending_query is not None or self.broken.done():
            return False
        pending_query = self._connection.executor.execute(statement.text, statement.values)
        try:
            next(pending_query)
        except psycopg.Error as error:
            self._fail(error)
            return False
        self._pending_query, self._on_result = pending_query, on_result
        if (query_timeout := self._connection.query_timeout) is not None:
            timed_out = psycopg.OperationalError(f"it has not answered for {query_timeout:g} s")
            self._timeout = self._loop.call_later(query_timeout, self._fail, timed_out)
        return True

    def read(self) -> None:
        """Take in what the server has said, asked or unasked."""
        pgconn = self._connection.pgconn
        try:
            if self._pending_query is None:
                pgconn.consume_input()
            else:
                self._advance_query(self._pending_query)
            received: dict[tuple[bytes, bytes], None] = {}
            while (notification := pgconn.notifies()) is not None:
                received[notification.relname, notification.extra] = None
        except psycopg.Error as error:
            self._fail(error)
            return
        for channel, payload in received:
            self._dispatch(channel.decode(), payload.decode())

    def abort_query(self) -> None:
        """Say to whoever has asked that no answer will come."""
        if self._pending_query is not None:
            self._finish_query(None)

    def _advance_query(self, pending_query: PQGen[list[PGresult]]) -> None:
        try:
            pending_query.send(Ready.R)
        except StopIteration as end:
            try:
                rows = self._connection.executor.rows(end.value)
            except psycopg.Error as error:
                if self._connection.pgconn.status == ConnStatus.OK:
                    self._finish_query(None)
                else:  # it was refused with the server's last words
                    self._fail(error)
            else:
                self._finish_query(rows)

    def _finish_query(self, rows: list[Row] | None) -> None:
        self._pending_query = None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        self._on_result(rows)

    def _fail(self, error: psycopg.Error) -> None:
        self.stop_reading()
        if not self.broken.done():
            self.broken.set_exception(error)


class _Subscription:
    """One who listens."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.notified = asyncio.Event()
        self._queues = tuple(queues)
        self._pending_kinds: dict[SignalKind, None] = {}

    def deliver(self, notification: str) -> None:
        """Take a notice in, if it may concern these queues."""
        if kinds := self._kinds_of(notification):
            self._pending_kinds.update(dict.fromkeys(kinds))
            self.notified.set()

    def _kinds_of(self, notification: str) -> list[SignalKind]:
        if (kind := _SIGNAL_KINDS.get(notification)) is not None:
            return [kind]
        parts = notification.split(",")
        kinds = [SignalKind.DUE] if DUE in parts else []
        names = [part for part in parts if part != DUE]
        if ALL_QUEUES in names or any(matches(pattern, name) for name in names for pattern in self._queues):
            kinds.append(SignalKind.WORK)
        return kinds

    def take_kinds(self) -> tuple[SignalKind, ...]:
        """Say of what kinds the burst was."""
        self.notified.clear()
        kinds, self._pending_kinds = tuple(self._pending_kinds), {}
        return kinds
