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

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_previous_handlers: Final[dict[signal.Signals, object]] = {}
"""Who handled the signals before we did; empty: we do not."""


@contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first signal, from the main thread, between two steps of whatever runs there."""
    received = 0

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received == 1:
            stop()
            return
        # Not by the log: the signal may have come while it was being written to.
        os.write(2, b"stopping at once, others will take the jobs over\n")
        os._exit(128 + number)

    previous_handlers = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    _previous_handlers.update(previous_handlers)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
            _previous_handlers.pop(number, None)


# Around a fork the signals are held back, so that one which comes for the child in its first moments is not taken by a
# handler that it has only inherited, and lost.


def _block_signals() -> None:
    if _previous_handlers:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _unblock_signals() -> None:
    if _previous_handlers:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _reset_in_child() -> None:
    if _previous_handlers:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _unblock_signals()
        _previous_handlers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_reset_in_child)
