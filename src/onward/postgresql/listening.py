"""Hears of changes: one thread with a connection of its own, which only listens.

PostgreSQL tells who listens when a transaction that made work ready has committed. What it tells is a hint: while the
connection is down, workers find jobs by asking now and then. Whenever the thread begins to listen, it tells everyone to
look: something may have come before. Behind a pooler nobody can listen; the thread then tells everyone to look once a
second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import select
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import sql

from onward.engine.values import Signal, SignalKind
from onward.errors import StoreUnavailable
from onward.postgresql import forking
from onward.postgresql.database import Database
from onward.rules import matches

log = logging.getLogger("onward.postgresql")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds between attempts to listen again: doubling, and never in step with others."""

_LOOK_EVERY: Final = 1.0
"""Seconds between looks where nobody can be told."""
_ASK_EVERY: Final = 20.0
"""Seconds of silence after which the server is asked whether it is there: a connection that has gone deaf says nothing,
and so does one on which there is nothing to say."""

_HEARD: Final = "select pg_advisory_lock_shared(hashtextextended($1::text, 1))"
"""By which those who tell of work know that somebody listens on a channel: see ``tell`` in the schema of Onward."""

EVERYTHING: Final = "*"
"""Told where work is ready in queues that nobody lists."""
DUE: Final = "@"
"""Told, by itself or beside the names of queues, where a job comes due soon."""
CANCELLED: Final = "!"
"""Told where held jobs may have been taken back."""
ANYTHING: Final = "?"
"""What the thread itself says when it may have missed something."""
_KINDS: Final = {CANCELLED: SignalKind.CANCELLED, ANYTHING: SignalKind.CHANGED}


Others = Callable[[psycopg.Connection[Any]], Mapping[str, str]]
"""Says which channels somebody else tells of work on, and the queue that each is for."""


class Listener:
    """Tells those who wait on any event loop that something may have changed."""

    def __init__(
        self,
        database: Database,
        channel: str,
        *,
        ask_every: float = _ASK_EVERY,
        others: Others | None = None,
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Listen on a channel of ours, and on those of others that ``others`` names: it is asked now and then.

        ``on_notice`` is called with all that is told, on the listener's thread.
        """
        self._database = database
        self._channel = channel
        self._ask_every = ask_every
        self._others = others
        self._on_notice = on_notice
        self.is_listening = False
        """Whether whatever is told now will be heard."""
        self._waiting: dict[_Ear, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_writer = -1
        forking.register(self)

    async def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        ear = _Ear(queues)
        with self._lock:
            self._waiting[ear] = asyncio.get_running_loop()
            self._begin()
        try:
            while True:
                await ear.told.wait()
                for kind in ear.take():
                    yield Signal(kind)
        finally:
            with self._lock:
                self._waiting.pop(ear, None)

    def tell(self, notice: str) -> None:
        """Wake whom it may concern. From any thread."""
        self._on_notice(notice)
        with self._lock:
            waiting = list(self._waiting.items())
        for ear, loop in waiting:
            if not ear.wants(notice):
                continue
            try:
                loop.call_soon_threadsafe(ear.hear, notice)
            except RuntimeError:  # that loop has closed
                with self._lock:
                    self._waiting.pop(ear, None)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            os.write(self._stop_writer, b"!")
            os.close(self._stop_writer)
            thread.join()

    def begin_anew(self) -> None:
        """Forget what is the parent's, in a forked child."""
        self._lock = threading.Lock()
        self._waiting = {}
        self._thread = None

    def _begin(self) -> None:
        if self._thread is None:
            stop, self._stop_writer = os.pipe()
            self._thread = threading.Thread(
                target=self._run, args=(stop,), name="onward-postgres-listener", daemon=True
            )
            self._thread.start()

    def _run(self, stop: int) -> None:
        pause = _FIRST_PAUSE
        try:
            while self._database.is_pooled:
                self.tell(ANYTHING)
                if _is_readable(stop, _LOOK_EVERY):
                    return
            while True:
                try:
                    with self._database.connect() as connection:
                        connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
                        connection.execute(_HEARD, [self._channel])
                        self.is_listening = True
                        self.tell(ANYTHING)
                        pause = _FIRST_PAUSE
                        if self._listen(connection, stop):
                            return
                except (psycopg.Error, StoreUnavailable, OSError) as error:
                    log.warning("cannot listen to %s, workers poll meanwhile: %s", self._database, error)
                self.is_listening = False
                self.tell(ANYTHING)
                if _is_readable(stop, pause * (0.5 + random.random())):  # noqa: S311 - jitter
                    return
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            self.is_listening = False
            os.close(stop)

    def _listen(self, connection: psycopg.Connection[Any], stop: int) -> bool:
        """Pass on what is told; True: it is time to stop."""
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        poll.register(connection.fileno(), select.POLLIN)
        queues: dict[str, str] = {}
        # What comes while it is asked.
        connection.add_notify_handler(lambda notice: self.tell(queues.get(notice.channel, notice.payload)))
        pgconn = connection.pgconn
        asked_at = self._listen_to_others(connection, queues)
        while True:
            heard_from = poll.poll(self._ask_every * 1000)
            if any(descriptor == stop for descriptor, _ in heard_from):
                return True
            if self._others is not None and monotonic() - asked_at >= self._ask_every:
                asked_at = self._listen_to_others(connection, queues)
            elif not heard_from:
                connection.execute("select")
            if not heard_from:
                continue
            pgconn.consume_input()
            heard: dict[str, None] = {}
            while (notice := pgconn.notifies()) is not None:
                heard[queues.get(notice.relname.decode(), notice.extra.decode())] = None
            for told in heard:
                self.tell(told)

    def _listen_to_others(self, connection: psycopg.Connection[Any], queues: dict[str, str]) -> float:
        """Listen to channels of others that have come since; say when."""
        for channel, queue in (self._others(connection) if self._others is not None else {}).items():
            if channel not in queues:
                connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                queues[channel] = queue
                self.tell(queue)
        return monotonic()


class _Ear:
    """One who listens."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.told = asyncio.Event()
        self._queues = tuple(queues)
        self._kinds: dict[SignalKind, None] = {}

    def wants(self, notice: str) -> bool:
        """Say whether a notice may concern these queues."""
        return bool(self._kinds_of(notice))

    def hear(self, notice: str) -> None:
        """Take a notice in, on the loop of who listens."""
        self._kinds.update(dict.fromkeys(self._kinds_of(notice)))
        self.told.set()

    def _kinds_of(self, notice: str) -> list[SignalKind]:
        if (kind := _KINDS.get(notice)) is not None:
            return [kind]
        told = notice.split(",")
        kinds = [SignalKind.DUE] if DUE in told else []
        names = [name for name in told if name != DUE]
        if EVERYTHING in names or any(matches(pattern, name) for name in names for pattern in self._queues):
            kinds.append(SignalKind.WORK)
        return kinds

    def take(self) -> tuple[SignalKind, ...]:
        """Say of what kinds the burst was."""
        self.told.clear()
        kinds, self._kinds = tuple(self._kinds), {}
        return kinds


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
