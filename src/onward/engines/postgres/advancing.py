"""Sees to it that what is new of batches is acted on soon, by the process that made it so.

Where somebody waits for a job that has ended, at once; where jobs were only to be counted, after a moment, so that one
step serves many. Whatever is left undone, because the process died or the store was not there, the leader goes on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakKeyDictionary

from onward.errors import StoreUnavailable

log = logging.getLogger("onward.engines.postgres")

_MOMENT: Final = 0.05
"""Seconds in which ends of jobs are gathered that nobody waits for."""
_SHARE: Final = 20
"""If that is longer: so many times as long as the last steps took. A store that is busy is busy with the jobs."""
_LONGEST: Final = 0.5
"""Seconds after which they are counted at the latest."""


class Advancer:
    """One task for each event loop, while there is something to do."""

    def __init__(self, step: Callable[[], Awaitable[bool]]) -> None:
        """``step`` does a part, and answers whether there may be more."""
        self._step = step
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()

    def soon(self, *, at_once: bool) -> None:
        """Act on what is new."""
        loop = asyncio.get_running_loop()
        if (turn := self._turns.get(loop)) is None:
            turn = self._turns[loop] = _Turn(self._step)
        turn.ask(at_once=at_once)

    async def close(self) -> None:
        """Leave the rest to others."""
        for loop, turn in list(self._turns.items()):
            if loop is asyncio.get_running_loop():
                await turn.stop()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(turn.cancel)
        self._turns.clear()


class _Turn:
    def __init__(self, step: Callable[[], Awaitable[bool]]) -> None:
        self._step = step
        self._is_wanted = False
        self._moment = _MOMENT
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def ask(self, *, at_once: bool) -> None:
        self._is_wanted = True
        if at_once:
            self._hurry.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="onward-postgres-advance")

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.cancel()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._is_wanted:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._moment):
                    await self._hurry.wait()
            self._hurry.clear()
            self._is_wanted = False
            clock = asyncio.get_running_loop().time
            began = clock()
            try:
                while await self._step():
                    pass
            except StoreUnavailable as error:
                log.info("news of batches are left to the leader: %s", error)
            except Exception:  # a task of its own: nobody else would hear of it
                log.exception("news of batches are left to the leader")
            self._moment = min(max(_MOMENT, (clock() - began) * _SHARE), _LONGEST)
