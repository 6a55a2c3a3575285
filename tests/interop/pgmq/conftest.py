"""The clients that PGMQ's users have, on the same database as Onward: PyPI's ``pgmq`` and npm's ``pgmq-js``."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pgmq import PGMQueue
from psycopg.conninfo import conninfo_to_dict

from onward.app import App
from tests.servers.node import node_packages
from tests.servers.pgmq import drop_database, make_database

_numbers = count()


class Client(ABC):
    """What the tests ask of another client."""

    @abstractmethod
    def send(self, queue: str, message: Any, delay: int = 0) -> int:
        """Send a message, and say which id it has."""

    @abstractmethod
    def read(self, queue: str, vt: int) -> dict[str, Any] | None:
        """Read one message: its id, read count and body."""

    @abstractmethod
    def archive(self, queue: str, msg_id: int) -> bool:
        """Archive a message."""

    @abstractmethod
    def delete(self, queue: str, msg_id: int) -> bool:
        """Delete a message."""

    @abstractmethod
    def set_vt(self, queue: str, msg_id: int, vt: int) -> None:
        """Set a message's visibility timeout."""

    @abstractmethod
    def lengths(self, queue: str) -> tuple[int, int]:
        """Say how many messages there are, and how many there ever were."""


class PythonClient(Client):
    """PyPI's ``pgmq``."""

    def __init__(self, url: str) -> None:
        at = conninfo_to_dict(url)
        self._queue = PGMQueue(
            host=str(at["host"]),
            port=str(at.get("port", 5432)),
            username=str(at["user"]),
            password="-",
            database=str(at["dbname"]),
            init_extension=False,
        )

    def send(self, queue: str, message: Any, delay: int = 0) -> int:
        """See :class:`Client`."""
        return int(self._queue.send(queue, message, delay=delay))

    def read(self, queue: str, vt: int) -> dict[str, Any] | None:
        """See :class:`Client`."""
        found: Any = self._queue.read(queue, vt=vt)
        found = found[0] if isinstance(found, list) and found else found
        return {"id": found.msg_id, "reads": found.read_ct, "body": found.message} if found else None

    def archive(self, queue: str, msg_id: int) -> bool:
        """See :class:`Client`."""
        return bool(self._queue.archive(queue, msg_id))

    def delete(self, queue: str, msg_id: int) -> bool:
        """See :class:`Client`."""
        return bool(self._queue.delete(queue, msg_id))

    def set_vt(self, queue: str, msg_id: int, vt: int) -> None:
        """See :class:`Client`."""
        self._queue.set_vt(queue, msg_id, vt)

    def lengths(self, queue: str) -> tuple[int, int]:
        """See :class:`Client`."""
        metrics = self._queue.metrics(queue)
        return metrics.queue_length, metrics.total_messages

    def close(self) -> None:
        """Let go of its connections."""
        self._queue.close()


class NodeClient(Client):
    """npm's ``pgmq-js``."""

    def __init__(self, url: str) -> None:
        at = conninfo_to_dict(url)
        where = {"host": at["host"], "port": int(at.get("port") or 5432), "user": at["user"], "database": at["dbname"]}
        self._url = url
        script = Path(__file__).with_name("peer.cjs")
        self._process = node_packages("pgmq-js@1").start(
            script, json.dumps({**where, "password": "-", "ssl": False}), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _call(self, part: str, verb: str, *values: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([part, verb, *values]) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        assert "error" not in reply, reply
        return reply["answer"]

    def send(self, queue: str, message: Any, delay: int = 0) -> int:
        """See :class:`Client`."""
        return int(self._call("msg", "send", queue, message, delay))

    def read(self, queue: str, vt: int) -> dict[str, Any] | None:
        """See :class:`Client`."""
        found = self._call("msg", "read", queue, vt)
        return {"id": int(found["msgId"]), "reads": found["readCount"], "body": found["message"]} if found else None

    def archive(self, queue: str, msg_id: int) -> bool:
        """See :class:`Client`."""
        return bool(self._call("msg", "archive", queue, msg_id))

    def delete(self, queue: str, msg_id: int) -> bool:
        """See :class:`Client`."""
        return bool(self._call("msg", "delete", queue, msg_id))

    def set_vt(self, queue: str, msg_id: int, vt: int) -> None:
        """See :class:`Client`. By hand: pgmq-js casts nothing, and since 1.8 PGMQ has more than one set_vt."""
        with psycopg.connect(self._url) as connection:
            connection.execute("select pgmq.set_vt(%s, %s::bigint, %s::integer)", [queue, msg_id, vt])

    def lengths(self, queue: str) -> tuple[int, int]:
        """See :class:`Client`."""
        metrics = self._call("queue", "getMetrics", queue)
        return int(metrics["queueLength"]), int(metrics["totalMessages"])

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Where the database is."""
    made = make_database()
    yield made
    drop_database(made)


@pytest.fixture(scope="session", params=["python", "node"])
def client(request: pytest.FixtureRequest, url: str) -> Iterator[Client]:
    """Each of the other clients in turn."""
    found = PythonClient(url) if request.param == "python" else NodeClient(url)
    yield found
    found.close()


@pytest.fixture
def queue(url: str) -> str:
    """A queue of the test's own, made as anybody makes one."""
    name = f"q{next(_numbers)}"
    with psycopg.connect(url) as connection:
        connection.execute("select pgmq.create(%s)", [name])
    return name


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    """Onward on the same database."""
    at = conninfo_to_dict(url)
    app = App(f"pgmq+postgresql:///{at['dbname']}?host={at['host']}&user={at['user']}")
    async with app:
        yield app
