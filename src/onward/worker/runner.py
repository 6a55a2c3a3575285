"""Runs one claimed job, and says how that ended. What becomes of the job is decided by :func:`onward.lifecycle.decide`.

A run goes through four steps: find the task, read its payload, call its function, write its result. Whatever goes wrong in
any of them is an answer (:data:`~onward.lifecycle.Result`), never an exception: a worker must not fall over a job.

``async def`` handlers run inline, in the asyncio task that called :meth:`Runner.run`: that task belongs to the run for as long
as it lasts, and is what gets cancelled when the run has to stop. Plain functions go to an :data:`Invoke`, which puts them on
a thread or into a process; when such a run has to stop, the runner turns away and the function is left to end by itself.

Why a run was stopped is kept with it, so that a cancellation of ours is told apart from one that comes from outside (the
worker shuts down: it propagates) and from one that the handler made itself (a failure like any other).
"""

from __future__ import annotations

import asyncio
import enum
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final

import msgspec
from msgspec import UNSET

from onward import rules
from onward.arguments import BadPayload, nearest, to_json
from onward.clock import Clock, SystemClock, moment_of
from onward.context import JobContext, RunState
from onward.control import Cancel, DoNotRetry, Snooze
from onward.engine.observed import ObservedEngine
from onward.engine.values import Claim, Token
from onward.errors import InvalidJob
from onward.lifecycle import FINISHED, Failure, Interrupted, Raised, Result, Returned, Snoozed, Stopped
from onward.task import Task
from onward.worker.deadlines import Deadlines
from onward.worker.reporter import Reporter

CallNext = Callable[[], Awaitable[Any]]
"""Goes on to the next middleware, and in the end to the handler; gives what the handler returned."""
Middleware = Callable[[JobContext, CallNext], Awaitable[Any]]
"""Stands around every run: sees the context, calls on, and sees or changes what comes back::

    async def timed(context: JobContext, call_next: CallNext) -> object:
        started = perf_counter()
        try:
            return await call_next()
        finally:
            log.info("%s took %.3f s", context.type, perf_counter() - started)
"""


class Invocation(msgspec.Struct, frozen=True):
    """A plain function that is to be called somewhere else than on the event loop."""

    task: Task[..., Any]
    claim: Claim
    call: Callable[[], Any]
    """Calls the function with its arguments; for a thread of this process."""


Invoke = Callable[[Invocation], Awaitable[Any]]
"""Has a function called, and gives what it returned or raises what it raised. Must bear being cancelled while it waits."""


async def on_a_thread(invocation: Invocation) -> Any:
    """Call a function on a thread of the event loop's own pool: for ticks and tests. Workers have a quicker way."""
    return await asyncio.to_thread(invocation.call)


class _Stop(enum.Enum):
    CANCELLED = "cancelled"
    """The job is no longer ours: whatever its handler says is not recorded."""
    TIMED_OUT = "timed out"


_MOST_MESSAGE: Final = 4_000
_MOST_TRACEBACK: Final = 16_000
"""Characters kept of what a failure says: enough for a person, little enough for a row."""


class _Run(RunState):
    __slots__ = ("asyncio_task", "stop")

    def __init__(self, claim: Claim, runner: Runner) -> None:
        # Written out: this is made for every job.
        self.claim = claim
        self.engine = runner.engine
        self.encode = runner.encode
        self.on_note = runner.note
        self.is_stopped = self.is_settled = False
        self.progress = self.message = self.lines = None
        self.asyncio_task = asyncio.current_task()
        self.stop: _Stop | None = None

    def end(self, why: _Stop) -> None:
        """Stop the run from outside its handler."""
        if self.stop is None and self.asyncio_task is not None:
            self.stop = why
            self.is_stopped = True
            self.asyncio_task.cancel()


class Runner:
    """Runs jobs of the tasks it is given, as many at once as it is asked to."""

    def __init__(
        self,
        *,
        tasks: Mapping[str, Task[..., Any]],
        engine: ObservedEngine,
        worker_id: str,
        middleware: Sequence[Middleware] = (),
        thread: Invoke = on_a_thread,
        process: Invoke | None = None,
        clock: Clock | None = None,
        max_result: int = rules.MAX_PAYLOAD,
    ) -> None:
        self.engine = engine
        self.worker_id = worker_id
        self._tasks = tasks
        self._middleware = tuple(middleware)
        self._invoke: dict[str, Invoke] = {"auto": thread, "thread": thread, "process": process or thread}
        self._clock = clock or SystemClock()
        self._max_result = max_result
        self._runs: dict[Token, _Run] = {}
        self._deadlines: Deadlines[_Run] = Deadlines(lambda run: run.end(_Stop.TIMED_OUT))
        self._reporter = Reporter(engine, on_lost=lambda run: self.cancel(run.claim.token))
        self.note = self._reporter.note

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return len(self._runs)

    async def run(self, claim: Claim) -> Result | None:
        """Run a job and say how it ended; None: there is nothing to record, its handler has completed it by itself.

        The asyncio task that calls this is the run's own until it returns: to stop the handler is to cancel that task.

        Raises:
            asyncio.CancelledError: the task was cancelled by somebody else; the handler has been stopped.
        """
        task = self._tasks.get(claim.type)
        if task is None:
            message = f"this worker has no task {claim.type!r}{nearest(claim.type, self._tasks)}"
            return Raised(Failure("NoHandler", message), retryable=False)
        try:
            call = task.bind(claim.payload)
        except InvalidJob as error:
            return Raised(Failure(type(error).__qualname__, _clean(str(error), _MOST_MESSAGE)), retryable=False)
        run = _Run(claim, self)
        token = claim.token
        self._runs[token] = run
        timeout = task.options.timeout
        if timeout is not None:
            self._deadlines.add(run, timeout.total_seconds())
        try:
            if task.is_async and not self._middleware:
                value = await call(JobContext(run))
            else:
                value = await self._through_middleware(task, run, call)
        except (Exception, asyncio.CancelledError, SystemExit) as error:  # noqa: BLE001 - whatever a handler raises
            result = self._raised(task, run, error)
        else:
            result = self._returned(task, run, value)
        finally:
            del self._runs[token]
            if timeout is not None:
                self._deadlines.drop(run)
        if run.has_notes:
            await self._reporter.finish(run)
        if run.is_settled and isinstance(result, Returned):
            return await self._settled(claim)
        return result
