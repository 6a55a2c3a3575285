"""Who cancels a verb is heard, whatever the driver makes of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.bullmq.multiplexer import DriverClient


async def swallowing(*_: object) -> None:
    """Do as asyncio.wait_for before Python 3.12, when what it waits for ends in the same turn."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def test_a_cancellation_that_the_driver_swallows_as_it_connects_is_not_lost(
    engine: BullMQEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("redis.asyncio.connection.AbstractConnection.connect", swallowing)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(engine.workers())


async def test_a_cancellation_that_the_driver_swallows_as_it_asks_is_not_lost():
    class Client:
        execute_command = staticmethod(swallowing)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(DriverClient(Client()).execute([("PING",)]))
