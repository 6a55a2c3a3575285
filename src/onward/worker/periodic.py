"""What every long-lived part of a worker is made of: an event to sleep on, and one loop that outlives its errors.

Both belong to one event loop. From another thread, set it by ``loop.call_soon_threadsafe(event.set)``.
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

STORE_RETRY_BACKOFF: Final = Backoff.exponential(0.1, cap=5, jitter=0.5)
"""How long to leave a store in peace that did not answer. The jitter keeps a fleet from coming back in step."""

_JITTER: Final = 0.1
"""Loops of many workers started together drift apart by this share."""


class WakeEvent:
    """Something that one loop sleeps on. A set while it is awake is remembered, so none is missed."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the loop, now or as soon as it wants to sleep."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Forget a set that nobody slept through."""
        self._is_set = False

    async def wait(self, timeout: float | None = None) -> bool:
        """Sleep until set or for ``timeout`` seconds, and say whether it was set."""
        if not self._is_set and (timeout is None or timeout > 0):
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Periodic:
    """Take ``step`` now, and again and again until cancelled.

    A step answers in how many seconds it wants to be taken again: 0 for at once, None for ``interval``, which is also
    the longest. A step that raises is told about and tried again later: maintenance must outlive a database's restart.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[float | None]], *, interval: timedelta) -> None:
        self.name = name
        self._step = step
        self._interval = interval.total_seconds()
        self._wake_event = WakeEvent()

    def wake(self) -> None:
        """Take the next step now."""
        self._wake_event.set()

    async def run(self) -> None:
        """Go on until cancelled."""
        failures = 0
        while True:
            try:
                delay = await self._step()
                failures = 0
            except Exception as error:  # noqa: BLE001 - one bad step must not end the loop
                failures += 1
                log_failure(self.name, error, failures)
                delay = STORE_RETRY_BACKOFF.delay(failures).total_seconds()
            if delay is None or delay > self._interval:
                delay = self._interval * (1 - _JITTER * random.random())  # noqa: S311 - not a secret
            if delay > 0:
                await self._wake_event.wait(delay)
            else:
                await asyncio.sleep(0)


def log_failure(component: str, error: Exception, failures: int) -> None:
    """Log what a loop ran into: a store that is away in one line and only at first, anything else in full."""
    fields = {"component": component, "error": f"{type(error).__name__}: {error}", "failures": failures}
    if isinstance(error, StoreUnavailable):
        log.log(logging.WARNING if failures == 1 else logging.DEBUG, "store unavailable, trying again", extra=fields)
    else:
        log.error("%s failed, trying again", component, extra=fields, exc_info=error)
