"""PgBouncer for tests, in transaction mode, in front of a PostgreSQL of :mod:`tests.servers.postgres`.

The program is Debian's package ``pgbouncer``: there is no wheel of it. Where it is not installed, tests that need it
say so and are left out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

_DEADLINE: Final = 30.0


def program() -> str | None:
    """Find the program; None: it is not here."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """A pooler of its own, in a folder of its own, reached through a socket there."""

    def __init__(self, server_url: str) -> None:
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
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        command = [program() or "pgbouncer", "-q", str(self.folder / "pgbouncer.ini")]
        self._process = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.DEVNULL, **self._as)
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
