"""On BullMQ a job without a handler waits only while another worker may have it (O8)."""

from __future__ import annotations

import base64

import pytest
import redis

from onward.engines.bullmq.engine import BullMQEngine
from tests.servers.redis import redis_url


@pytest.mark.parametrize("suffix", ["", ":w:images"], ids=["unnamed", "named"])
async def test_a_node_worker_is_found_by_the_name_of_its_connection(engine: BullMQEngine, prefix: str, suffix: str):
    name = f"{prefix}:{base64.b64encode(b'mail').decode()}"
    with redis.Redis.from_url(redis_url(), client_name=f"{name}{suffix}") as worker:
        worker.ping()
        assert await engine.has_foreign_workers("mail")  # O8
        assert not await engine.has_foreign_workers("video")


async def test_listeners_for_events_are_no_workers(engine: BullMQEngine, prefix: str):
    name = f"{prefix}:{base64.b64encode(b'mail').decode()}"
    with redis.Redis.from_url(redis_url(), client_name=f"{name}:qe") as listener:
        listener.ping()
        assert not await engine.has_foreign_workers("mail")  # O8
