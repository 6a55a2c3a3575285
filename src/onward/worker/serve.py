"""A worker as a program: signals, the tie to a supervisor, and the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from onward.worker.signals import obeyed
from onward.worker.worker import Worker

log = logging.getLogger("onward.worker")

LIFELINE: Final = "ONWARD_LIFELINE"
"""The environment variable that names the pipe which a supervisor holds open for as long as it lives."""


def serve(worker: Worker, *, opened: AbstractAsyncContextManager[object] | None = None) -> int:
    """Run a worker until a signal, or the death of its supervisor, stops it; answer the exit code.

    ``opened`` is entered around the run: what opens the store and closes it.
    """

    async def live() -> None:
        async with opened or contextlib.nullcontext():
            await worker.run()

    with obeyed(worker.stop), asyncio.Runner() as runner:
        _hold_on_to_lifeline(worker.stop)
        runner.run(live())
        if worker.stubborn:
            # Handlers that swallow their cancellation would keep the loop, and so the process, from ending.
            log.warning("leaving handlers behind that would not stop", extra={"handlers": worker.stubborn})
            logging.shutdown()
            os._exit(0)
    return 0


def _hold_on_to_lifeline(stop: Callable[[], None]) -> None:
    """Stop in good order when the supervisor is gone, however it went."""
    name = os.environ.pop(LIFELINE, None)
    if name is None:
        return
    end = int(name)
    os.set_inheritable(end, False)  # noqa: FBT003 - positional only

    def listen() -> None:
        os.read(end, 1)  # nobody ever writes: it returns when the other end is closed
        log.warning("the supervisor is gone, stopping")
        stop()

    threading.Thread(target=listen, name="onward-lifeline", daemon=True).start()
