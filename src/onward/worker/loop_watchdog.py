"""Warns when a handler blocks the worker's event loop, and names its task.

An ``async def`` handler that computes for long, or calls something that blocks, holds up every other job of the worker.
A thread asks the loop for a sign of life a few times a second, while anything runs; a loop that has not answered for a
second is blocked, and the thread looks at what it is running at that moment. Jobs themselves pay nothing for this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType
from typing import Any, Final

from onward.engine.values import Claim
from onward.handler import Handler

log = logging.getLogger("onward.worker")

_INTERVAL: Final = 0.25
"""Seconds between two questions."""
_THRESHOLD: Final = 1.0
"""Seconds without an answer after which the loop counts as blocked."""
_SECOND_CHANCE: Final = 0.05
"""Seconds more: after a process was stopped and continued, both threads wake up at the same moment."""


class LoopWatchdog:
    """Watches the event loop on which it was made."""

    def __init__(
        self,
        *,
        running: Callable[[], int],
        run_of: Callable[[asyncio.Task[Any] | None], tuple[Claim, Handler | None] | None],
        threshold: float = _THRESHOLD,
    ) -> None:
        """``running`` counts the handlers that run; ``run_of`` finds the one that an asyncio task runs."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._running = running
        self._run_of = run_of
        self._threshold = threshold
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on."""
        self._thread = threading.Thread(target=self._watch, name="onward-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        self._answered.set()

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            while not self._stopped.wait(_INTERVAL):
                if self._running():
                    self._ask()

    def _ask(self) -> None:
        asked_at = time.monotonic()
        self._answered.clear()
        self._loop.call_soon_threadsafe(self._answered.set)
        if self._answered.wait(self._threshold) or self._answered.wait(_SECOND_CHANCE):
            return
        fields = self._warn()
        self._answered.wait()
        if not self._stopped.is_set():
            seconds = round(time.monotonic() - asked_at, 1)
            log.info("event loop runs again", extra={**fields, "blocked_seconds": seconds})

    def _warn(self) -> dict[str, object]:
        run = self._run_of(asyncio.current_task(self._loop))
        claim, handler = run or (None, None)
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - shows another thread's stack
        fields: dict[str, object] = {"at": _place(frame, handler)}
        if claim is not None:
            fields |= {"task": claim.type, "job_id": claim.ref.id, "queue": claim.ref.queue}
        log.warning(
            "event loop blocked for more than %g s by %s, and with it all other jobs of this worker: make the handler "
            "a plain `def`, or move the blocking part to asyncio.to_thread",
            self._threshold,
            f"task {claim.type!r}" if claim is not None else "code that runs beside the handlers",
            extra=fields,
        )
        return fields


def _place(frame: FrameType | None, handler: Handler | None) -> str:
    """Say where the loop's thread is: the innermost line in the handler's own file, or else the innermost of all."""
    file = getattr(getattr(handler and handler.function, "__code__", None), "co_filename", None)
    innermost = frame
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    found = frame or innermost
    if found is None:
        return "unknown"
    return f"{PurePath(found.f_code.co_filename).name}:{found.f_lineno} in {found.f_code.co_name}"
