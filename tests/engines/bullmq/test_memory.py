"""A server that runs out of memory: what a caller is told, and where a worker does not start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onward import App, StoreMisconfigured
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.urls import open_engine
from onward.errors import InvalidValue, StoreFull
from onward.job import NewJob
from tests.servers.redis import Kind, RedisServer


@pytest.fixture(scope="module", params=list(Kind))
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture(autouse=True)
def settings(server: RedisServer) -> Iterator[None]:
    """The server's own settings again, after each test."""
    yield
    with server.client() as client:
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")


def set_config(server: RedisServer, name: str, value: str) -> None:
    with server.client() as client:
        client.config_set(name, value)


async def test_a_server_without_memory_is_full(server: RedisServer):  # X6
    engine = BullMQEngine(server.url)
    await engine.open()
    set_config(server, "maxmemory", "1")
    jobs = [NewJob(type="send", queue="mail")]
    try:
        with pytest.raises(StoreFull, match="more memory"):
            await engine.enqueue(jobs)
        with pytest.raises(StoreFull, match="more memory"):
            engine.enqueue_sync(jobs)
        with pytest.raises(StoreFull):
            await engine.enqueue([NewJob(type="send", queue="mail", idempotency_key="k")])
    finally:
        await engine.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_worker_does_not_start_where_any_key_may_be_evicted(server: RedisServer, policy: str):  # B5
    set_config(server, "maxmemory-policy", policy)
    async with App(engine=BullMQEngine(server.url)) as app:
        with pytest.raises(StoreMisconfigured, match=f"{policy}.*noeviction"):
            await app.worker(queues=["mail"]).run()


async def test_a_tick_does_nothing_where_any_key_may_be_evicted(server: RedisServer):  # B5, H7
    set_config(server, "maxmemory-policy", "allkeys-lru")
    ran: list[int] = []
    async with App(engine=BullMQEngine(server.url)) as app:

        @app.task(name="noted", queue="ticked")
        async def note() -> None:
            ran.append(1)

        await note.enqueue()
        with pytest.raises(StoreMisconfigured, match=r"allkeys-lru.*noeviction"):
            await app.tick()
        assert ran == []
        set_config(server, "maxmemory-policy", "noeviction")
        assert (await app.tick()).completed == 1


async def test_a_worker_starts_where_eviction_is_accepted_or_spares_jobs(server: RedisServer):
    set_config(server, "maxmemory-policy", "volatile-lru")
    async with App(engine=BullMQEngine(server.url)) as app, app.worker(queues=["mail"]):
        pass
    set_config(server, "maxmemory-policy", "allkeys-lru")
    async with App(engine=BullMQEngine(server.url, allow_eviction=True)) as app, app.worker(queues=["mail"]):
        pass


async def test_eviction_is_accepted_in_the_url(server: RedisServer):
    set_config(server, "maxmemory-policy", "allkeys-lru")
    async with App(engine=open_engine(f"{server.url}?eviction=allow")) as app, app.worker(queues=["mail"]):
        pass
    with pytest.raises(InvalidValue, match="must be refuse or allow"):
        open_engine(f"{server.url}?eviction=maybe")
