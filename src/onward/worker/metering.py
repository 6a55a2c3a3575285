"""Hands to the store what this worker has counted, now and then and at its end."""

from __future__ import annotations

from onward.engine.capabilities import Feature
from onward.engine.observed import ObservedEngine
from onward.errors import StoreUnavailable
from onward.metering import Meter


class Metering:
    """The meter of one worker, and its way to the store."""

    def __init__(self, engine: ObservedEngine) -> None:
        self.meter = Meter()
        self._engine = engine
        self._is_kept = engine.capabilities.has(Feature.USAGE)

    async def send(self) -> None:
        """Hand over what was counted; what the store does not take is kept for the next time."""
        taken = self.meter.take()
        if not taken or not self._is_kept:
            return
        try:
            await self._engine.record_usage(taken)
        except StoreUnavailable:
            self.meter.put_back(taken)
            raise
