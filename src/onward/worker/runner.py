"""Runs one claimed job, and says how that ended. What becomes of the job is decided by :func:`onward.lifecycle.decide`.

A run goes through four steps: find the task, read its payload, call its function, write its result. Whatever goes
wrong in any of them is an answer (:data:`~onward.lifecycle.Result`), never an exception: a worker must not fall over
a job.

``async def`` handlers run inline, in the asyncio task that called :meth:`Runner.run`: that task belongs to the run
for as long as it lasts, and is what gets cancelled when the run has to stop. Plain functions go to an :data:`Invoke`,
which puts them on a thread or into a process; when such a run has to stop, the runner turns away and the function is
left to end by itself.

Why a run was stopped is kept with it, so that a cancellation of ours is told apart from one that comes from outside
(the worker shuts down: it propagates) and from one that the handler made itself (a failure like any other).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from onward import validation
from onward.arguments import to_json
from onward.clock import Clock, SystemClock, moment_of
from onward.context import CallNext, JobContext, Middleware, RunState
from onward.control_flow import Cancel, DoNotRetry, Retry, Snooze
from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, Token
from onward.errors import InvalidValue, PayloadTooLarge, StoreUnavailable
from onward.handler import Handler
from onward.lifecycle import (
    FINISHED,
    Commit,
    Failure,
    Interrupted,
    JobStatus,
    Raised,
    Result,
    Returned,
    SelfCompleted,
    Snoozed,
    Stopped,
)
from onward.worker.progress_reporter import Reporter
from onward.worker.remote_error import StandIn
from onward.worker.threads import StartFailed
from onward.worker.timeouts import Timeouts
from onward.worker.unknown_tasks import UnknownTasks

T = TypeVar("T")

log = logging.getLogger("onward.worker")

__all__ = ["CallNext", "Invocation", "Invoke", "Middleware", "Runner", "run_in_thread"]


class Invocation(msgspec.Struct, frozen=True):
    """A plain function that is to be called somewhere else than on the event loop."""

    handler: Handler
    claim: Claim
    call: Callable[[], Any]
    """Calls the function with its arguments; for a thread of this process."""
    run: RunState
    """Where what the function says of its job is gathered, when it is called by another process."""


Invoke = Callable[[Invocation], Awaitable[Any]]
"""Has a function called, and gives what it returned or raises what it raised. Must bear being cancelled meanwhile."""


async def run_in_thread(invocation: Invocation) -> Any:
    """Call a function on a thread of the event loop's own pool: for ticks and tests. Workers have a quicker way."""
    return await asyncio.to_thread(invocation.call)


class _Stop(enum.Enum):
    CANCELLED = "cancelled"
    """The job is no longer ours: whatever its handler says is not recorded."""
    TIMED_OUT = "timed out"


_WRONG_ISOLATION_DELAY: Final = timedelta(minutes=1)
"""Until a job runs again whose handler could not complete it in its transaction."""
_START_RETRY_DELAY: Final = timedelta(seconds=1)
"""How long a job waits for which the system had no thread or process. Its handler has not begun: it costs nothing."""
_MAX_MESSAGE_LENGTH: Final = 4_000
_MAX_TRACEBACK_LENGTH: Final = 16_000
"""Characters kept of what a failure says: enough for a person, little enough for a row."""


class _Run(RunState, eq=False):
    asyncio_task: asyncio.Task[Any] | None = None
    stop: _Stop | None = None

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """See :class:`RunState`."""
        if self.asyncio_task is None:
            return super().wait_for(asked)
        return asyncio.run_coroutine_threadsafe(asked, self.asyncio_task.get_loop()).result()

    def request_stop(self, reason: _Stop) -> None:
        """Stop the run from outside its handler."""
        if self.stop is None and self.asyncio_task is not None:
            self.stop = reason
            self.is_stopped = True
            self.asyncio_task.cancel()

    def consume_cancellation(self) -> None:
        """Take back the cancellation that stopped the run, and let one that came from elsewhere go on."""
        task = self.asyncio_task
        if task is not None and (task.uncancel() if self.stop is not None else task.cancelling()) > 0:
            raise asyncio.CancelledError


