"""The database file: where it is, whether it can be trusted, how to connect, and what its errors mean."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from onward.errors import (
    OnwardError,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

MIN_SQLITE_VERSION: Final = (3, 37, 0)
SAFE_CHECKPOINT_VERSION: Final = (3, 51, 3)
"""Before it, two connections that checkpoint at once can corrupt the database."""

WAL_SIZE_LIMIT: Final = 4 * 1024 * 1024
"""How long the write-ahead log may get: whose commit takes it further checkpoints it, while it holds the write lock, so
that there are never two at once."""

_JOURNAL_MODE_RETRY_SECONDS: Final = 0.005

COMMITS_PER_SIZE_CHECK: Final = 16
"""Commits of a connection between two looks at the size of the log."""

Synchronous = Literal["full", "normal"]

FileId = tuple[int, int]
"""Device and inode: the file that a path names at a moment."""

_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gpfs", "lustre", "ncpfs",
     "nfs", "nfs4", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "fuse.vmhgfs-fuse"}
)  # fmt: skip


class Database:
    """One SQLite file."""

    def __init__(
        self, path: str | os.PathLike[str] | None, *, synchronous: Synchronous = "full", busy_timeout: float = 5.0
    ) -> None:
        self._temporary: Path | None = None
        self._creator_pid = os.getpid()
        if path is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="onward-"))
            weakref.finalize(self, _remove_folder, self._temporary, os.getpid())  # at the latest when the program ends
            path = self._temporary / "jobs.db"
        # SQLite keeps the write-ahead log beside the file itself, not beside a symbolic link to it. Our lock files must
        # be the same for every process, by whatever path it came.
        self.path = Path(os.path.realpath(path))
        self.synchronous = synchronous
        self.busy_timeout = busy_timeout
        self.must_exist = False
        """Set while it is in use: a file that is gone must not be replaced by an empty one."""

    def inode(self) -> str:
        """By which the file is known. Not by its device: a disk may get another number at each start."""
        return str(self.path.stat().st_ino)

    def __str__(self) -> str:
        """Name it as errors do."""
        return f"SQLite database {self.path}"

    @property
    def wal(self) -> Path:
        """The write-ahead log beside it."""
        return self.path.with_name(f"{self.path.name}-wal")

    def file_id(self) -> FileId | None:
        """Return which file the path names now; None: there is none."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - before every answer
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_read_only(self) -> bool:
        """Whether the folder is there and nothing can be made in it: SQLite needs to, for its log and its locks."""
        return self.path.parent.is_dir() and not os.access(self.path.parent, os.W_OK)

    def file_changed(self) -> StoreUnavailable:
        """Make the error for a file that was removed, moved away or replaced while it was in use."""
        return StoreUnavailable(
            f"{self} was removed or replaced while it was in use, and the last write may be lost with it",
            remedy="put the file back with its -wal file, or restart the program to begin with what is there",
        )

    @property
    def is_temporary(self) -> bool:
        """Whether it goes when it is closed."""
        return self._temporary is not None

    def remove_if_temporary(self) -> None:
        """Remove a private file and what stands beside it, in the process that made it: a forked child may share it."""
        if self._temporary is not None:
            _remove_folder(self._temporary, self._creator_pid)

    def check_location(self, *, mounts: Path = Path("/proc/self/mountinfo")) -> None:
        """Refuse a place where SQLite's locks do not hold, or where there is nothing to open."""
        if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
            message = (
                f"this Python has SQLite {sqlite3.sqlite_version}, "
                f"Onward needs {'.'.join(map(str, MIN_SQLITE_VERSION))}: "
                "use a Python that is linked with a newer SQLite"
            )
            raise StoreUnavailable(message)
        folder = self.path.parent
        with translated(self):
            exists = folder.is_dir()
        if not exists:
            message = f"{self}: the folder {folder} does not exist; make it first"
            raise StoreUnavailable(message)
        file_system = file_system_of(folder, mounts=mounts)
        if file_system in _NETWORK_FILE_SYSTEMS:
            message = (
                f"{self} is on a network file system ({file_system}), where SQLite's locks do not hold and jobs would "
                "be run twice or lost: put the file on a local disk, or use postgresql:// for several machines"
            )
            raise StoreUnavailable(message)

    def connect(self, *, read_only: bool = False) -> sqlite3.Connection:
        """Open a connection with our settings, for use on one thread at a time."""
        if self.must_exist and not self.path.exists():
            raise self.file_changed()
        with translated(self):
            self.create_private()
            connection = sqlite3.connect(
                self.path,
                timeout=self.busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            try:
                self.configure(connection)
                connection.execute("pragma cache_size = -65536")
                connection.execute("pragma temp_store = memory")
                if read_only:
                    connection.execute("pragma query_only = 1")
            except BaseException:
                connection.close()
                raise
            return connection

    def create_private(self) -> None:
        """Create the file if it is missing, readable by its owner only: SQLite would make it readable for everyone.

        The files beside it get its mode.
        """
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))

    def configure(self, connection: sqlite3.Connection | sqlite3.Cursor) -> None:
        """Set what every connection that writes to the file must have set."""
        mode = self._use_write_ahead_log(connection)
        if mode != "wal":
            message = f"{self} cannot use a write-ahead log (its journal mode is {mode})"
            raise StoreUnavailable(message)
        connection.execute(f"pragma synchronous = {self.synchronous}")
        # SQLite's own checkpoints would let two processes checkpoint at once: see checkpoint_when_large.
        connection.execute("pragma wal_autocheckpoint = 0")
        connection.execute(f"pragma journal_size_limit = {WAL_SIZE_LIMIT}")

    def _use_write_ahead_log(self, connection: sqlite3.Connection | sqlite3.Cursor) -> str:
        """Set the journal mode, and return the one in force.

        SQLite does not wait for its busy timeout where two connections set it on a new file at once: neither could go
        on. So the one that is refused tries again.
        """
        deadline = time.monotonic() + self.busy_timeout
        while True:
            try:
                return str(connection.execute("pragma journal_mode = wal").fetchone()[0])
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_JOURNAL_MODE_RETRY_SECONDS)

    def checkpoint_when_large(self, connection: sqlite3.Connection | sqlite3.Cursor) -> None:
        """Checkpoint a write-ahead log that is past its limit. The caller holds the write lock and no transaction.

        It does not wait for readers. Once all of the log is in the database, the next write begins the log from its
        start and cuts the file back to the limit: from then on it is overwritten, which is flushed twice as fast as a
        file that grows.
        """
        try:
            size = self.wal.stat().st_size
        except OSError:
            return
        if size > WAL_SIZE_LIMIT:
            connection.execute("pragma wal_checkpoint(passive)").fetchall()


