"""Shows Onward's workers to BullMQ's ``getWorkers()`` and to bull-board, which find them by the names of connections.

BullMQ names a worker's connection ``<prefix>:<queue in base64>:w:<worker>``. A connection has one name, so each queue
of a worker has a connection of its own here, which does nothing else. Named queues only: what a pattern means changes.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import redis
from redis.exceptions import RedisError

from onward.engines.bullmq.client_factory import Server
from onward.engines.bullmq.queue_registry import is_pattern

log = logging.getLogger("onward.engines.bullmq")

MARK: Final = "onward@"
"""What the worker's part of a name begins with: by it Onward's workers are told from Node's."""
_MAX_QUEUES: Final = 50
"""Queues for which a worker is shown: each costs a connection."""


def connection_name(prefix: str, queue: str) -> str:
    """Return what the names of the connections of a queue's workers begin with."""
    return f"{prefix}:{base64.b64encode(queue.encode()).decode()}"


class Presence:
    """The named connections of one engine's workers."""

    def __init__(self, server: Server, prefix: str) -> None:
        self._server = server
        self._prefix = prefix
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], redis.Redis] = {}
        self._is_refused = False

    def show(self, worker_id: str, queues: Sequence[str]) -> None:
        """Keep a connection with the worker's name for each of its queues; one that was cut is opened again."""
        if self._is_refused or self._server.is_cluster:
            return
        for queue in [name for name in queues if not is_pattern(name)][:_MAX_QUEUES]:
            try:
                with self._lock:
                    client = self._clients.get((worker_id, queue))
                    if client is None:
                        client = self._clients[worker_id, queue] = self._server.client(max_connections=1)
                    # Each time: a connection that was opened again has lost its name.
                    name = f"{connection_name(self._prefix, queue)}:w:{MARK}{worker_id}"
                    client.client_setname("".join(name.split()))
            except redis.exceptions.NoPermissionError as error:
                self._is_refused = True
                log.info("workers are not shown to getWorkers(): %s", error)
                return
            except (RedisError, OSError):
                return  # with the next heartbeat

    def hide(self, worker_id: str | None = None) -> None:
        """Close the connections of a worker, or of all."""
        with self._lock:
            keys = [key for key in self._clients if worker_id in (None, key[0])]
            clients = [self._clients.pop(key) for key in keys]
        for client in clients:
            with suppress(RedisError, OSError):
                self._server.close(client)
