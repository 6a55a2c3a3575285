"""Hears of changes: on each event loop where somebody waits, by a connection that only listens.

PostgreSQL tells who listens when a transaction that made work ready has committed. What it tells is a hint: while the
connection is down, workers find jobs by asking now and then. Whenever it begins to listen, it tells everyone to look:
something may have come before. Behind a pooler nobody can listen; everyone is then told to look once a second.

The loop itself reads what is told: a thread for that would have to wake it each time, and a job waits for that. Who is
told of work may ask for it on the same connection (``ask``): at that moment the server's process behind it is awake.
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
from onward.pg.connection import TimedAsyncConnection
from onward.pg.database import Database
from onward.pg.per_loop import PerLoop
from onward.pg.plans import Row, Statement
from onward.validation import matches

log = logging.getLogger("onward.pg")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds between attempts to listen again: doubling, and never in step with others."""

_LOOK_EVERY: Final = 1.0
"""Seconds between looks where nobody can be told."""
PROBE_INTERVAL: Final = 20.0
"""Seconds of silence after which the server is asked whether it is there: a connection that has gone deaf says nothing,
and so does one on which there is nothing to say."""

_HEARD: Final = "select pg_advisory_lock_shared(hashtextextended($1::text, 1))"
"""By which those who tell of work know that somebody listens on a channel: see ``tell`` in the schema of Onward."""

ALL_QUEUES: Final = "*"
"""Told where work is ready in queues that nobody lists."""
DUE: Final = "@"
"""Told, by itself or beside the names of queues, where a job comes due soon."""
CANCELLED: Final = "!"
"""Told where held jobs may have been taken back."""
SETTINGS_CHANGED: Final = "?"
"""What is said here when something may have been missed."""
_KINDS: Final = {CANCELLED: SignalKind.CANCELLED, SETTINGS_CHANGED: SignalKind.CHANGED}


Others = Callable[[psycopg.AsyncConnection[Any]], Awaitable[Mapping[str, str]]]
"""Says which channels somebody else tells of work on, and the queue that each is for."""
OnAnswer = Callable[[list[Row] | None], None]
"""Is given the rows that were answered; None: the statement was refused, or nobody knows: the connection is lost."""


class Listener:
    """Tells those who wait, on any event loop, that something may have changed."""

    def __init__(
        self,
        database: Database,
        channel: str,
        *,
        ask_every: float = PROBE_INTERVAL,
        others: Others | None = None,
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Listen on a channel of ours, and on those of others that ``others`` names: it is asked now and then.

        ``on_notice`` is called with all that is told, before those who wait for it are woken.
        """
        self.database = database
        self.channel = channel
        self.ask_every = ask_every
        self.others = others
        self.on_notice = on_notice
        self.reset_after_fork()
        fork_safety.register(self)

    @property
    def is_listening(self) -> bool:
        """Whether whatever is told now will be heard."""
        return any(post.is_listening for post in self._posts.all())

    async def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        post, ear = self._posts.here(), _Ear(queues)
        post.take_up(ear)
        try:
            while True:
                await ear.told.wait()
                for kind in ear.take():
                    yield Signal(kind)
        finally:
            post.ears.remove(ear)

    def ask(self, statement: Statement, on_answer: OnAnswer) -> bool:
        """Send a statement on the connection that listens for this event loop; ``on_answer`` is called once, later.

        False: nothing is sent, since there is no such connection, or it waits for another answer.
        """
        return self._posts.here().ask(statement, on_answer)

    async def close(self) -> None:
        """Listen no more, on whatever loop."""
        for post in self._posts.take_all():
            await post.close()

    def reset_after_fork(self) -> None:
        """Forget what is the parent's, in a forked child."""
        self._posts = PerLoop(lambda: _Post(self))


class _Post:
    """Where one event loop listens."""

    def __init__(self, listener: Listener) -> None:
        self.is_listening = False
        self.ears: list[_Ear] = []
        self._listener = listener
        self._queues: dict[str, str] = {}
        """Of others' channels, which queue each is for."""
        self._run: asyncio.Task[None] | None = None
        """While it lasts: it would keep a loop that has closed."""
        self._line: _Line | None = None
        """While the loop reads what is told."""

    def take_up(self, ear: _Ear) -> None:
        """Listen for one more."""
        self.ears.append(ear)
        if self._run is None:
            self._run = asyncio.create_task(self._keep_listening(), name="onward-postgres-listener")
            self._run.add_done_callback(self._has_ended)

    def _has_ended(self, _: asyncio.Task[None]) -> None:
        self._run = None

    async def close(self) -> None:
        """Listen no more; from any loop."""
        if (run := self._run) is None:
            return
        if (loop := run.get_loop()) is asyncio.get_running_loop():
            run.cancel()
            await asyncio.wait([run])
        elif loop.is_running():
            with suppress(RuntimeError):  # it has just closed
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), loop))

    def ask(self, statement: Statement, on_answer: OnAnswer) -> bool:
        """See :meth:`Listener.ask`."""
        return self._line is not None and self._line.ask(statement, on_answer)

    def _tell(self, notice: str) -> None:
        """Wake whom it may concern."""
        self._listener.on_notice(notice)
        for ear in self.ears:
            ear.hear(notice)

    async def _keep_listening(self) -> None:
        database, channel, pause = self._listener.database, self._listener.channel, _FIRST_PAUSE
        while database.is_pooled:
            self._tell(SETTINGS_CHANGED)
            await asyncio.sleep(_LOOK_EVERY)
        while True:
            try:
                connection = await database.aconnect()
                try:
                    await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                    await connection.execute(_HEARD, [channel])
                    self.is_listening = True
                    self._tell(SETTINGS_CHANGED)
                    pause = _FIRST_PAUSE
                    await self._listen(connection)
                finally:
                    self.is_listening = False
                    connection.pgconn.finish()  # without a word: it may have gone deaf
            except (psycopg.Error, StoreUnavailable, OSError) as error:
                log.warning("cannot listen to %s, workers poll meanwhile: %s", database, error)
            self._tell(SETTINGS_CHANGED)
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - jitter
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _listen(self, connection: TimedAsyncConnection) -> None:
        """Pass on what is told, for as long as the connection lasts."""
        listener, self._queues = self._listener, {}
        line = _Line(connection, lambda channel, payload: self._tell(self._queues.get(channel, payload)))
        asked_at = await self._listen_to_others(connection)
        try:
            while True:
                self._line = line
                line.take_up()
                try:
                    await asyncio.wait([line.broken], timeout=asked_at + listener.ask_every - monotonic())
                finally:
                    line.put_down()
                    self._line = None
                if line.broken.done():
                    line.broken.result()
                if line.is_asked:
                    asked_at = monotonic()  # it has its own patience
                elif listener.others is None:
                    await connection.execute("select")
                    asked_at = monotonic()
                else:
                    asked_at = await self._listen_to_others(connection)
        finally:
            line.end()

    async def _listen_to_others(self, connection: TimedAsyncConnection) -> float:
        """Listen to channels of others that have come since; say when."""
        others = self._listener.others
        for channel, queue in (await others(connection) if others is not None else {}).items():
            if channel not in self._queues:
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                self._queues[channel] = queue
                self._tell(queue)
        return monotonic()


