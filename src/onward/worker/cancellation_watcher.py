"""Sees that a job which runs here was cancelled, soon after it happened.

Where the store says so itself, by a signal, the heartbeat beats at once. Where it only says that something has changed,
looking by a beat would be a change in turn, and two workers would keep each other beating. So this looks without
writing, a few times a second at most, and only for jobs that have been running for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from onward.engine.capabilities import Feature
from onward.engine.contract import Engine
from onward.engine.values import JobFilter
from onward.job import JobRef
from onward.lifecycle import JobStatus
from onward.worker.inflight import Inflight
from onward.worker.periodic import WakeEvent

_CHECK_INTERVAL: Final = 0.25
"""Seconds between two looks; also how long a job must have been held to be looked for: a quicker one ends by itself."""


class CancellationWatcher:
    """Looks for cancelled jobs among those that run here."""

    def __init__(self, engine: Engine, inflight: Inflight, *, on_cancelled: Callable[[], None]) -> None:
        self._engine = engine
        self._keeps_cancelled = engine.capabilities.has(Feature.CANCELLED_STATE)
        """Whether a cancelled job stays to be seen; else it is gone."""
        self._inflight = inflight
        self._on_cancelled = on_cancelled
        self._wake_event = WakeEvent()

    def notify_change(self) -> None:
        """Look soon: something has changed in the store."""
        self._wake_event.set()

    async def step(self) -> float:
        """Wait for a change, and look once."""
        await self._wake_event.wait()
        await asyncio.sleep(_CHECK_INTERVAL)
        held = self._inflight.held_before(asyncio.get_running_loop().time() - _CHECK_INTERVAL)
        refs = tuple(claim.ref for claim in held)
        if refs and await self._any_cancelled(refs):
            self._on_cancelled()
        return 0

    async def _any_cancelled(self, refs: tuple[JobRef, ...]) -> bool:
        if self._keeps_cancelled:
            cancelled = JobFilter(refs=refs, status=frozenset({JobStatus.CANCELLED}))
            return bool((await self._engine.find(cancelled, limit=1)).items)
        return len((await self._engine.find(JobFilter(refs=refs), limit=len(refs))).items) < len(refs)
