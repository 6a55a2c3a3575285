"""Being told that something has changed, instead of asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import Signal
from onward.lifecycle import Release
from tests.conformance.cases import needs
from tests.conformance.driver import Driver

pytestmark = needs(Feature.PUSH)

DEADLINE = 10
"""Seconds until a signal that must come is given up; never reached where it does."""


@asynccontextmanager
async def listening(engine: CheckedEngine, *queues: str) -> AsyncIterator[Callable[[], Awaitable[Signal]]]:
    """Listen for signals; what was told before the first look does not count."""
    signals = engine.signals(queues or ["*"])
    told: asyncio.Queue[Signal] = asyncio.Queue()

    async def listen() -> None:
        async for signal in signals:
            told.put_nowait(signal)

    async def hear() -> Signal:
        async with asyncio.timeout(DEADLINE):
            return await told.get()

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    try:
        yield hear
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_new_work_is_told_to_a_listener_of_the_same_handle(driver: Driver):
    async with listening(driver.engine) as hear:
        await driver.add()
        await hear()


async def test_new_work_is_told_to_a_listener_of_another_handle(driver: Driver):
    other = Driver(driver.store, await driver.store.connect())
    async with listening(other.engine) as hear:
        ref = await driver.add()
        while not (claims := await other.take()):
            await hear()
        assert claims[0].ref == ref


@pytest.mark.parametrize(
    "how",
    [
        "release",
        pytest.param("promote", marks=needs(Feature.DELAY, Feature.PROMOTION)),
        pytest.param("replay", marks=needs(Feature.REPLAY, Feature.CANCELLED_STATE)),
        pytest.param("resume", marks=needs(Feature.PAUSE)),
    ],
)
async def test_everything_that_makes_a_job_ready_is_told(driver: Driver, how: str):
    other = Driver(driver.store, await driver.store.connect())
    ref = await driver.add(queue="q")
    claim = await driver.take_one("q")
    if how == "replay":
        await driver.cancel(ref)
    elif how == "promote":
        await driver.end(claim, Release())
        await driver.cancel(ref)
        await driver.add(queue="q", delay=timedelta(minutes=1))
        await driver.advance(60)
    elif how == "resume":
        await driver.set("q", paused=True)
        await driver.end(claim, Release())
    async with listening(other.engine) as hear:
        if how == "release":
            await driver.end(claim, Release())
        elif how == "promote":
            await driver.promote()
        elif how == "replay":
            await driver.replay(ref)
        else:
            await driver.set("q", paused=False)
        while not await other.take("q"):
            await hear()


async def test_two_listeners_are_both_told(driver: Driver):
    async with listening(driver.engine) as first, listening(driver.engine) as second:
        await driver.add()
        await asyncio.gather(first(), second())


async def test_a_listener_that_has_gone_is_not_missed(driver: Driver):
    async with listening(driver.engine):
        pass
    assert (await driver.enqueue()).is_new
