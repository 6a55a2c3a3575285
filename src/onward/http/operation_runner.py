"""Makes changes by filter in the server's own process, so that they need no worker (A5)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from onward.app import App
from onward.bulk_operation import queue_of
from onward.core import core_of
from onward.engine.values import JobFilter
from onward.errors import OnwardError
from onward.lifecycle import FINISHED, JobStatus

log = logging.getLogger("onward.http.operations")

_PERIOD: Final = 30.0
"""Seconds between two looks for operations that another process has left undone."""


class OperationRunner:
    """Runs the jobs of the reserved queue, when one is accepted here and now and then."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. Idempotent."""
        if self._task is None or self._task.done():
            self._bell = asyncio.Event()
            self._task = asyncio.create_task(self._run(), name="onward-operations")

    def wake(self) -> None:
        """Look now: an operation was accepted. Begins where no lifespan has, as in a mounted application."""
        self.start()
        self._bell.set()

    async def stop(self) -> None:
        """Stop; an operation under way is released, and continued by the next worker or server."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD):
                    await self._bell.wait()
            self._bell.clear()
            try:
                while await self._has_work():
                    report = await core_of(self._app).ticker().tick(1, queues=(self._queue,))
                    if not report.claimed:
                        break
            except OnwardError as error:
                log.warning("changes by filter wait: %s", error)

    @property
    def _queue(self) -> str:
        return queue_of(core_of(self._app).capabilities)

    async def _has_work(self) -> bool:
        engine = await core_of(self._app).opened()
        unfinished = frozenset(map(engine.capabilities.shown, frozenset(JobStatus) - FINISHED))
        which = JobFilter(queues=(self._queue,), status=unfinished)
        return bool((await engine.find(which, limit=1)).items)
