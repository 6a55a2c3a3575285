"""Who cancels a verb is heard, whatever the driver makes of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from onward.engines.bullmq import engine as module
from onward.engines.bullmq.engine import BullMQEngine


async def test_a_cancellation_that_the_driver_swallows_is_not_lost(
    engine: BullMQEngine, monkeypatch: pytest.MonkeyPatch
):
    async def swallowing(plan: Any, client: object) -> None:
        """Do as asyncio.wait_for before Python 3.12, when what it waits for ends in the same turn."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        plan.close()

    monkeypatch.setattr(module, "arun", swallowing)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(engine.workers())