def _remove_folder(folder: Path, creator_pid: int) -> None:
    if creator_pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


# The kernel writes a space, a tab, a line's end and a backslash in a name of a mount point like this.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def file_system_of(folder: Path, *, mounts: Path) -> str | None:
    """Say what kind of file system a folder is on; None where that cannot be told."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    best: tuple[int, str | None] = (-1, None)
    resolved = os.path.realpath(folder)
    for line in lines:
        before, _, after = line.partition(" - ")
        mount_point = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), before.split(" ")[4])
        is_inside = mount_point in {"/", resolved} or resolved.startswith(f"{mount_point}/")
        if is_inside and len(mount_point) >= best[0]:
            best = (len(mount_point), after.split(" ")[0])
    return best[1]


_REMEDIES: Final[dict[int, tuple[type[StoreUnavailable], str]]] = {
    sqlite3.SQLITE_BUSY: (
        StoreBusy,
        "another program holds its write lock; end that program's transaction, or raise busy_timeout",
    ),
    sqlite3.SQLITE_BUSY_SNAPSHOT: (
        StoreBusy,
        "another connection has written since the transaction's first read; roll back, then begin with BEGIN IMMEDIATE",
    ),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "another connection holds a lock on it; end that connection's transaction"),
    sqlite3.SQLITE_FULL: (StoreFull, "the disk is full; free some space, nothing was written"),
    sqlite3.SQLITE_READONLY: (
        StoreReadOnly,
        "it may not be written to; check the permissions of the file and its folder, and how it is mounted",
    ),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "access was refused; check the permissions of the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnavailable,
        "it cannot be opened; check the path and the permissions of its folder",
    ),
    sqlite3.SQLITE_CORRUPT: (
        StoreCorrupt,
        "it is damaged; restore a backup, or recover it with: sqlite3 FILE .recover",
    ),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "it is not an SQLite database; give another path"),
    sqlite3.SQLITE_IOERR: (StoreUnavailable, "reading or writing it failed; check the disk"),
    sqlite3.SQLITE_NOMEM: (StoreUnavailable, "there was not enough memory"),
}


def is_busy(error: BaseException) -> bool:
    """Say whether another connection was in the way."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def translate(error: sqlite3.Error | OSError, database: Database) -> OnwardError | None:
    """Say in our words what a store's error means; None: it is a mistake of ours, and must not be hidden."""
    if isinstance(error, OSError):
        meaning: tuple[type[StoreUnavailable], str] | None = (StoreUnavailable, "check the disk")
        if error.errno in _READ_ONLY:
            meaning = _REMEDIES[sqlite3.SQLITE_READONLY]
        elif error.errno in _FULL:
            meaning = _REMEDIES[sqlite3.SQLITE_FULL]
    else:
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_READONLY_DBMOVED:
            return database.file_changed()
        if code & 0xFF == sqlite3.SQLITE_CANTOPEN and database.is_read_only:
            code = sqlite3.SQLITE_READONLY
        meaning = _REMEDIES.get(code) or _REMEDIES.get(code & 0xFF)
    if meaning is None:
        return None
    error_type, remedy = meaning
    translated_error = error_type(f"{database}: {error}: {remedy}")
    # Permissions and read-only mounts stay as they are until a person changes them.
    translated_error.is_permanent = error_type.is_permanent or error_type is StoreReadOnly
    return translated_error


@contextmanager
def translated(database: Database) -> Iterator[None]:
    """Let the store's errors out as ours."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        translated_error = translate(error, database)
        if translated_error is None:
            raise
        raise translated_error from error
