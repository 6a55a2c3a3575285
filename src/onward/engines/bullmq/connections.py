"""Ways to the server, kept and handed out: connections for each event loop, a client for threads, one for heartbeats.

An engine belongs to no event loop: an App may be opened on one and used on another. Connections are kept by loop, and
made when they are first needed.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from weakref import WeakKeyDictionary

import redis
from redis.exceptions import RedisError

from onward.engines.bullmq.client_factory import Server
from onward.engines.bullmq.coalescing import Coalescer, Write
from onward.engines.bullmq.plan_runner import AsyncClient
from onward.errors import StoreUnavailable


class LoopPool:
    """What one event loop has."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self._coalescer: Coalescer | None = None

    def coalescer(self, write: Write) -> Coalescer:
        """Where small calls of the same turn gather."""
        if self._coalescer is None:
            self._coalescer = Coalescer(write)
        return self._coalescer


class Connections:
    """The clients of one engine."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_open = False
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = WeakKeyDictionary()
        self._thread_client: redis.Redis | None = None
        self._heartbeat_client: redis.Redis | None = None

    def open(self) -> None:
        """Hand clients out from now on."""
        self._is_open = True

    def _check_open(self) -> None:
        if not self._is_open:
            message = f"{self._server} is not open: enter the app with `async with app`, or call open()"
            raise StoreUnavailable(message)

    def for_loop(self) -> LoopPool:
        """What the running event loop has."""
        self._check_open()
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            with self._lock:
                found = self._by_loop[loop] = LoopPool(self._server.async_client())
        return found

    def for_threads(self) -> redis.Redis:
        """The client for threads."""
        self._check_open()
        with self._lock:
            if self._thread_client is None:
                self._thread_client = self._server.client()
            return self._thread_client

    def for_heartbeat(self) -> redis.Redis:
        """The client that is for nothing else: a sign of life must not wait behind other work."""
        self._check_open()
        with self._lock:
            if self._heartbeat_client is None:
                self._heartbeat_client = self._server.client(max_connections=1)
            return self._heartbeat_client

    async def close(self) -> None:
        """Let go of all of them."""
        self._is_open = False
        with self._lock:
            clients, self._thread_client = [self._thread_client, self._heartbeat_client], None
            self._heartbeat_client = None
            loops, self._by_loop = dict(self._by_loop), WeakKeyDictionary()
        for client in clients:
            if client is not None:
                self._server.close(client)
        for loop, pool in loops.items():
            closing = pool.client.close()
            if loop is asyncio.get_running_loop():
                with suppress(RedisError, OSError):
                    await closing
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(closing, loop)
            else:
                closing.close()
