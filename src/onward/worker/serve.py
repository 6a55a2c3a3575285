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

from onward.errors import InvalidValue
from onward.worker.signals import stop_on_signal
from onward.worker.worker import Worker

log = logging.getLogger("onward.worker")

SUPERVISOR_PIPE: Final = "ONWARD_SUPERVISOR_PIPE"
"""The environment variable that names the pipe which a supervisor holds open for as long as it lives."""


def serve(
    worker: Worker, *, lifespan: AbstractAsyncContextManager[object] | None = None, uses_uvloop: bool = False
) -> int:
    """Run a worker until a signal, or the death of its supervisor, stops it; answer the exit code.

    ``lifespan`` is entered around the run: what opens the store and closes it. ``uses_uvloop``: on uvloop's event loop.

    Raises:
        InvalidValue: uvloop is not installed.
    """

    async def main() -> None:
        async with lifespan or contextlib.nullcontext():
            await worker.run()

    loop_factory = uvloop_factory() if uses_uvloop else None
    with stop_on_signal(worker.stop), asyncio.Runner(loop_factory=loop_factory) as runner:
        _watch_supervisor_pipe(worker.stop)
        runner.run(main())
        if worker.unstoppable:
            # Handlers that swallow their cancellation would keep the loop, and so the process, from ending.
            log.warning("exiting with handlers that did not stop", extra={"handlers": worker.unstoppable})
            logging.shutdown()
            os._exit(0)
    return 0


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes an event loop of uvloop.

    Raises:
        InvalidValue: uvloop is not installed.
    """
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise InvalidValue("uvloop", None, "is not installed: pip install 'onward[uvloop]'") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _watch_supervisor_pipe(stop: Callable[[], None]) -> None:
    """Stop in good order when the supervisor is gone, however it went."""
    name = os.environ.pop(SUPERVISOR_PIPE, None)
    if name is None:
        return
    pipe = int(name)
    os.set_inheritable(pipe, False)  # noqa: FBT003 - positional only

    def wait_for_supervisor() -> None:
        os.read(pipe, 1)  # nobody ever writes: it returns when the other end is closed
        log.warning("supervisor exited, stopping")
        stop()

    threading.Thread(target=wait_for_supervisor, name="onward-supervisor-watch", daemon=True).start()
