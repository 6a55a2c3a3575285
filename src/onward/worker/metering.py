"""Hands to the store what this worker has counted, now and then and at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import Settlement
from onward.errors import StoreUnavailable
from onward.metering import Meter

Count = Callable[[Sequence[Settlement]], None]
"""Counts runs: whose, how they ended, and how many seconds they took."""


class Metering:
    """The meter of one worker, and its way to the store."""

    def __init__(self, engine: CheckedEngine) -> None:
        self._meter = Meter()
        self._engine = engine
        # Where nobody takes the counts, they would only grow.
        self.count: Count = self._meter.add if engine.capabilities.has(Feature.USAGE) else _ignore

    async def send(self) -> None:
        """Hand over what was counted; what the store does not take is kept for the next time."""
        taken = self._meter.take()
        if not taken:
            return
        try:
            await self._engine.record_usage(taken)
        except StoreUnavailable:
            self._meter.put_back(taken)
            raise


def _ignore(runs: Sequence[Settlement]) -> None:
    """Count nothing."""
