"""The servers and the Node programs that the tests here share: one of each for a test process."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from onward import App
from onward.engines.bullmq.engine import BullMQEngine
from tests.interop.bullmq.peer import V5, V6, NodePeer
from tests.servers.redis import redis_url

_numbers = itertools.count()


@pytest.fixture(scope="session")
def url() -> str:
    """The Redis that both sides work on."""
    return redis_url()


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[redis.Redis]:
    """A plain client, to look into the store with."""
    client = redis.Redis.from_url(url, decode_responses=True)
    yield client
    client.close()


@pytest.fixture(scope="session")
def _node6(url: str) -> Iterator[NodePeer]:
    peer = NodePeer(url, V6)
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def _node5(url: str) -> Iterator[NodePeer]:
    peer = NodePeer(url, V5)
    yield peer
    peer.close()


@pytest.fixture
def node6(_node6: NodePeer) -> Iterator[NodePeer]:
    """The newest BullMQ 6, its clock running."""
    yield _node6
    _node6.set_clock(None)


@pytest.fixture
def node5(_node5: NodePeer) -> Iterator[NodePeer]:
    """The newest BullMQ 5, its clock running."""
    yield _node5
    _node5.set_clock(None)


@pytest.fixture(params=["6", "5"])
def either(request: pytest.FixtureRequest) -> NodePeer:
    """One BullMQ after the other."""
    peer: NodePeer = request.getfixturevalue(f"node{request.param}")
    return peer


@pytest.fixture
def name() -> str:
    """A queue that nobody else uses."""
    return f"q{os.getpid()}x{next(_numbers)}"


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    """An App on the same Redis."""
    async with App(engine=BullMQEngine(url)) as app:
        yield app
