"""PgBouncer for tests, in transaction mode, in front of a PostgreSQL of :mod:`tests.servers.postgres`.

The program is Debian's package ``pgbouncer``: there is no wheel of it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.servers import missing
from tests.servers.postgres import postgres_url

_DEADLINE: Final = 30.0


def program() -> str:
    """Find the program."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        missing("there is no pgbouncer here: apt install pgbouncer")
    return found


@cache
def pooled_url() -> str:
    """Give the URL of this process's server through a pooler before it, started with the first call."""
    pooler = PgBouncer(postgres_url())
    atexit.register(pooler.remove)
    return pooler.url


def engines_url() -> str:
    """Say how engines under test reach the server: directly, unless the environment says otherwise."""
    return pooled_url() if os.environ.get("ONWARD_TEST_PGBOUNCER") else postgres_url()


class PgBouncer:
    """A pooler of its own, in a folder of its own, reached through a socket there."""

    def __init__(self, server_url: str) -> None:
        command = [program(), "-q"]
        known = conninfo_to_dict(server_url)
        self._database, self._user = str(known["dbname"]), str(known["user"])
        self.folder = Path(tempfile.mkdtemp(prefix="onward-pgbouncer-"))
        (self.folder / "users").write_text(f'"{self._user}" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"""
[databases]
* = host={known["host"]}
[pgbouncer]
listen_addr =
unix_socket_dir = {self.folder}
auth_type = trust
auth_file = {self.folder}/users
pool_mode = transaction
default_pool_size = 8
max_client_conn = 500
logfile = {self.folder}/log
"""
        )
        self._process_user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._process_user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        command.append(str(self.folder / "pgbouncer.ini"))
        self._process = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.DEVNULL, **self._process_user)
        self._wait()

    @property
    def url(self) -> str:
        """Say how to reach the database through it."""
        return f"postgresql:///{self._database}?host={quote(str(self.folder), safe='')}&port=6432&user={self._user}"

    def _wait(self) -> None:
        deadline = time.monotonic() + _DEADLINE
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url).close()
                return
            assert self._process.poll() is None, "PgBouncer ended instead of starting"
            assert time.monotonic() < deadline, "PgBouncer does not come up"
            time.sleep(0.02)

    def remove(self) -> None:
        """Stop it and take its files away."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
