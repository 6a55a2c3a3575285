"""Listens to the store's signals, so that new work is seen in milliseconds.

Signals are hints: every part that it wakes would look by itself a little later. So it may be off, late or deaf for a
while.
"""

from __future__ import annotations

from collections.abc import Callable

from onward.engine.contract import Consumer
from onward.engine.values import SignalKind


class Waker:
    """Turns signals into a look at the store: for work, for changes, for claims taken back, for what comes due."""

    def __init__(
        self,
        engine: Consumer,
        queues: tuple[str, ...],
        *,
        on_work: Callable[[], None],
        on_change: Callable[[], None],
        on_cancelled: Callable[[], None],
        on_due: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._queues = queues
        self._callbacks = {
            SignalKind.WORK: on_work,
            SignalKind.CHANGED: on_change,
            SignalKind.CANCELLED: on_cancelled,
            SignalKind.DUE: on_due,
        }

    async def step(self) -> None:
        """Listen until the store ends it."""
        # Whatever was signalled while nobody listened would be missed: look once.
        self._callbacks[SignalKind.CHANGED]()
        async for signal in self._engine.signals(self._queues):
            self._callbacks[signal.kind]()
