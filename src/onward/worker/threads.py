"""Threads for plain functions: long-lived, fed by one queue, answering in bursts.

A pool of the standard library costs a future, a lock and a wake-up of the loop for every call, which alone would cap a
worker at 30 000 calls a second. Here a thread takes the next call while it is awake, and the loop is woken once for all
that has been answered in the meantime. A call never waits behind a slow one while there is a thread to spare.

Threads cannot be stopped from outside. A caller that gives up on a call (it was cancelled, its time is up) leaves a
thread behind that still runs it; another takes its place, so that the pool keeps its size.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from onward.errors import OnwardError

T = TypeVar("T")


class StartFailed(OnwardError):
    """The system has no thread or process for a handler now. The handler has not begun."""


class _Call:
    __slots__ = ("context", "error", "function", "future", "is_abandoned", "is_delivered", "result")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.function = function
        self.future = future
        self.context = contextvars.copy_context()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_abandoned = False
        """Its caller gave up while a thread still had it."""
        self.is_delivered = False


class Threads:
    """Runs plain functions beside the loop, at most ``size`` at a time. Belongs to the loop that first calls it."""

    def __init__(self, size: int, *, name: str = "onward-thread") -> None:
        self.size = size
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._completed: deque[_Call] = deque()
        self._threads = 0
        self._pending = 0
        """Calls that have been made and not answered."""
        self._abandoned = 0
        """Threads that run a call nobody waits for."""
        self._is_delivery_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function on a thread and wait for what it returns or raises.

        Cancelling the wait does not stop the function.

        Raises:
            StartFailed: no thread exists and none can be started; the function was not called.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._pending += 1
        if self._pending + self._abandoned > self._threads < self.size + self._abandoned:
            self._start_thread()
        call = _Call(function, future)
        self._calls.put(call)
        try:
            return await future
        except asyncio.CancelledError:
            # A cancellation is noticed a turn of the loop after it was made: the thread may have come back meanwhile.
            if future.cancelled() and not call.is_delivered:
                call.is_abandoned = True
                self._abandoned += 1
            raise

    def _start_thread(self) -> None:
        """Start one more thread. If that fails, the call waits for a thread that exists.

        Raises:
            StartFailed: no thread exists that will take the call.
        """
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system's limit of threads, or no memory for a stack
            if self._threads <= self._abandoned:
                self._pending -= 1
                raise StartFailed(f"no thread can be started now: {error}") from error
        else:
            self._threads += 1

    def close(self) -> None:
        """Let the threads end when they have done what was asked. Does not wait for them."""
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = 0

    def _run(self) -> None:
        calls, completed = self._calls, self._completed
        while (call := calls.get()) is not None:
            if not call.future.cancelled():
                try:
                    call.result = call.context.run(call.function)
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the call
                    call.error = error
            completed.append(call)
            del call
            if not self._is_delivery_scheduled:
                self._is_delivery_scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._deliver)  # type: ignore[union-attr]

    def _deliver(self) -> None:
        # First the flag, then the calls: whoever answers after the last look sees the flag down and wakes us again.
        self._is_delivery_scheduled = False
        completed = self._completed
        while completed:
            call = completed.popleft()
            self._pending -= 1
            call.is_delivered = True
            future = call.future
            if call.is_abandoned:
                # Its thread has come back: one too many now.
                self._abandoned -= 1
                self._threads -= 1
                self._calls.put(None)
            elif future.done():
                continue
            elif call.error is None:
                future.set_result(call.result)
            elif isinstance(call.error, StopIteration):
                # A future cannot carry one: it would end the coroutine that waits.
                future.set_exception(RuntimeError(f"the function raised StopIteration({call.error.value!r})"))
            else:
                future.set_exception(call.error)
