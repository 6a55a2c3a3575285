"""What every long-lived part of a worker is made of: a bell to sleep on, and one loop that outlives its errors.

Both belong to one event loop. From another thread, ring by ``loop.call_soon_threadsafe(bell.ring)``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from onward.backoff import Backoff
from onward.errors import StoreUnavailable

log = logging.getLogger("onward.worker")

STORE_AWAY: Final = Backoff.exponential(0.1, cap=5, jitter=0.5)
"""How long to leave a store in peace that did not answer. The jitter keeps a fleet from coming back in step."""

_JITTER: Final = 0.1
"""Loops of many workers started together drift apart by this share."""


class Bell:
    """Something that one loop sleeps on. A ring while it is awake is remembered, so none is missed."""

    __slots__ = ("_rung", "_sleeper")

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the loop, now or as soon as it wants to sleep."""
        self._rung = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def clear(self) -> None:
        """Forget a ring that nobody slept through."""
        self._rung = False

    async def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a ring or for ``timeout`` seconds, and say whether it rang."""
        if not self._rung and (timeout is None or timeout > 0):
            loop = asyncio.get_running_loop()
            self._sleeper = sleeper = loop.create_future()
            alarm = None if timeout is None else loop.call_later(timeout, _wake, sleeper)
            try:
                await sleeper
            finally:
                self._sleeper = None
                if alarm is not None:
                    alarm.cancel()
        rang, self._rung = self._rung, False
        return rang


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class Every:
    """Take ``step`` now, and again and again until cancelled.

    A step answers in how many seconds it wants to be taken again: 0 for at once, None for ``interval``, which is also
    the longest. A step that raises is told about and tried again later: upkeep must outlive a database's restart.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[float | None]], *, interval: timedelta) -> None:
        self.name = name
        self._step = step
        self._interval = interval.total_seconds()
        self._bell = Bell()

    def nudge(self) -> None:
        """Take the next step now."""
        self._bell.ring()

    async def run(self) -> None:
        """Go on until cancelled."""
        failures = 0
        while True:
            try:
                wanted = await self._step()
                failures = 0
            except Exception as error:  # noqa: BLE001 - one bad step must not end the loop
                failures += 1
                tell_trouble(self.name, error, failures)
                wanted = STORE_AWAY.delay(failures).total_seconds()
            if wanted is None or wanted > self._interval:
                wanted = self._interval * (1 - _JITTER * random.random())  # noqa: S311 - not a secret
            if wanted > 0:
                await self._bell.wait(wanted)
            else:
                await asyncio.sleep(0)


def tell_trouble(who: str, error: Exception, failures: int) -> None:
    """Log what a loop ran into: a store that is away in one line and only at first, anything else in full."""
    facts = {"part": who, "error": f"{type(error).__name__}: {error}", "failures": failures}
    if isinstance(error, StoreUnavailable):
        log.log(logging.WARNING if failures == 1 else logging.DEBUG, "store unavailable, trying again", extra=facts)
    else:
        log.error("%s failed, trying again", who, extra=facts, exc_info=error)
