"""Sees that the database has changed, whoever did it: another process, a caller's transaction, a person at a console.

SQLite has no push, but every commit writes to the write-ahead log, and the kernel tells who asks of writes to a file:
so a change is seen at once, and waiting costs nothing. Where there is no inotify, one thread looks every few
milliseconds. Either way SQLite's own change counter has the last word, so that a checkpoint or an unfinished write
wakes nobody.

Our own commits need no such look: the writer says at once when it made work ready.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from enum import Enum, auto
from typing import Final

from onward.engine.values import Signal, SignalKind
from onward.engines.sqlite import fork_safety
from onward.engines.sqlite.database import Database
from onward.errors import StoreUnavailable

_POLL_INTERVAL: Final = 0.01
"""Seconds between looks where the kernel does not tell."""
_NOTIFY_INTERVAL: Final = 0.001
"""Seconds after a change in which further ones are not told of: a busy writer must not keep everyone awake."""
_RECHECK_DELAYS: Final = tuple(0.001 * 2**number for number in range(10))
"""Seconds between the looks that follow a notice."""
_IN_MODIFY: Final = 0x2


class FileWatcher:
    """Tells listeners on any event loop that something may have changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_writer = -1
        self._is_forking = False
        fork_safety.register(self)

    async def signals(self) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        changed = asyncio.Event()
        with self._lock:
            self._listeners[changed] = asyncio.get_running_loop()
            self._start()
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield Signal(SignalKind.CHANGED)
        finally:
            with self._lock:
                self._listeners.pop(changed, None)

    def notify(self) -> None:
        """Wake every listener. From any thread."""
        if not self._listeners:
            return
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
            thread, self._thread = self._thread, None
        if thread is not None:
            os.write(self._stop_writer, b"!")
            os.close(self._stop_writer)
            thread.join()

    def suspend_before_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        with self._lock:
            self._is_forking = True
        self.close()

    def resume_after_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        with self._lock:
            self._is_forking = False
            if self._listeners:
                self._start()

    def reset_after_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        self._lock = threading.Lock()
        self._listeners = {}
        self._thread = None
        self._is_forking = False

    def _start(self) -> None:
        if self._thread is None and not self._is_forking:
            stop, self._stop_writer = os.pipe()
            name = "onward-sqlite-watcher"
            self._thread = threading.Thread(target=self._watch, args=(stop,), name=name, daemon=True)
            self._thread.start()

    def _watch(self, stop: int) -> None:
        connection: sqlite3.Connection | None = None
        inotify = -1
        version = None
        rechecks = 0
        try:
            while True:
                try:
                    if connection is None:
                        connection = self._database.connect(read_only=True)
                    if inotify < 0:  # before the look: nothing may slip in between
                        inotify = _watch_with_inotify(os.fspath(self._database.wal))
                    seen = connection.execute("pragma data_version").fetchone()[0]
                except (sqlite3.Error, StoreUnavailable):
                    seen = None  # workers poll as well, and they will say what is wrong
                if seen != version:
                    version = seen
                    self.notify()
                    time.sleep(_NOTIFY_INTERVAL)
                if inotify < 0:
                    timeout: float | None = _POLL_INTERVAL
                else:
                    timeout = _RECHECK_DELAYS[rechecks] if rechecks < len(_RECHECK_DELAYS) else None
                match _wait(stop, inotify, timeout):
                    case _WakeReason.STOP:
                        return
                    case _WakeReason.WRITE:
                        rechecks = 0
                    case _WakeReason.TIMEOUT:
                        rechecks += 1
        finally:
            if connection is not None:
                connection.close()
            for descriptor in (stop, inotify):
                if descriptor >= 0:
                    os.close(descriptor)


class _WakeReason(Enum):
    STOP = auto()
    WRITE = auto()
    TIMEOUT = auto()


def _wait(stop: int, inotify: int, timeout: float | None) -> _WakeReason:
    """Wait until there may be something to see, or for so many seconds; say why it ended."""
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    if inotify >= 0:
        poll.register(inotify, select.POLLIN)
    ready = poll.poll(None if timeout is None else timeout * 1000)
    if any(descriptor == stop for descriptor, _ in ready):
        return _WakeReason.STOP
    if ready:
        os.read(inotify, 65536)
        return _WakeReason.WRITE
    return _WakeReason.TIMEOUT


def _watch_with_inotify(path: str) -> int:
    """Ask the kernel to tell of writes to a file; -1: it cannot, or has too many to tell already."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        inotify = int(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    except (OSError, AttributeError, TypeError):
        return -1
    if inotify >= 0 and libc.inotify_add_watch(inotify, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(inotify)
        return -1
    return inotify
