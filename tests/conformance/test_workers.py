"""A worker that is cancelled: it stops in good order, whatever is on its way to the store or from there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from onward.app import App
from onward.engine.contract import Engine
from onward.engine.values import Exchange, Exchanged, QueueChange
from onward.lifecycle import JobStatus
from tests.conformance.cases import Store

QUEUE = "work"
_ON_THE_WAY = 0.05
"""Seconds that an exchange is held up."""


class Slowed:
    """A real engine, one exchange of which is slow: on its way to the store, or back."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.slow = asyncio.Event()
        """Set while that exchange is on its way."""
        self.claims = self.settles = False
        """Whether it is the first that brings something, or the first that says how something ended."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exchange(self, exchange: Exchange) -> Exchanged:
        if self.settles and exchange.settlements:
            await self._hold_up()
        answer = await self._inner.exchange(exchange)
        if self.claims and answer.claimed.claims:
            await self._hold_up()
        return answer

    async def _hold_up(self) -> None:
        self.claims = self.settles = False
        self.slow.set()
        arrived = asyncio.Event()
        asyncio.get_running_loop().call_later(_ON_THE_WAY, arrived.set)
        await arrived.wait()


@pytest.fixture
async def slowed(store: Store) -> Slowed:
    return Slowed(store.bare())


@pytest.fixture
async def app(slowed: Slowed) -> AsyncIterator[App]:
    async with App(engine=slowed) as app:
        await app._core.engine.configure(QUEUE, QueueChange())
        yield app


async def counts(app: App) -> Counter[str]:
    return Counter(await app.jobs.count())


async def cancelled(working: asyncio.Task[None], *, again_and_again: bool = False) -> None:
    working.cancel()
    while again_and_again and not working.done():
        await asyncio.sleep(0)
        working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, 60)


@pytest.mark.parametrize("again_and_again", [False, True], ids=["once", "at every turn of the loop"])
async def test_what_is_brought_to_a_worker_that_is_cancelled_goes_back(
    app: App, slowed: Slowed, *, again_and_again: bool
):  # X3
    begun: list[int] = []

    @app.task(queue=QUEUE)
    async def work(number: int) -> None:
        begun.append(number)

    await work.enqueue_many([{"number": number} for number in range(10)])
    slowed.claims = True
    working = asyncio.create_task(app.work(concurrency=5))
    await asyncio.wait_for(slowed.slow.wait(), 60)
    await cancelled(working, again_and_again=again_and_again)
    assert begun == []
    assert await counts(app) == Counter[str]({JobStatus.PENDING: 10})


async def test_how_a_job_ended_is_stored_by_a_worker_that_is_cancelled(app: App, slowed: Slowed):  # X3
    @app.task(queue=QUEUE)
    async def work() -> None: ...

    await work.enqueue()
    slowed.settles = True
    working = asyncio.create_task(app.work())
    await asyncio.wait_for(slowed.slow.wait(), 60)
    await cancelled(working)
    assert await counts(app) == Counter[str]({JobStatus.COMPLETED: 1})


@pytest.mark.parametrize("most", [1, 100, 250])
async def test_a_worker_that_is_cancelled_under_load_keeps_nothing(app: App, most: int):  # X3
    begun: set[int] = set()
    ended: set[int] = set()

    @app.task(queue=QUEUE)
    async def work(number: int) -> None:
        begun.add(number)
        await asyncio.sleep(0)
        ended.add(number)

    await work.enqueue_many([{"number": number} for number in range(500)])
    working = asyncio.create_task(app.work(concurrency=20, poll=timedelta(milliseconds=50)))
    async with asyncio.timeout(60):
        while len(begun) < most:
            await asyncio.sleep(0)
    await cancelled(working)
    assert await counts(app) == Counter[str]({JobStatus.COMPLETED: len(ended), JobStatus.PENDING: 500 - len(ended)})
