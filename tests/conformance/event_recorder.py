"""What tests of events do and hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from onward.events import AnyEvent
from onward.lifecycle import Complete, Failure, Retry
from tests.conformance.driver import PAST_LEASE, Driver

DEADLINE = 10
"""Seconds until an event that must come is given up; never reached where it does."""
BOOM = Failure("ValueError", "boom", "Traceback: boom")


async def hear(events: AsyncGenerator[AnyEvent, None], until: str) -> list[AnyEvent]:
    """Listen until a word is said."""
    said = []
    async with asyncio.timeout(DEADLINE):
        async for event in events:
            said.append(event)
            if event.name == until:
                return said
    raise AssertionError("events have no end")


async def live(driver: Driver, queue: str = "default", **fields: Any) -> None:
    """Have a job tried twice, and done."""
    await driver.add(queue=queue, **fields)
    claim = await driver.take_one(queue)
    assert await driver.engine.report(claim, progress=50, message="halfway")
    assert await driver.end(claim, Retry(timedelta(seconds=1), BOOM))
    await driver.advance(2)
    await driver.promote()
    assert await driver.end(await driver.take_one(queue), Complete('{"sent":true}'))


LIFE = ["waiting", "active", "progress", "retry", "waiting", "active", "completed"]


async def take(events: AsyncGenerator[AnyEvent, None], count: int) -> list[AnyEvent]:
    """Hear so many events."""
    async with asyncio.timeout(DEADLINE):
        return [await anext(events) for _ in range(count)]


async def fall_silent(driver: Driver) -> None:
    """Let so much time pass that the leader knows that nobody listens."""
    await driver.advance(PAST_LEASE)
    await driver.prune()
