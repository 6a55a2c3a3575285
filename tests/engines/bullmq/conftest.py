"""A prefix of its own for each test, on one Redis for all; a plain client to look at what is there."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from onward.engines.bullmq.engine import BullMQEngine
from tests.engines.bullmq.queue import Queue
from tests.servers.redis import redis_url

_numbers = itertools.count()


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_url(), decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def prefix(client: redis.Redis) -> Iterator[str]:
    prefix = f"e{os.getpid()}-{next(_numbers)}"
    yield prefix
    for pattern in (f"{prefix}:*", f"onward:{prefix}:*"):
        for key in client.scan_iter(match=pattern, count=1000):
            client.delete(key)


@pytest.fixture
async def engine(prefix: str) -> AsyncIterator[BullMQEngine]:
    engine = BullMQEngine(redis_url(), prefix=prefix)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def queue(engine: BullMQEngine, client: redis.Redis, prefix: str) -> Queue:
    return Queue(engine, client, prefix, "mail")
