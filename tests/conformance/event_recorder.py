"""What tests of events do and hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

from onward.events import AnyEvent
from onward.lifecycle import Complete, Failure, Retry
from tests.conformance.driver import PAST_LEASE, Desk

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


async def live(desk: Desk, queue: str = "default") -> None:
    """Have a job tried twice, and done."""
    await desk.add(queue=queue)
    claim = await desk.take_one(queue)
    assert await desk.engine.report(claim, progress=50, message="halfway")
    assert await desk.end(claim, Retry(timedelta(seconds=1), BOOM))
    await desk.advance(2)
    await desk.promote()
    assert await desk.end(await desk.take_one(queue), Complete('{"sent":true}'))


LIFE = ["waiting", "active", "progress", "retry", "waiting", "active", "completed"]


async def take(events: AsyncGenerator[AnyEvent, None], count: int) -> list[AnyEvent]:
    """Hear so many events."""
    async with asyncio.timeout(DEADLINE):
        return [await anext(events) for _ in range(count)]


async def fall_silent(desk: Desk) -> None:
    """Let so much time pass that the leader knows that nobody listens."""
    await desk.advance(PAST_LEASE)
    await desk.prune()
