"""Counts how often the event loop comes round beside whatever a test does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """How often it has."""

    count = 0


@asynccontextmanager
async def turns_of_the_loop() -> AsyncIterator[Turns]:
    """Count them, for the length of a block."""
    turns = Turns()

    async def turn() -> None:
        while True:
            await asyncio.sleep(0)
            turns.count += 1

    beside = asyncio.create_task(turn())
    try:
        yield turns
    finally:
        beside.cancel()
