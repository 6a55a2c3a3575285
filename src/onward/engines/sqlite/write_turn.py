"""The write lock as an application's connection holds it: from before BEGIN until after COMMIT, with a time limit.

The kernel has no wait for a lock with a time limit, and trying again and again would starve. So the wait is left to a
thread of its own, which exists only while another writer holds the lock: it either hands the lock over, or, if the
connection has given up by then, releases it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from onward.engines.sqlite.write_lock import WriteLock


class WriteTurn:
    """One connection's hold on the write lock of a database file. Used by one thread at a time."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock = WriteLock(database)
        self._release: Callable[[], object] | None = None

    @property
    def is_held(self) -> bool:
        """Whether the connection holds the lock."""
        return self._release is not None

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock for at most ``timeout`` seconds; False: another writer held it all that time."""
        if self._release is not None:
            return True
        self._lock.open()
        if self._lock.try_acquire():
            self._release = self._lock.release
            return True
        wait = _Wait(self._lock)
        try:
            held = wait.result(timeout)
        except BaseException:
            self._lock = WriteLock(self._database)
            raise
        if held is None:
            self._lock = WriteLock(self._database)  # the thread that waits keeps the other one, and closes it
            return False
        self._release = lambda: held.__exit__(None, None, None)
        return True

    def holder(self) -> int | None:
        """Return the id of the process that holds the lock; None: the system does not say."""
        self._lock.open()
        return self._lock.holder()

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._release is not None:
            release, self._release = self._release, None
            release()

    def close(self) -> None:
        """Release the lock and close its files. Idempotent."""
        self.release()
        self._lock.close()

    def forget(self) -> None:
        """Close the files in a forked child, where the lock is the parent's: it keeps it."""
        self._release = None
        self._lock.close()


class _Wait:
    """A thread that waits for the lock on behalf of a connection."""

    def __init__(self, lock: WriteLock) -> None:
        self._lock = lock
        self._held: AbstractContextManager[None] | None = None
        self._is_abandoned = False
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._error: OSError | None = None
        threading.Thread(target=self._run, name="onward-sqlite-turn", daemon=True).start()

    def result(self, timeout: float) -> AbstractContextManager[None] | None:
        """Return what holds the lock until it is left; None: it took too long."""
        try:
            self._ended.wait(timeout)
        finally:
            with self._guard:
                self._is_abandoned = self._held is None
        if self._error is not None:
            raise self._error
        return self._held

    def _run(self) -> None:
        held = self._lock.held()
        try:
            held.__enter__()
        except OSError as error:
            self._error = error
            self._lock.close()
            self._ended.set()
            return
        with self._guard:
            if not self._is_abandoned:
                self._held = held
        if self._held is None:
            held.__exit__(None, None, None)
            self._lock.close()
        self._ended.set()
