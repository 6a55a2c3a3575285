"""Requests that wait for a thread, and the thread that serves them.

Requests come from any thread or event loop. They are served in the order in which they came, the urgent ones first, and
those that have piled up are served as one group. Each caller gets its result in its own way: by a future of its loop,
or by an event that its thread waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from onward.engines.sqlite.transaction import Transaction

T = TypeVar("T")

MAX_GROUP_SIZE: Final = 64
"""Requests in one transaction: enough to share the disk's flush, few enough to keep the lock short."""

_STUCK_CHECK_INTERVAL: Final = 0.05
"""Seconds."""


@dataclass(slots=True)
class Request(Generic[T]):
    """Work for a connection, and how its caller waits for the result."""

    work: Callable[..., T] | None = None
    """Called with the transaction and ``args``."""
    args: tuple[Any, ...] = ()
    coalesced_work: Callable[[Transaction, list[Any]], list[T]] | None = None
    item: Any = None
    single_statement: Callable[[Transaction, Any], T | None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[T] | None = None
    done: threading.Event | None = None
    result: T | None = None
    error: BaseException | None = None
    is_done: bool = False
    is_urgent: bool = False
    on_done: Callable[[Request[T]], None] | None = None
    """Called on ``loop`` instead of setting a future."""

    def get_result(self) -> T:
        """Return what came of it, or raise what was wrong."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]

    def resolve_future(self) -> None:
        """Hand the answer over, on the caller's own thread."""
        if self.on_done is not None:
            self.on_done(self)
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


@dataclass(eq=False)
class RequestQueue:
    """The requests of one connection, and the thread that serves them."""

    name: str
    """The name of the thread."""
    _requests: deque[Request[Any]] = field(default_factory=deque, init=False)
    _urgent: deque[Request[Any]] = field(default_factory=deque, init=False)
    _wakeups: SimpleQueue[None] = field(default_factory=SimpleQueue, init=False)
    """One for each request, or for as many as go together; one that finds nothing to do is harmless."""
    _thread: threading.Thread | None = field(default=None, init=False)
    _is_stopping: bool = field(default=False, init=False)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    @property
    def is_empty(self) -> bool:
        """Whether no request waits."""
        return not self._requests and not self._urgent

    def start(self, serve_next: Callable[[], Sequence[Request[Any]]]) -> None:
        """Start the thread, which calls ``serve_next`` for each wake-up; it returns the requests that it has served."""
        self._requests, self._urgent = deque(), deque()
        self._wakeups = SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, args=(serve_next,), name=self.name, daemon=True)
        self._thread.start()

    def stop(self, is_stuck: Callable[[], bool]) -> None:
        """Serve what waits, and end the thread. If it is stuck it is left to end when it can."""
        if self._thread is not None:
            self._is_stopping = True
            self._wakeups.put(None)
            while self._thread.is_alive() and not is_stuck():
                self._thread.join(_STUCK_CHECK_INTERVAL)
            self._thread = None

    def reset_after_fork(self) -> None:
        """Forget the parent's thread."""
        self._thread = None

    def put(self, requests: Sequence[Request[Any]], *, urgent: bool = False) -> None:
        """Add requests, and wake the thread."""
        (self._urgent if urgent else self._requests).extend(requests)
        for _ in range(0, len(requests), MAX_GROUP_SIZE):
            self._wakeups.put(None)

    def take(self) -> list[Request[Any]]:
        """Take what has piled up, the urgent first."""
        requests: list[Request[Any]] = []
        while len(requests) < MAX_GROUP_SIZE:
            try:
                requests.append(self._urgent.popleft() if self._urgent else self._requests.popleft())
            except IndexError:
                break
        return requests

    def _run(self, serve_next: Callable[[], Sequence[Request[Any]]]) -> None:
        while True:
            self._wakeups.get()
            requests = serve_next()
            if requests:
                deliver(requests)
            elif self._is_stopping:
                return


def deliver(requests: Sequence[Request[Any]]) -> None:
    """Give each caller its result, on its own loop or thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Request[Any]]] = {}
    for request in requests:
        if request.loop is not None:
            by_loop.setdefault(request.loop, []).append(request)
        elif request.done is not None:
            request.done.set()
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(resolve_futures, answered)
        except RuntimeError:  # the loop has closed: nobody waits there any more
            continue


def resolve_futures(requests: Sequence[Request[Any]]) -> None:
    """Give the callers of this loop their results."""
    for request in requests:
        request.resolve_future()
