"""The three foreign stores as their own clients fill them, with ``onward`` as processes beside: see :class:`Store`."""

from __future__ import annotations

import itertools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.interop.bullmq.peer import NodePeer
from tests.servers.pgboss import NodePgBoss
from tests.servers.pgmq import drop_database, make_database
from tests.servers.postgres import postgres_url
from tests.servers.redis import RedisServer

_numbers = itertools.count()


class Store(ABC):
    """A foreign store and its own client. A job of queue ``mail`` has the type ``mail``."""

    url: str
    counts_by_queue = True
    """Whether each queue counts its own ids, so that an id names several jobs."""
    has_lone_surrogates = False
    """Whether the store takes half a character."""

    @abstractmethod
    def make_queue(self, name: str) -> None:
        """Make a queue, where that must be done."""

    @abstractmethod
    def send(self, queue: str, data: Any, *, type: str | None = None) -> str:
        """Add a job with at most two attempts, and answer its id; ``type``: of another name than its queue."""


class BullMQ(Store):
    """Node's BullMQ on a Redis of its own."""

    has_lone_surrogates = True

    def __init__(self, server: RedisServer, peer: NodePeer) -> None:
        self.url, self.peer = server.url, peer

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[BullMQ]:
        """Have one for a while."""
        with RedisServer() as server:
            peer = NodePeer(server.url)
            try:
                yield cls(server, peer)
            finally:
                peer.close()

    def make_queue(self, name: str) -> None:
        """See :class:`Store`."""

    def send(self, queue: str, data: Any, *, type: str | None = None) -> str:
        """See :class:`Store`."""
        options = {"attempts": 2, "backoff": {"type": "fixed", "delay": 50}}
        return str(self.peer.queue(queue).add(type or queue, data, **options)["id"])


class PgBoss(Store):
    """Node's pg-boss."""

    counts_by_queue = False

    def __init__(self, node: NodePgBoss, schema: str) -> None:
        known = conninfo_to_dict(postgres_url())
        self.node = node
        self.url = (
            f"pgboss+postgresql:///{known.get('dbname', 'postgres')}?host={known['host']}&user={known['user']}"
            f"&schema={schema}"
        )

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[PgBoss]:
        """Have one for a while."""
        schema = f"bossof{os.getpid()}_{next(_numbers)}"
        with NodePgBoss(postgres_url(), schema) as node:
            yield cls(node, schema)

    def make_queue(self, name: str) -> None:
        """See :class:`Store`."""
        self.node.createQueue(name, {"name": name, "retryLimit": 1, "retryDelay": 0})

    def send(self, queue: str, data: Any, *, type: str | None = None) -> str:
        """See :class:`Store`."""
        assert type is None, "pg-boss has no names beside its queues"
        return str(self.node.send(queue, data))


class Pgmq(Store):
    """PGMQ, by its own SQL."""

    def __init__(self, url: str) -> None:
        known = conninfo_to_dict(url)
        self._database = url
        self.url = f"pgmq+postgresql:///{known['dbname']}?host={known['host']}&user={known['user']}"

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Pgmq]:
        """Have one for a while."""
        url = make_database()
        try:
            yield cls(url)
        finally:
            drop_database(url)

    def make_queue(self, name: str) -> None:
        """See :class:`Store`."""
        self._execute("select pgmq.create(%s)", name)

    def send(self, queue: str, data: Any, *, type: str | None = None) -> str:
        """See :class:`Store`."""
        assert type is None, "PGMQ has no names beside its queues"
        return str(self._execute("select pgmq.send(%s, %s::jsonb)", queue, json.dumps(data)))

    def _execute(self, statement: str, *values: Any) -> Any:
        with psycopg.connect(self._database) as connection:
            row = connection.execute(statement, values).fetchone()
            return row[0] if row else None


STORES: dict[str, Callable[[], AbstractContextManager[Store]]] = {
    "bullmq": BullMQ.opened,
    "pgboss": PgBoss.opened,
    "pgmq": Pgmq.opened,
}