class Runner:
    """Runs jobs of the tasks it is given, as many at once as it is asked to."""

    def __init__(
        self,
        *,
        handlers: Mapping[str, Handler],
        engine: CheckedEngine,
        worker_id: str,
        catch_all: Mapping[str, Handler] | None = None,
        middleware: Sequence[Middleware] = (),
        thread: Invoke = run_in_thread,
        process: Invoke | None = None,
        clock: Clock | None = None,
        max_result: int = validation.MAX_PAYLOAD,
        unknown_tasks: UnknownTasks | None = None,
        on_unfit: Callable[[], None] = lambda: None,
        state: Any = None,
    ) -> None:
        """``thread`` and ``process`` say how plain functions are called; without ``process`` they share the threads.

        ``on_unfit`` is called for a job that another worker may be able to run: its task is not known here, or its
        payload does not fit. ``state`` is the value of the App's lifespan.
        """
        self.state = state
        self.engine = engine
        self.worker_id = worker_id
        self._handlers = handlers
        self._catch_all = catch_all or {}
        self._middleware = tuple(middleware)
        self._invoke: dict[str, Invoke] = {"auto": thread, "thread": thread, "process": process or thread}
        self._clock = clock or SystemClock()
        self._max_result = max_result
        self._unknown_tasks = unknown_tasks or UnknownTasks(engine, worker_id=worker_id, clock=clock)
        self._on_unfit = on_unfit
        self._runs: dict[Token, _Run] = {}
        self._timeouts: Timeouts[_Run] = Timeouts(lambda run: run.request_stop(_Stop.TIMED_OUT))
        self._reporter = Reporter(engine, on_lost=lambda run: self.cancel(run.claim.token))
        self.note = self._reporter.note
        self._encode = self.encode  # bound once: every run is given it

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return len(self._runs)

    async def run(self, claim: Claim, slot: asyncio.Task[Any] | None = None) -> Result | SelfCompleted:
        """Run a job and return how it ended.

        The asyncio task that calls this is the run's own until it returns: to stop the handler is to cancel that task.
        Who calls it for many jobs says which one it is (``slot``): to find out takes a system call.

        Raises:
            asyncio.CancelledError: the task was cancelled by somebody else; the handler has been stopped.
        """
        handler = self.handler_for(claim)
        if handler is None:
            self._on_unfit()
            return await self._unknown_tasks.result_of(claim, self._handlers)
        try:
            arguments = handler.arguments.decode(claim.payload)
        except InvalidValue as error:
            self._on_unfit()
            return Raised(Failure(type(error).__qualname__, _sanitize(str(error), _MAX_MESSAGE_LENGTH)))
        run = _Run(
            claim,
            self.engine,
            self._encode,
            self.note,
            state=self.state,
            asyncio_task=slot or asyncio.current_task(),
        )
        if self._reporter.loop is None:
            self._reporter.loop = asyncio.get_running_loop()
        self._runs[claim.token] = run
        timeout = handler.options.timeout
        if timeout is not None:
            self._timeouts.add(run, timeout.total_seconds())
        result: Result
        try:
            if handler.is_async and not self._middleware:
                value = await handler.call(arguments, JobContext(run))
            else:
                value = await self._call_handler(handler, run, arguments)
        except (Exception, asyncio.CancelledError, SystemExit) as error:  # noqa: BLE001 - whatever a handler raises
            result = self._raised(handler, run, error)
        else:
            result = self._returned(handler, run, value)
        finally:
            del self._runs[claim.token]
            if timeout is not None:
                self._timeouts.remove(run)
        if run.progress is not None or run.lines is not None or self._reporter.sending:
            try:
                await self._reporter.finish(run)
            except asyncio.CancelledError:
                # The handler has ended: how, matters more than the rest of what it said.
                if run.asyncio_task is not None:
                    run.asyncio_task.uncancel()
        if run.is_settled and isinstance(result, Returned):
            return await self._check_committed(run)
        return result

    def run_of(self, task: asyncio.Task[Any] | None) -> tuple[Claim, Handler | None] | None:
        """Find the run that an asyncio task belongs to. From any thread, while the loop is blocked."""
        for run in list(self._runs.values()):
            if run.asyncio_task is task:
                return run.claim, self.handler_for(run.claim)
        return None

    def handler_for(self, claim: Claim) -> Handler | None:
        """Find the handler of a job's task, or the catch-all handler of its queue."""
        if (handler := self._handlers.get(claim.type)) is not None:
            return handler
        for pattern, handler in self._catch_all.items():
            if validation.matches(pattern, claim.ref.queue):
                return handler
        return None

    def cancel(self, token: Token) -> bool:
        """Stop the handler of a job that is no longer ours, and say whether there was one to stop.

        An async handler is cancelled; a plain one is told by its context and left to end.
        """
        run = self._runs.get(token)
        if run is None or run.is_settled:  # a job that its handler has completed is no longer held: nothing is lost
            return False
        run.request_stop(_Stop.CANCELLED)
        return True

    def encode(self, value: Any) -> str | None:
        """Write a result as JSON.

        Raises:
            InvalidValue: it cannot be written, or is too large.
        """
        return None if value is None else to_json(value, field="result", max_size=self._max_result)

    def _call_handler(self, handler: Handler, run: _Run, arguments: dict[str, Any]) -> Awaitable[Any]:
        context = JobContext(run)
        call = partial(handler.call, arguments, context)
        call_next: CallNext
        if handler.is_async:
            call_next = call
        else:
            invocation = Invocation(handler, run.claim, partial(_call_sync, call), run)
            call_next = partial(self._invoke[handler.options.executor], invocation)
        for middleware in reversed(self._middleware):
            call_next = partial(middleware, context, call_next)
        return call_next()

    def _returned(self, handler: Handler, run: _Run, value: Any) -> Result:
        if run.stop is not None:
            run.consume_cancellation()
            if run.stop is _Stop.CANCELLED:
                return Interrupted()
        if run.is_settled or value is None or not handler.options.store_result:
            return Returned()
        try:
            return Returned(self.encode(value))
        except PayloadTooLarge as error:
            message = f"its result of {error.size:,} bytes exceeds the limit of {error.limit:,}: store it elsewhere"
            return Raised(Failure("ResultTooLarge", message), retryable=False)
        except InvalidValue as error:
            return Raised(Failure("BadResult", _sanitize(str(error), _MAX_MESSAGE_LENGTH)), retryable=False)

    def _raised(self, handler: Handler, run: _Run, error: BaseException) -> Result:
        if run.stop is not None or isinstance(error, asyncio.CancelledError):
            run.consume_cancellation()
        match run.stop:
            case _Stop.CANCELLED:
                return Interrupted()
            case _Stop.TIMED_OUT:
                timeout_error = TimeoutError(f"ran longer than its timeout of {handler.options.timeout}")
                return self._failed(handler, run, timeout_error.with_traceback(error.__traceback__))
            case None:
                pass
        match _unwrap(error):
            case Snooze() as snooze:
                return Snoozed(snooze.delay_from(moment_of(self._clock.micros())))
            case Retry() as retry:
                delay = retry.delay_from(moment_of(self._clock.micros()))
                return Raised(_failure(handler, retry.__cause__ or error), delay=delay)
            case Cancel(reason=reason):
                return Stopped(_sanitize(reason, _MAX_MESSAGE_LENGTH))
            case StartFailed() as not_started:
                fields = _log_fields(run.claim) | {"error": str(not_started)}
                log.warning("handler not started, put back", extra=fields)
                return Snoozed(_START_RETRY_DELAY)
            case DoNotRetry():
                return Raised(_failure(handler, error), retryable=False)
            case _ if run.wrong_isolation is not None:
                # A mistake in the program, not in the job: it runs again when the program is mended.
                log.warning("job put back: %s", run.wrong_isolation, extra=_log_fields(run.claim))
                return Snoozed(_WRONG_ISOLATION_DELAY)
            case _:
                return self._failed(handler, run, error)

    def _failed(self, handler: Handler, run: _Run, error: BaseException) -> Raised:
        failure = _failure(handler, error)
        backoff = handler.backoff_for(_unwrap(error))
        if backoff is UNSET:
            return Raised(failure)
        if backoff is None:
            return Raised(failure, retryable=False)
        return Raised(failure, delay=backoff.delay(JobContext(run).attempt))

    async def _check_committed(self, run: _Run) -> Raised | SelfCompleted:
        """Look whether the transaction in which the handler completed its job has been committed."""
        try:
            job = await self.engine.get(run.claim.ref)
        except StoreUnavailable:
            return SelfCompleted(Commit.UNKNOWN)
        if job is None or job.status is JobStatus.COMPLETED:  # None: a queue may keep no completed jobs
            return SelfCompleted(Commit.COMMITTED, run.completed_result)
        if job.status in FINISHED:
            return SelfCompleted(Commit.LOST)
        return Raised(Failure("RolledBack", "its handler completed it in a transaction that was not committed"))


