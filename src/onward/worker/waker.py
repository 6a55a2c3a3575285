"""Listens to the store's signals, so that new work is seen in milliseconds.

Signals are hints: every part that it wakes would look by itself a little later. So it may be off, late or deaf for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from onward.engine.contract import Work
from onward.engine.values import SignalKind


class Waker:
    """Turns signals into a look at the store (for work) or a beat of the pulse (for claims taken back)."""

    def __init__(
        self, engine: Work, queues: tuple[str, ...], *, on_work: Callable[[], None], on_taken_back: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._queues = queues
        self._on_work = on_work
        self._on_taken_back = on_taken_back

    async def step(self) -> None:
        """Listen until the store ends it."""
        # Whatever was signalled while nobody listened would be missed: look once.
        self._on_work()
        async for signal in self._engine.signals(self._queues):
            if signal.kind is not SignalKind.CANCELLED:
                self._on_work()
            if signal.kind is not SignalKind.WORK:
                self._on_taken_back()
