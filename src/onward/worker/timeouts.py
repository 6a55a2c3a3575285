"""One alarm for all runs that have a timeout.

A context manager per job would cost more than a quick handler does. Here a run is entered in a dictionary and taken
out of it; one timer stands at the earliest deadline, and when it fires the few runs in hand are looked through. With
equal timeouts that is about one look per timeout, however many jobs come and go in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timeouts(Generic[K]):
    """Calls ``expire`` for every entry that is still there when its time is up."""

    def __init__(self, expire: Callable[[K], None]) -> None:
        self._expire = expire
        self._deadlines: dict[K, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._deadlines)

    def add(self, entry: K, seconds: float) -> None:
        """Enter something that is to be over in so many seconds."""
        loop = asyncio.get_running_loop()
        deadline = self._deadlines[entry] = loop.time() + seconds
        if self._timer is None or deadline < self._timer.when():
            self._schedule(loop, deadline)

    def remove(self, entry: K) -> None:
        """Take out what is over. The timer is left to fire for nothing, once."""
        self._deadlines.pop(entry, None)

    def _schedule(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for entry in [entry for entry, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[entry]
            self._expire(entry)
        if self._deadlines:
            self._schedule(loop, min(self._deadlines.values()))