class _Line:
    """A connection that listens, while the loop reads it: what is told on it, and the answer to what was asked.

    Whoever finds it lost puts it down at once. libpq has closed the descriptor by then, and says its number no more;
    and as soon as the loop has its next turn, the number may be another connection's.
    """

    def __init__(self, connection: TimedAsyncConnection, tell: Callable[[str, str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        """Raises why it can be read no more."""
        self._connection = connection
        self._tell = tell
        self._descriptor = connection.fileno()
        self._is_read = False
        self._asking: PQGen[list[PGresult]] | None = None
        self._on_answer: OnAnswer = lambda _: None
        self._alarm: asyncio.TimerHandle | None = None
        # What is told while it is asked.
        connection.add_notify_handler(lambda notice: tell(notice.channel, notice.payload))

    @property
    def is_asked(self) -> bool:
        """Whether an answer is on its way."""
        return self._asking is not None

    def take_up(self) -> None:
        """Have the loop read it."""
        self._loop.add_reader(self._descriptor, self.read)
        self._is_read = True

    def put_down(self) -> None:
        """Have the loop read it no more, if it does."""
        if self._is_read:
            self._is_read = False
            self._loop.remove_reader(self._descriptor)

    def ask(self, statement: Statement, on_answer: OnAnswer) -> bool:
        """See :meth:`Listener.ask`."""
        if self._asking is not None or self.broken.done():
            return False
        asking = self._connection.asks.asking(statement.text, statement.values)
        try:
            next(asking)
        except psycopg.Error as error:
            self._break(error)
            return False
        self._asking, self._on_answer = asking, on_answer
        if (query_timeout := self._connection.query_timeout) is not None:
            late = psycopg.OperationalError(f"it has not answered for {query_timeout:g} s")
            self._alarm = self._loop.call_later(query_timeout, self._break, late)
        return True

    def read(self) -> None:
        """Take in what the server has said, asked or unasked."""
        pgconn = self._connection.pgconn
        try:
            if self._asking is None:
                pgconn.consume_input()
            else:
                self._go_on(self._asking)
            heard: dict[tuple[bytes, bytes], None] = {}
            while (notice := pgconn.notifies()) is not None:
                heard[notice.relname, notice.extra] = None
        except psycopg.Error as error:
            self._break(error)
            return
        for channel, payload in heard:
            self._tell(channel.decode(), payload.decode())

    def end(self) -> None:
        """Say to whoever has asked that no answer will come."""
        if self._asking is not None:
            self._answer(None)

    def _go_on(self, asking: PQGen[list[PGresult]]) -> None:
        try:
            asking.send(Ready.R)
        except StopIteration as end:
            try:
                rows = self._connection.asks.rows(end.value)
            except psycopg.Error as error:
                if self._connection.pgconn.status == ConnStatus.OK:
                    self._answer(None)
                else:  # it was refused with the server's last words
                    self._break(error)
            else:
                self._answer(rows)

    def _answer(self, rows: list[Row] | None) -> None:
        self._asking = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._on_answer(rows)

    def _break(self, error: psycopg.Error) -> None:
        self.put_down()
        if not self.broken.done():
            self.broken.set_exception(error)


class _Ear:
    """One who listens."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.told = asyncio.Event()
        self._queues = tuple(queues)
        self._kinds: dict[SignalKind, None] = {}

    def hear(self, notice: str) -> None:
        """Take a notice in, if it may concern these queues."""
        if kinds := self._kinds_of(notice):
            self._kinds.update(dict.fromkeys(kinds))
            self.told.set()

    def _kinds_of(self, notice: str) -> list[SignalKind]:
        if (kind := _KINDS.get(notice)) is not None:
            return [kind]
        told = notice.split(",")
        kinds = [SignalKind.DUE] if DUE in told else []
        names = [name for name in told if name != DUE]
        if ALL_QUEUES in names or any(matches(pattern, name) for name in names for pattern in self._queues):
            kinds.append(SignalKind.WORK)
        return kinds

    def take(self) -> tuple[SignalKind, ...]:
        """Say of what kinds the burst was."""
        self.told.clear()
        kinds, self._kinds = tuple(self._kinds), {}
        return kinds
