"""Sends what handlers say about their jobs to the store: now and then while they run, and the rest at their end.

Handlers may report from threads and thousands of times a second. What they say is gathered in their
:class:`RunState`; here the runs that have something to say are gathered, and sent together. A job that is no longer
held takes no more notes, so a run is over only when everything it said has been sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from onward.context import RunState
from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.errors import OnwardError

log = logging.getLogger("onward.worker")

_REPORT_INTERVAL: Final = 0.2
"""Seconds between two reports: often enough for a progress bar, seldom enough for any store."""


class Reporter:
    """Gathers and sends progress and log lines."""

    def __init__(self, engine: CheckedEngine, *, on_lost: Callable[[RunState], object]) -> None:
        self._engine = engine
        self._on_lost = on_lost
        """Called for a run whose claim turns out to be lost."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the runs are: notes come from threads too."""
        self._due: set[RunState] = set()
        self.sending: dict[RunState, asyncio.Task[None]] = {}
        """What is being sent."""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, run: RunState) -> None:
        """Take notice that a run has something to report. From any thread."""
        require = self._engine.capabilities.require
        if run.progress is not None:
            require(Feature.PROGRESS)
        if run.lines is not None:
            require(Feature.LOG_LINES)
        if run not in self._due and self.loop is not None:
            self.loop.call_soon_threadsafe(self._schedule, run)

    async def finish(self, run: RunState) -> None:
        """Send what a run that is over has still to say, and see to it that all of it has arrived."""
        self._due.discard(run)
        if (sending := self.sending.get(run)) is not None:
            await asyncio.wait([sending])
        if run.has_notes:
            await self._send(run)

    def _schedule(self, run: RunState) -> None:
        if run.has_notes:
            self._due.add(run)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_REPORT_INTERVAL, self._send_all)

    def _send_all(self) -> None:
        self._timer = None
        due, self._due = self._due, set()
        for run in due:
            if run in self.sending:
                self._schedule(run)  # the store is slow: one report of a job at a time keeps its lines in order
            elif run.has_notes:
                task = self.sending[run] = asyncio.create_task(self._send(run), name="onward-report")
                task.add_done_callback(partial(self._sent, run))

    def _sent(self, run: RunState, _: asyncio.Task[None]) -> None:
        self.sending.pop(run, None)

    async def _send(self, run: RunState) -> None:
        progress, message, lines = run.take_notes()
        try:
            held = await self._engine.report(run.claim, progress=progress, message=message, lines=lines)
        except OnwardError as error:  # the run matters more than what it says
            log.warning("report not stored", extra={"job": str(run.claim.ref), "error": str(error)})
        else:
            if not held:
                self._on_lost(run)