def _log_fields(claim: Claim) -> dict[str, object]:
    return {"job_id": claim.ref.id, "queue": claim.ref.queue, "task": claim.type, "attempt": claim.attempts}


def _call_sync(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StopIteration as error:  # no future can carry it: whoever waits would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error


def _unwrap(error: BaseException) -> BaseException:
    """Take a lone exception out of the groups that task groups wrap it in: it is what the handler meant."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _failure(handler: Handler, error: BaseException) -> Failure:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a faulty __str__ must not hide the failure
        message = "its message cannot be shown"
    try:
        if isinstance(error, StandIn):
            text = error.remote.traceback
        else:
            shown = traceback.TracebackException(type(error), error, _handler_traceback(handler, error.__traceback__))
            text = "".join(shown.format())
        trace = _sanitize(text[-_MAX_TRACEBACK_LENGTH:], _MAX_TRACEBACK_LENGTH)
    except Exception:  # noqa: BLE001 - likewise
        trace = None
    return Failure(
        _sanitize(type(error).__qualname__, _MAX_MESSAGE_LENGTH), _sanitize(message, _MAX_MESSAGE_LENGTH), trace
    )


def _handler_traceback(handler: Handler, trace: TracebackType | None) -> TracebackType | None:
    """Leave out our own frames: people want to see theirs."""
    code = getattr(handler.function, "__code__", None)
    step = trace
    while step is not None:
        if step.tb_frame.f_code is code:
            return step
        step = step.tb_next
    return trace


def _sanitize(text: str, max_length: int) -> str:
    """Make any text one that every store can keep."""
    if len(text) > max_length:
        text = f"{text[: max_length - 1]}…"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
