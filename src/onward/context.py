"""What a handler can know and say about the job it runs.

:class:`JobContext` is the handler's side; :class:`RunState` is the runner's, and holds what has been said until it is
sent. Handlers run on the loop or on threads, and may start threads of their own, so everything here may be called
from any; one lock for all, held for a moment, keeps a note from falling between two hands. Nothing waits but
``complete`` and ``dependencies``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from onward import validation
from onward.connection import Connection
from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, Settlement
from onward.errors import ClaimLost, WrongIsolation
from onward.job import Job, JobRef
from onward.lifecycle import Complete
from onward.surrogates import decode_json
from onward.sync import SyncJobContext

Encode = Callable[[Any], str | None]
"""Writes a result as JSON."""

T = TypeVar("T")

_notes = threading.Lock()

ELSEWHERE: Final = object()
"""Stands for the value of a lifespan that another process has."""


class RunState(msgspec.Struct, eq=False):
    """One run of one job, as its runner keeps it."""

    claim: Claim
    engine: CheckedEngine | None = None
    encode: Encode | None = None
    on_note: Callable[[RunState], None] | None = None
    """Called when there is something to report; from any thread."""
    is_stopped: bool = False
    """The job was taken back, its claim is lost, or its time is up."""
    is_settled: bool = False
    """The handler has completed the job in a transaction of its own."""
    completed_result: str | None = None
    """The result with which it did, as JSON."""
    wrong_isolation: WrongIsolation | None = None
    """The handler has tried to complete the job in a transaction in which that cannot be done."""
    progress: tuple[int, str | None] | None = None
    lines: deque[str] | None = None
    state: Any = None
    """The value of the App's lifespan."""

    @property
    def has_notes(self) -> bool:
        """Whether there is something to report."""
        return self.lines is not None or self.progress is not None

    def note(self, *, progress: tuple[int, str | None] | None = None, line: str | None = None) -> None:
        """Keep something to be reported."""
        with _notes:
            if progress is not None:
                self.progress = progress
            if line is not None:
                if self.lines is None:
                    self.lines = deque(maxlen=validation.MAX_LOG_LINES)
                self.lines.append(line)
        if self.on_note is not None:
            self.on_note(self)

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """Have something done on the worker's loop, from a thread of the handler's."""
        asked.close()
        raise ClaimLost("this handler does not run in a worker's own process: there is no store to ask")

    def take_notes(self) -> tuple[int | None, str | None, list[str]]:
        """Hand over progress with its message, and the log lines, and begin anew."""
        with _notes:
            progress, lines = self.progress, self.lines
            self.progress = self.lines = None
        value, message = progress or (None, None)
        return value, message, list(lines or ())


