"""Sends what handlers say about their jobs to the store: a few times a second while they run, and the rest at their end.

Handlers may report from threads and thousands of times a second. What they say is gathered in their :class:`RunState`;
here the runs that have something to say are gathered, and sent together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from onward.context import RunState
from onward.engine.capabilities import Feature
from onward.engine.observed import ObservedEngine
from onward.errors import OnwardError

log = logging.getLogger("onward.worker")

_PAUSE: Final = 0.2
"""Seconds between two reports of a job: often enough for a progress bar, seldom enough for any store."""


class Reporter:
    """Gathers and sends progress and log lines."""

    def __init__(self, engine: ObservedEngine, *, on_lost: Callable[[RunState], None]) -> None:
        self._engine = engine
        self._on_lost = on_lost
        """Called for a run whose claim turns out to be lost."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._speaking: dict[RunState, asyncio.Task[None]] = {}

    def note(self, run: RunState) -> None:
        """Take notice of a run that has something to report. From any thread."""
        if run.progress is not None:
            self._engine.capabilities.require(Feature.PROGRESS)
        if run.lines:
            self._engine.capabilities.require(Feature.LOG_LINES)
        if run in self._speaking or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._begin, run)

    def attend(self) -> None:
        """Learn which event loop the runs are on."""
        self._loop = asyncio.get_running_loop()

    async def finish(self, run: RunState) -> None:
        """Send what a run that is over has still to say: a job that is no longer held takes no more lines."""
        if (task := self._speaking.pop(run, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        if run.has_notes:
            await self._send(run)

    def _begin(self, run: RunState) -> None:
        if run not in self._speaking and run.has_notes:
            self._speaking[run] = asyncio.create_task(self._speak(run), name="onward-report")

    async def _speak(self, run: RunState) -> None:
        while run.has_notes:
            await asyncio.shield(self._send(run))
            await asyncio.sleep(_PAUSE)
        self._speaking.pop(run, None)

    async def _send(self, run: RunState) -> None:
        progress, message, lines = run.take_notes()
        try:
            held = await self._engine.report(run.claim, progress=progress, message=message, lines=lines)
        except OnwardError as error:  # the run matters more than what it says
            log.warning("a report was not stored", extra={"job": str(run.claim.ref), "error": str(error)})
        else:
            if not held:
                self._on_lost(run)
