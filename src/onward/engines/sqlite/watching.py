"""Sees that the database has changed, whoever changed it: another process, a caller's transaction, a person at a console.

SQLite has no push. It does keep a version that every commit of another connection moves, and reading it costs a few
microseconds; so one thread per engine reads it every few milliseconds while somebody listens. Our own commits need no
such look: the writer says at once when it made work ready.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from typing import Final

from onward.engine.values import Signal, SignalKind
from onward.engines.sqlite.database import Database
from onward.errors import StoreUnavailable

_INTERVAL: Final = 0.003
"""Seconds between looks: half of it is what a job waits on average before another process sees it, and 330 looks a second
cost less than half a percent of a core."""


class Watcher:
    """Tells listeners on any event loop that something may have changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None
        self._pid = 0

    async def signals(self) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        changed = asyncio.Event()
        with self._lock:
            self._listeners[changed] = asyncio.get_running_loop()
            if self._stop is None or self._pid != os.getpid():
                self._stop, self._pid = threading.Event(), os.getpid()
                threading.Thread(target=self._watch, args=(self._stop,), name="onward-sqlite-watcher", daemon=True).start()
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield Signal(SignalKind.CHANGED)
        finally:
            with self._lock:
                self._listeners.pop(changed, None)

    def tell(self) -> None:
        """Wake every listener. From any thread."""
        with self._lock:
            listeners = list(self._listeners.items())
        for changed, loop in listeners:
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:  # that loop has closed
                with self._lock:
                    self._listeners.pop(changed, None)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            if self._stop is not None:
                self._stop.set()
                self._stop = None

    def _watch(self, stop: threading.Event) -> None:
        connection: sqlite3.Connection | None = None
        version = -1
        try:
            while not stop.wait(_INTERVAL):
                if not self._listeners:
                    continue
                try:
                    if connection is None:
                        connection = self._database.connect(read_only=True)
                    seen = connection.execute("pragma data_version").fetchone()[0]
                except (sqlite3.Error, StoreUnavailable):
                    connection, seen = None, -1  # workers poll as well, and they will say what is wrong
                if seen != version:
                    version = seen
                    self.tell()
        finally:
            if connection is not None:
                connection.close()
