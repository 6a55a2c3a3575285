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
"""What the worker's part of a name begins with: it distinguishes Onward's workers from Node's."""
_MAX_QUEUES: Final = 50
"""Queues for which a worker is shown: each costs a connection."""
_TIMEOUT: Final = 2.0
"""Seconds in which the server has to accept a connection, and to answer."""


def connection_name(prefix: str, queue: str) -> str:
    """Return what the names of the connections of a queue's workers begin with."""
    return f"{prefix}:{base64.b64encode(queue.encode()).decode()}"


class Presence:
    """The named connections of one engine's workers.

    A daemon thread opens and names them, so that a server that does not answer delays no heartbeat.
    """

    def __init__(self, server: Server, prefix: str) -> None:
        self._server = server
        self._prefix = prefix
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], redis.Redis] = {}
        self._requested: dict[str, Sequence[str]] = {}
        self._hidden: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_refused = False

    def show(self, worker_id: str, queues: Sequence[str]) -> None:
        """Request a connection with the worker's name for each of its queues; one that was cut is opened again.

        Returns at once. A worker that was hidden is not shown again.
        """
        if self._is_refused or self._server.is_cluster:
            return
        with self._lock:
            if worker_id in self._hidden:
                return
            self._requested[worker_id] = [name for name in queues if not is_pattern(name)][:_MAX_QUEUES]
            # A fork copies the reference, not the thread.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._show_requested, name="onward-presence", daemon=True)
                self._thread.start()

    def hide(self, worker_id: str | None = None) -> None:
        """Close the connections of a worker, or of all."""
        with self._lock:
            keys = [key for key in self._clients if worker_id in (None, key[0])]
            self._hidden.update(key[0] for key in keys)
            self._hidden.update(self._requested if worker_id is None else [worker_id])
            self._requested = {id: queues for id, queues in self._requested.items() if id not in self._hidden}
            clients = [self._clients.pop(key) for key in keys]
        for client in clients:
            self._close(client)

    def _show_requested(self) -> None:
        while True:
            with self._lock:
                if not self._requested:
                    self._thread = None
                    return
                worker_id = next(iter(self._requested))
                queues = self._requested.pop(worker_id)
                # Kept while its connections open: hide() without a name has to know it.
                self._clients.update(
                    {
                        (worker_id, queue): self._server.client(max_connections=1, timeout=_TIMEOUT)
                        for queue in queues
                        if (worker_id, queue) not in self._clients
                    }
                )
            self._show_worker(worker_id, queues)

    def _show_worker(self, worker_id: str, queues: Sequence[str]) -> None:
        for queue in queues:
            key = worker_id, queue
            client = self._clients.get(key)
            if client is None:
                return  # hidden
            try:
                # Each time: a connection that was opened again has lost its name.
                name = f"{connection_name(self._prefix, queue)}:w:{MARK}{worker_id}"
                client.client_setname("".join(name.split()))
            except redis.exceptions.NoPermissionError as error:
                self._is_refused = True
                log.info("workers are not shown to getWorkers(): %s", error)
                return
            except (RedisError, OSError):
                return  # with the next heartbeat
            finally:
                # Hidden meanwhile: the command may have opened the connection again after hide() closed it.
                if self._clients.get(key) is not client:
                    self._close(client)

    def _close(self, client: redis.Redis) -> None:
        with suppress(RedisError, OSError):
            self._server.close(client)