class JobContext:
    """The job that a handler is running: declare a parameter of this type to be given it.

    It is found by its annotation and is no part of the payload. Put it first and type checkers know that too::

        @app.task
        async def resize(context: JobContext, path: str) -> None:
            context.set_progress(50, "half-way")
    """

    __slots__ = ("_run",)

    def __init__(self, run: RunState) -> None:
        self._run = run

    def __repr__(self) -> str:
        """Name the job and the attempt."""
        return f"<JobContext {self.type} {self.ref} attempt {self.attempt} of {self.max_attempts}>"

    @property
    def ref(self) -> JobRef:
        """The job's name."""
        return self._run.claim.ref

    @property
    def id(self) -> str:
        """The job's id."""
        return self._run.claim.ref.id

    @property
    def type(self) -> str:
        """The name of the task."""
        return self._run.claim.type

    @property
    def queue(self) -> str:
        """The queue the job came from."""
        return self._run.claim.ref.queue

    @property
    def payload(self) -> Any:
        """The job's whole payload as JSON values, keys that no argument has included. Decoded at each use."""
        return decode_json(self._run.claim.payload)

    @property
    def org_id(self) -> str | None:
        """The organisation the job belongs to."""
        return self._run.claim.org_id

    @property
    def attempt(self) -> int:
        """Which run this is: 1 the first time. Snoozes and lost workers do not count."""
        claim = self._run.claim
        return claim.attempts if claim.started else claim.attempts + 1

    @property
    def max_attempts(self) -> int:
        """The most runs that the job may have."""
        return self._run.claim.max_attempts

    @property
    def sync(self) -> SyncJobContext:
        """The calls that wait, for a plain function: ``context.sync.dependencies()``."""
        return SyncJobContext(self)

    @property
    def state(self) -> Any:
        """The value of the App's lifespan: what ``App(lifespan=…)`` yields; None where the App has none.

        Raises:
            RuntimeError: the task has ``executor="process"``: the value belongs to the worker's process.
        """
        if self._run.state is ELSEWHERE:
            raise RuntimeError(
                'context.state belongs to the worker\'s process, and this task has executor="process": '
                "open what it needs in the function, or at the top level of its module"
            )
        return self._run.state

    @property
    def should_stop(self) -> bool:
        """Whether to stop: the job was cancelled, its claim is lost, or its time is up.

        An ``async`` handler is cancelled by itself; a plain one runs on a thread, which nobody can stop from outside,
        and should look here now and then. What it returns after that is not recorded.
        """
        return self._run.is_stopped

    def set_progress(self, percent: int, message: str | None = None) -> None:
        """Report progress in percent, 0 to 100. The newest value is stored a few times a second."""
        validation.check_progress(percent)
        if message is not None:
            validation.check_text("progress message", message)
        self._run.note(progress=(percent, message))

    def log(self, line: str) -> None:
        """Write a line about the job, kept with it: the newest 1 000."""
        self._run.note(line=validation.check_text("log line", line))

    async def dependencies(self) -> list[Job]:
        """Read the jobs that this one has waited for, each with its ``result``, in the order in which it named them.

        Those that are no longer kept are left out.
        """
        return await self._store().dependency_jobs(self.ref)

    def _dependencies_sync(self) -> list[Job]:
        return self._run.wait_for(self._store().dependency_jobs(self.ref))

    def _store(self) -> CheckedEngine:
        if self._run.engine is None:
            raise ClaimLost("this handler was called by hand, or in a process of its own: there is no store to ask")
        return self._run.engine

    async def complete(self, result: Any = None, *, connection: Connection) -> None:
        """Complete the job in a transaction of the handler's own, so that it is done if and only if that commits (X3).

        Call it last before the commit. What the handler returns afterwards is not recorded. If the transaction is
        rolled back after all, the run counts as failed. Log and report progress before the transaction begins: a job
        that is done takes no more lines.

        Raises:
            ClaimLost: the job is no longer held by this run; roll back.
            Unsupported: the engine cannot take part in a transaction of yours.
            WrongIsolation: the transaction is REPEATABLE READ or SERIALIZABLE (PostgreSQL). A run that fails because of
                it costs no attempt: the job runs again a minute later.
        """
        engine, settlement = self._completion(result)
        with self._noted_isolation():
            self._completed(await engine.settle([settlement], connection=connection))

    def _complete_sync(self, result: Any = None, *, connection: Connection) -> None:
        engine, settlement = self._completion(result)
        with self._noted_isolation():
            self._completed(engine.settle_sync([settlement], connection=connection))

    @contextmanager
    def _noted_isolation(self) -> Iterator[None]:
        """Note a refusal with the run: the handler may wrap the error, or raise another."""
        try:
            yield
        except WrongIsolation as error:
            self._run.wrong_isolation = error
            raise

    def _completion(self, result: Any) -> tuple[CheckedEngine, Settlement]:
        run = self._run
        if run.engine is None or run.encode is None:
            raise ClaimLost("this handler was called by hand: there is no job to complete")
        if run.is_stopped:
            raise self._lost()
        run.completed_result = run.encode(result)
        return run.engine, Settlement(run.claim, Complete(run.completed_result))

    def _completed(self, lost: frozenset[Any]) -> None:
        if lost:
            self._run.is_stopped = True
            raise self._lost()
        self._run.is_settled = True

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"job {self.ref} is no longer held by this run: roll back what it has written")


def detached_context(type: str = "detached", *, state: Any = None) -> JobContext:
    """Make a context that belongs to no job, for calling a handler by hand: what it reports goes nowhere.

    ``state`` is its ``context.state``.
    """
    ref = JobRef("default", "detached")
    claim = Claim(ref=ref, token=(), type=type, payload="{}", attempts=1, started=True)
    return JobContext(RunState(claim, state=state))


def claim_of(context: JobContext) -> Claim:
    """Return the claim that a run rests on, for the native API of a store."""
    return context._run.claim  # noqa: SLF001 - for onward.bullmq; no part of what handlers see


async def stored_job(context: JobContext) -> Job | None:
    """Read the job that a handler runs as the store has it; None: it is gone, or the handler was called by hand."""
    run = context._run  # noqa: SLF001 - for contrib.django; no part of what handlers see
    return None if run.engine is None else await run.engine.get(run.claim.ref)


def wait_for_stored_job(context: JobContext) -> Job | None:
    """Read it from a thread of the handler's."""
    run = context._run  # noqa: SLF001 - as above
    return None if run.engine is None else run.wait_for(stored_job(context))


def trace_of(context: JobContext) -> str | None:
    """Return the trace-context headers that were enqueued with the job, as a JSON object."""
    return context._run.claim.trace  # noqa: SLF001 - for contrib.otel; no part of what handlers see


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
