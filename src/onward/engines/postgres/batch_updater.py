"""Sees to it that what is new of batches is acted on soon, by the process that made it so.

Where somebody waits for a job that has ended, at once; where jobs were only to be counted, after a moment, so that one
step serves many. What a transaction holds that somebody keeps open is looked at again now and then, until it has ended.
Whatever is left undone, because the process died or the store was not there, the leader goes on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from onward.errors import StoreBusy, StoreUnavailable
from onward.pg.per_loop import PerLoop

log = logging.getLogger("onward.engines.postgres")

_MIN_DELAY: Final = 0.05
"""Seconds in which ends of jobs are gathered that nobody waits for."""
_DELAY_FACTOR: Final = 20
"""If that is longer: so many times as long as the last steps took. A store that is busy is busy with the jobs."""
_MAX_DELAY: Final = 0.5
"""Seconds after which they are counted at the latest."""
RETRY_INTERVAL: Final = 0.5
"""Seconds after which it is tried again where somebody's transaction is in the way."""


class BatchUpdater:
    """One task for each event loop, while there is something to do."""

    def __init__(self, step: Callable[[], Awaitable[bool | None]]) -> None:
        """``step`` does a part, and answers whether there may be more; None: what there is cannot be done yet."""
        self._tasks = PerLoop(lambda: _LoopTask(step))

    def request(self, *, immediately: bool) -> None:
        """Act on what is new."""
        self._tasks.current().request(immediately=immediately)

    async def close(self) -> None:
        """Leave the rest to others."""
        for task in self._tasks.take_all():
            await task.stop()


class _LoopTask:
    def __init__(self, step: Callable[[], Awaitable[bool | None]]) -> None:
        self._step = step
        self._is_requested = False
        self._delay = _MIN_DELAY
        self._immediate = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        """While it lasts: it would keep a loop that has closed."""

    def request(self, *, immediately: bool) -> None:
        self._is_requested = True
        if immediately:
            self._immediate.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="onward-postgres-batch-progress")
            self._task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None

    async def stop(self) -> None:
        """Stop, from any loop."""
        if (task := self._task) is None:
            return
        if (loop := task.get_loop()) is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        elif not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    async def _run(self) -> None:
        while self._is_requested:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._delay):
                    await self._immediate.wait()
            self._immediate.clear()
            self._is_requested = False
            is_blocked = False
            clock = asyncio.get_running_loop().time
            began = clock()
            try:
                while more := await self._step():
                    pass
                is_blocked = more is None
            except StoreBusy as error:
                is_blocked = True
                log.info("news of batches have to wait: %s", error)
            except StoreUnavailable as error:
                log.info("news of batches are left to the leader: %s", error)
            except Exception:  # a task of its own: nobody else would hear of it
                log.exception("news of batches are left to the leader")
            self._delay = min(max(_MIN_DELAY, (clock() - began) * _DELAY_FACTOR), _MAX_DELAY)
            if is_blocked:
                self._is_requested, self._delay = True, RETRY_INTERVAL
