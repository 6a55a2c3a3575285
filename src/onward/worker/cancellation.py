"""Sees that a job which runs here was cancelled, soon after it happened.

Where the store says so itself, by a signal, the pulse beats at once. Where it only says that something has changed,
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
from onward.lifecycle import State
from onward.worker.inflight import Holdings
from onward.worker.service import Bell

_PAUSE: Final = 0.25
"""Seconds between two looks; also how long a job must have been held to be looked for: a quicker one ends by itself."""


class Recall:
    """Looks for cancelled jobs among those that run here."""

    def __init__(self, engine: Engine, holdings: Holdings, *, on_found: Callable[[], None]) -> None:
        self._engine = engine
        self._stay = engine.capabilities.has(Feature.CANCELLED_STATE)
        """Whether a cancelled job stays to be seen; else it is gone."""
        self._holdings = holdings
        self._on_found = on_found
        self._bell = Bell()

    def note_change(self) -> None:
        """Look soon: something has changed in the store."""
        self._bell.ring()

    async def step(self) -> float:
        """Wait for a change, and look once."""
        await self._bell.wait()
        await asyncio.sleep(_PAUSE)
        refs = self._holdings.held_before(asyncio.get_running_loop().time() - _PAUSE)
        if refs and await self._some_are_cancelled(refs):
            self._on_found()
        return 0

    async def _some_are_cancelled(self, refs: tuple[JobRef, ...]) -> bool:
        if self._stay:
            cancelled = JobFilter(refs=refs, states=frozenset({State.CANCELLED}))
            return bool((await self._engine.find(cancelled, limit=1)).items)
        return len((await self._engine.find(JobFilter(refs=refs), limit=len(refs))).items) < len(refs)
