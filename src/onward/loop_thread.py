"""The event loop of an App's sync API: one thread, started by the first call that needs it.

There is one implementation of everything, the async one. A sync call hands its coroutine to this thread and waits for
the outcome. Any number of threads may do so at once. Enqueueing does not come here: engines enqueue on the caller's own
thread.

The thread ends when its App is closed, when its App is garbage collected, and when the program ends. A child of a fork
has none and starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from typing import Any, Final, Protocol, TypeVar

from onward.errors import EventLoopRunning, InvalidValue, StoreUnavailable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_JOIN_TIMEOUT: Final = 5.0
"""Seconds that a program which ends waits for the thread."""
_LINGER: Final = 1.0
"""Seconds that calls under way have to end by themselves when the thread is told to stop."""
_CLOSED: Final = "the app was closed while the call was under way"


class AsyncStream(Protocol[T_co]):
    """Something to iterate over that begins and ends, such as :class:`onward.events.EventStream`."""

    async def __aenter__(self) -> object: ...  # noqa: D105
    async def __aexit__(self, kind: None, error: None, trace: None, /) -> object: ...  # noqa: D105, PYI036
    def __anext__(self) -> Awaitable[T_co]: ...  # noqa: D105


def refuse_inside_loop(call: str, instead: str) -> None:
    """Refuse to block the event loop that runs on this thread.

    Raises:
        EventLoopRunning: one does.
    """
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented for libraries
        raise EventLoopRunning(call, instead)


def complete_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for, on the caller's own thread: work on a caller's sync connection.

    Raises:
        InvalidValue: it had to wait: the connection is an asynchronous one.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        coroutine.close()
    raise InvalidValue("connection", "an asynchronous connection", "must be one for plain code where .sync is used")


class LoopThread:
    """Runs coroutines of an App for threads without an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._finalizer: weakref.finalize[..., LoopThread] | None = None
        _all.add(self)

    @property
    def is_running(self) -> bool:
        """Whether the thread has been started and not been stopped."""
        return self._running is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this very thread."""
        return (running := self._running) is not None and running.thread is threading.current_thread()

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a coroutine, run it on the thread, and wait for what it gives.

        A caller that is interrupted (Ctrl-C) cancels the coroutine and waits until it has ended.

        Raises:
            StoreUnavailable: the App was closed meanwhile.
        """
        while True:
            outcome = self._started().submit(call)
            if outcome is not None:
                break  # else the thread has ended between the two
        try:
            return outcome.result()
        except BaseException:
            if not outcome.done():
                outcome.interrupt()
                wait([outcome])
            raise

    def iterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        """Iterate over an async generator, one step at a time on the thread."""
        generator = make()

        async def step() -> T:
            return await anext(generator)

        return self._steps(step, generator.aclose)

    def stream(self, stream: AsyncStream[T]) -> Generator[T, None, None]:
        """Begin a stream, and iterate over it until the generator is closed."""

        async def begin() -> None:
            await stream.__aenter__()

        async def step() -> T:
            return await stream.__anext__()

        async def end() -> None:
            await stream.__aexit__(None, None, None)

        self.run(begin)
        return self._steps(step, end)

    def _steps(
        self, step: Callable[[], Coroutine[Any, Any, T]], end: Callable[[], Coroutine[Any, Any, None]]
    ) -> Generator[T, None, None]:
        home: _Running | None = None
        try:
            while True:
                home = self._started()
                yield self.run(step)
        except StopAsyncIteration:
            return
        finally:
            # A generator may be collected by any thread, at any time: on the loop's own thread it must not wait.
            if home is not None and home is self._running:
                if self.is_current:
                    home.submit(end)
                else:
                    self.run(end)

    def close(self, timeout: float | None = None) -> None:
        """Stop the thread and wait until it has ended. Idempotent; the next call starts another."""
        with self._lock:
            running, self._running = self._running, None
            if self._finalizer is not None:
                self._finalizer.detach()
                self._finalizer = None
        if running is not None:
            running.stop()
            if running.thread is not threading.current_thread():
                running.thread.join(timeout)

    def reset_after_fork(self) -> None:
        """Forget the thread of the parent, in its child. Its loop is not closed: the file descriptors are shared."""
        if self._running is not None:
            _of_parent.append(self._running)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock, self._running, self._finalizer = threading.Lock(), None, None

    def _started(self) -> _Running:
        with self._lock:
            if self._running is None:
                self._running = _Running()
                self._finalizer = weakref.finalize(self, self._running.stop)
                self._finalizer.atexit = False
            return self._running


class _Outcome(Future[T]):
    """The outcome of one call."""

    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[T] | None = None

    def begin(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.task = self.loop.create_task(call())
        self.task.add_done_callback(self._finish)

    def interrupt(self) -> None:
        """Cancel the coroutine, from the caller's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed, and everything with it
            self.loop.call_soon_threadsafe(lambda: self.task is not None and self.task.cancel())

    def fail(self) -> None:
        if not self.done():
            self.set_exception(StoreUnavailable(_CLOSED))

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.fail()
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


class _Running:
    """One thread, from its start to its end. Knows nothing of the LoopThread, which may be collected meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: set[_Outcome[Any]] = set()
        self._is_over = False
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), name="onward-sync", daemon=True)
        self.thread.start()
        started.wait()

    def submit(self, call: Callable[[], Coroutine[Any, Any, T]]) -> _Outcome[T] | None:
        """Have a call made; None: the thread has ended."""
        outcome = _Outcome[T]()
        with self._lock:
            if self._is_over or self._loop is None:
                return None
            outcome.loop = self._loop
            self._outcomes.add(outcome)
        outcome.add_done_callback(self._outcomes.discard)
        # With the caller's context variables: call_soon_threadsafe() takes them along.
        self._loop.call_soon_threadsafe(outcome.begin, call)
        return outcome

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has closed already
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self, started: threading.Event) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(started))
                with self._lock:
                    self._is_over = True
        finally:
            started.set()
            for outcome in list(self._outcomes):  # of calls that had not begun
                outcome.fail()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await self._stop.wait()
        # Engines may be closing what they kept for this loop.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=_LINGER)


_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_of_parent: list[_Running] = []
"""In a child: kept for ever, because a loop that is collected closes its file descriptors."""


def _close_all() -> None:
    for thread in list(_all):
        thread.close(_JOIN_TIMEOUT)


def _after_fork() -> None:
    for thread in list(_all):
        thread.reset_after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
