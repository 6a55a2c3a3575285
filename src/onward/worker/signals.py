"""SIGTERM and SIGINT: the first asks the worker to stop in good order, the second ends the process at once.

The handlers are Python's own, not the event loop's: they also run while a handler of a job blocks the loop, and a
process with number 1 in its container, for which signals have no default action, obeys them too. A child that a job
forks gets the defaults back, or it could not be stopped by ``terminate()``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_before: Final[dict[signal.Signals, object]] = {}
"""Who handled the signals before we did; empty: we do not."""


@contextmanager
def obeyed(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first signal, from the main thread, between two steps of whatever runs there."""
    asked = 0

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            stop()
            return
        # Not by the log: the signal may have come while it was being written to.
        os.write(2, b"stopping at once, others will take the jobs over\n")
        os._exit(128 + number)

    before = {number: signal.signal(number, on_signal) for number in STOPPING}
    _before.update(before)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            _before.pop(number, None)


# Around a fork the signals are held back, so that one which comes for the child in its first moments is not taken by a
# handler that it has only inherited, and lost.


def _hold_back() -> None:
    if _before:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _let_through() -> None:
    if _before:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _forget_in_child() -> None:
    if _before:
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)
        _let_through()
        _before.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_forget_in_child)
