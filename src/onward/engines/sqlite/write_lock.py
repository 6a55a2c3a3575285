"""Takes turns at writing, across processes.

SQLite's own way to wait for the write lock is to sleep and try again, longer each time: the loser sleeps while the
winner comes back, and a busy writer starves another for seconds. Here a writer takes two locks, which the kernel
queues for: *turn*, then *write*; with *write* in hand it lets go of *turn*. Who has just written must queue at
*turn* behind the one that waits there for *write*, so everybody gets through in turn. A killed process lets go of its
locks.

*write* also keeps two of our processes from checkpointing at once, which SQLite before 3.51.3 does not survive.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock; SQLite's own waiting must do there
    fcntl = None  # type: ignore[assignment]

_EXCLUSIVE_NONBLOCKING = 0 if fcntl is None else fcntl.LOCK_EX | fcntl.LOCK_NB


class WriteLock:
    """The two lock files of one database, as one connection has them open."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._paths = (database.with_name(f"{database.name}-turn"), database.with_name(f"{database.name}-write"))
        self._descriptors: tuple[int, int] | None = None
        self._acquired_at = 0.0

    def open(self) -> None:
        """Make the lock files where there are none."""
        if fcntl is None or self._descriptors is not None:
            return
        turn, write = (self._open_file(path) for path in self._paths)
        self._descriptors = (turn, write)

    def _open_file(self, path: Path) -> int:
        """Open a lock file; a new one gets the database's mode and owner, as SQLite's log does: who may write may lock.

        Where there is no database yet it is for its owner only, as that will be: a stranger who can open the file can
        lock it.
        """
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return os.open(path, flags)
        with contextlib.suppress(OSError):
            database = self._database.stat()
            os.fchmod(descriptor, database.st_mode & 0o777)
            if os.geteuid() == 0:  # only root can give files away
                os.fchown(descriptor, database.st_uid, database.st_gid)
        return descriptor

    @property
    def is_open(self) -> bool:
        """Whether there is a lock to take."""
        return self._descriptors is not None

    def close(self) -> None:
        """Let go of the lock files; they stay, for others may be using them."""
        if self._descriptors is not None:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors = None

    @contextmanager
    def held(self, *, before_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait for our turn to write, and keep it for the block. Calls ``must_wait`` before it does."""
        if self._descriptors is None:
            yield
            return
        turn, write = self._descriptors
        self._acquired_at = time.monotonic()
        if not _try_lock(turn):
            before_wait()
            fcntl.flock(turn, fcntl.LOCK_EX)
            self._acquired_at = time.monotonic()
        try:
            if not _try_lock(write):
                before_wait()
                fcntl.flock(write, fcntl.LOCK_EX)
                self._acquired_at = time.monotonic()
        finally:
            fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            self.release()

    def try_acquire(self) -> bool:
        """Take our turn to write if it can be had without waiting, to be given up by :meth:`release`."""
        if self._descriptors is None:
            return fcntl is None
        turn, write = self._descriptors
        self._acquired_at = time.monotonic()
        try:
            fcntl.flock(turn, _EXCLUSIVE_NONBLOCKING)
            try:
                fcntl.flock(write, _EXCLUSIVE_NONBLOCKING)
            finally:
                fcntl.flock(turn, fcntl.LOCK_UN)
        except BlockingIOError:
            return False
        return True

    def holder(self, *, locks: Path = Path("/proc/locks")) -> int | None:
        """Return the id of the process that holds *write*; None: the system does not say."""
        if self._descriptors is None:
            return None
        inode = os.fstat(self._descriptors[1]).st_ino
        try:
            lines = locks.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return None
        for fields in map(str.split, lines):
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode) and int(fields[4]) > 0:
                return int(fields[4])
        return None

    def held_seconds(self) -> float:
        """Return the time since our turn began. It includes waits for Python's global lock with *write* in hand."""
        return 0.0 if self._descriptors is None else time.monotonic() - self._acquired_at

    def restart_hold(self) -> None:
        """Count from now: until now, a program that takes no turns kept others from writing."""
        self._acquired_at = time.monotonic()

    def release(self) -> None:
        """Let others have their turn."""
        if self._descriptors is not None:
            fcntl.flock(self._descriptors[1], fcntl.LOCK_UN)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, _EXCLUSIVE_NONBLOCKING)
    except BlockingIOError:
        return False
    return True
