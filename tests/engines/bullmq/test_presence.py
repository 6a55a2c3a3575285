"""Workers are shown to BullMQ's getWorkers() beside the heartbeat, which waits for nothing of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from onward.engine.values import WorkerInfo
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.bullmq.presence import Presence
from tests.worker.harness import eventually

_LIMIT = 30.0
WORKER = WorkerInfo(id="w", hostname="host", pool_size=1, version="1", queues=("mail", "video"))


class StuckServer:
    """A server that accepts connections and does not answer until it is released."""

    is_cluster = False

    def __init__(self) -> None:
        self.opened: list[StuckClient] = []
        self.closed: list[StuckClient] = []
        self.timeouts: list[float | None] = []
        self.asked = threading.Event()
        self.released = threading.Event()

    def client(self, *, max_connections: int, timeout: float | None = None) -> StuckClient:
        assert max_connections == 1
        self.timeouts.append(timeout)
        client = StuckClient(self)
        self.opened.append(client)
        return client

    def close(self, client: StuckClient) -> None:
        self.closed.append(client)


class StuckClient:
    """One connection to it."""

    def __init__(self, server: StuckServer) -> None:
        self._server = server

    def client_setname(self, name: str) -> None:
        assert name.endswith("onward@w")
        self._server.asked.set()
        assert self._server.released.wait(_LIMIT)


@pytest.fixture
def server() -> StuckServer:
    return StuckServer()


@pytest.fixture
def presence(server: Any) -> Presence:
    return Presence(server, "bull")


async def test_a_presence_connection_that_is_stuck_delays_no_heartbeat(  # B5
    engine: BullMQEngine, server: StuckServer, presence: Presence
):
    engine._presence = presence
    engine.heartbeat_sync(WORKER, [])
    assert server.asked.wait(_LIMIT)
    engine.heartbeat_sync(WORKER, [])
    await engine.heartbeat(WORKER, [])
    assert not server.released.is_set(), "the heartbeats returned although the connection is stuck"
    assert presence._thread is not None
    assert presence._thread.is_alive()
    assert all(timeout is not None and timeout <= 2 for timeout in server.timeouts)
    server.released.set()


@pytest.mark.parametrize("worker_id", ["w", None], ids=["deregister", "close"])
async def test_a_worker_that_is_hidden_while_it_is_being_shown_stays_hidden(
    server: StuckServer, presence: Presence, worker_id: str | None
):
    presence.show(WORKER.id, WORKER.queues)
    assert server.asked.wait(_LIMIT)
    presence.show(WORKER.id, WORKER.queues)
    presence.hide(worker_id)
    assert len(server.closed) == 2
    thread = presence._thread
    assert thread is not None
    server.released.set()
    thread.join(_LIMIT)
    assert server.closed[2:] == server.opened[:1], "closed again: the command may have opened it again"
    presence.show(WORKER.id, WORKER.queues)
    assert presence._thread is None
    assert len(server.opened) == 2


async def test_a_worker_is_shown_with_its_first_heartbeat_and_hidden_at_its_end(
    engine: BullMQEngine, client: redis.Redis, prefix: str
):
    def shown() -> int:
        return sum(str(each["name"]).startswith(f"{prefix}:") for each in client.client_list())

    engine.heartbeat_sync(WORKER, [])
    await eventually(lambda: shown() == 2)
    await engine.deregister(WORKER.id)
    await eventually(lambda: shown() == 0)
