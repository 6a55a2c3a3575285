"""An App on a SQLite file of its own, and an engine that a test can make deaf, slow or unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from onward.app import App
from onward.engine.contract import Engine
from onward.engine.values import Claim, Exchange, Exchanged, HeartbeatReply, Settlement, Token, WorkerInfo
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import StoreUnavailable


class FaultyEngine:
    """A real engine whose verbs can be watched and disturbed."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.is_unavailable = False
        self.failing_exchanges = 0
        """How many more exchanges fail for no good reason."""
        self.exchanges: list[Exchange] = []
        self.heartbeats: list[tuple[WorkerInfo, tuple[Claim, ...]]] = []
        self.after_heartbeat: Callable[[HeartbeatReply], HeartbeatReply] = lambda reply: reply
        self.stored: list[Settlement] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _check(self) -> None:
        if self.is_unavailable:
            raise StoreUnavailable("the test says so")

    async def exchange(self, exchange: Exchange) -> Exchanged:
        self.exchanges.append(exchange)
        self._check()
        if self.failing_exchanges:
            self.failing_exchanges -= 1
            raise KeyError("a bug in an engine")
        answer = await self._inner.exchange(exchange)
        self.stored.extend(one for one in exchange.settlements if one.claim.token not in answer.lost)
        return answer

    async def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        self._check()
        lost = await self._inner.settle(settlements, connection=connection)
        self.stored.extend(one for one in settlements if one.claim.token not in lost)
        return lost

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        self._check()
        answer = self._inner.heartbeat_sync(worker, claims)
        self.heartbeats.append((worker, tuple(claims)))
        return self.after_heartbeat(answer)


@pytest.fixture
def store(tmp_path: Path) -> FaultyEngine:
    return FaultyEngine(SQLiteEngine(tmp_path / "jobs.db"))


@pytest.fixture
async def app(store: FaultyEngine) -> AsyncIterator[App]:
    async with App(engine=store) as app:
        yield app
        # Whatever a test left running would go on in the next one.
        stray = [task for task in asyncio.all_tasks() if (task.get_name() or "").startswith("onward-")]
        assert not stray
