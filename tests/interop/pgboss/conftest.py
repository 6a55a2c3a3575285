"""A live pg-boss of each version, one for a test process, and Onward on the same schema."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from onward.app import App
from onward.engine.checked import CheckedEngine
from onward.engines.pgboss.engine import PgBossEngine
from onward.pgboss import PgBoss
from tests.servers.pgboss import VERSIONS, NodePgBoss
from tests.servers.postgres import postgres_url

QUICK: dict[str, Any] = {
    # Node's own loops at their quickest, each version by the names that it knows.
    "cronMonitorIntervalSeconds": 1,
    "cronWorkerIntervalSeconds": 1,
    "superviseIntervalSeconds": 1,
    "monitorIntervalSeconds": 1,
    "maintenanceIntervalSeconds": 1,
    "clockMonitorIntervalSeconds": 1,
    "useListenNotify": True,
}

_numbers = count()


@dataclass(frozen=True)
class Live:
    """A pg-boss that runs, and where."""

    version: str
    node: NodePgBoss
    url: str
    schema: str

    def engine(self, **options: Any) -> PgBossEngine:
        """Make a handle on it, not yet open."""
        return PgBossEngine(self.url, schema=self.schema, **options)

    def app(self) -> App:
        """Make an App on it."""
        parameters = self.url.partition("?")[2]
        return App(f"pgboss+postgresql:///postgres?{parameters}&schema={self.schema}")


@pytest.fixture(scope="session", params=VERSIONS)
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    """A pg-boss of each version in turn."""
    url, schema = postgres_url(), f"boss{request.param}_{os.getpid()}"
    with NodePgBoss(url, schema, request.param, **QUICK) as node:
        yield Live(request.param, node, url, schema)


@pytest.fixture
def node(live: Live) -> NodePgBoss:
    """The one in Node."""
    return live.node


@pytest.fixture
async def engine(live: Live) -> AsyncIterator[CheckedEngine]:
    """Onward on the same schema."""
    engine = CheckedEngine(live.engine())
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def boss(engine: CheckedEngine) -> PgBoss:
    """pg-boss's verbs from Python."""
    assert isinstance(engine.inner, PgBossEngine)
    return PgBoss(engine.inner)


@pytest.fixture
def queue(node: NodePgBoss) -> Callable[..., str]:
    """Make a queue in Node, with a name that no other test has."""

    def make(**options: Any) -> str:
        name = f"q-{next(_numbers)}"
        node.createQueue(name, {"name": name, **options})
        return name

    return make


Ask = Callable[[], Awaitable[Any]]
