"""What an App and a blueprint share: the decorators that declare tasks and schedules."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from onward.backoff import Backoff
from onward.context import JobContext
from onward.control_flow import as_duration
from onward.cron import Trigger, trigger_of
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.values import Rate
from onward.errors import InvalidValue
from onward.handler import Executor, FailureHook, RetryRules, SuccessHook, TaskOptions, UnknownFields
from onward.job import NewJob
from onward.lifecycle import CrashPolicy
from onward.schedule import Missed, Schedule
from onward.task import AsyncTask, PlainTask, Task
from onward.validation import check_type, one_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Task[..., Any])


class TaskKeywords(TypedDict, total=False):
    """The keywords of ``@app.task(…)``."""

    name: str | None
    """What its jobs are called in the store; the function's own name unless given."""
    queue: str
    """Where its jobs wait; ``mail/{org_id}`` gives each organisation a queue of its own."""
    priority: int
    """Higher is more urgent."""
    max_attempts: int | None
    """The most runs a job may have; the queue's default, else 5."""
    backoff: Backoff | None
    """How long to wait between them; the queue's default, else 1 s doubling up to 60 s."""
    retry: RetryRules | None
    """For single classes of exceptions, another backoff, or False for no retry."""
    timeout: timedelta | float | None
    """How long one run may take. A plain function cannot be stopped: its run counts as failed, and the thread is left
    to end by itself."""
    dedupe: bool
    """While a job with the same arguments and organisation waits or runs, another enqueue adds nothing."""
    rate: Rate | str | None
    """How often jobs of the task's queue start, across all workers: ``Rate(600)``, or ``"600/min"``."""
    concurrency: int | None
    """How many jobs of the task's queue run at once, across all workers."""
    executor: Executor
    """``process`` runs a plain function in a process of its own, for work that needs a whole processor."""
    on_crash: CrashPolicy
    """What becomes of a job that has ended ``max_crashes`` child processes, alone in each: a ``dead_letter``;
    ``retry``, as after any failure; ``fail``; ``hold``, until a person edits its ``run_at``."""
    store_result: bool
    """Whether what it returns is stored."""
    unknown_fields: UnknownFields | None
    """Whether keys of a payload that no argument has are ignored or make the run fail; as the App says unless given."""
    aliases: Mapping[str, str] | None
    """The payload's keys for arguments whose names differ, such as ``{"sender": "from"}``."""
    whole_payload: bool
    """The function's one argument is the payload itself: a string, an array, a number or null too."""
    catch_all: bool
    """Also run jobs of the queue whose names no task has; ``context.type`` is the job's name."""
    redact: Iterable[str]
    """Names of keys of its payload and result whose values are not shown, as ``App(redact=…)``; ``*`` hides all of
    both."""
    on_success: SuccessHook | None
    """Called with the job's :class:`JobContext` and its result after the job has completed. Plain or async; called at
    most once, by the worker that recorded the outcome; what it raises is logged."""
    on_failure: FailureHook | None
    """The same, with the :class:`FailedAttempt`, after the job has failed for good or become a dead letter: not after
    an attempt that is retried."""


class TaskDecorator(Protocol):
    """What ``app.task(…)`` gives: turns a function into a task."""

    # What an async function gives is a coroutine, so it is a plain function too; the order of the overloads tells them
    # apart, and that is what mypy warns of.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


@dataclass(frozen=True, slots=True)
class ScheduleDeclaration:
    """A schedule as the code declares it, before its store is known."""

    name: str
    trigger: Trigger
    missed: Missed | None
    """None: the default of the store."""
    make_job: Callable[[], NewJob]
    """Called when the schedule is needed: annotations of the task may name what is defined further down."""

    def check(self, capabilities: Capabilities) -> None:
        """Refuse a store that cannot keep the schedule.

        Raises:
            Unsupported: the store has no schedules, none by interval, or no such policy for missed times.
        """
        capabilities.require(Feature.SCHEDULES)
        capabilities.check_trigger(self.trigger)
        capabilities.missed_policy(self.missed)

    def schedule_on(self, capabilities: Capabilities) -> Schedule:
        """Make the schedule for a store."""
        policy = capabilities.missed_policy(self.missed)
        return Schedule(name=self.name, job=self.make_job(), trigger=self.trigger, missed=policy)


class Declarations:
    """Declares tasks and schedules by decorators: see :class:`onward.App` and :class:`onward.Tasks`."""

    def _declare_task(self, function: Callable[..., Any], name: str, options: TaskOptions) -> Task[..., Any]:
        raise NotImplementedError

    def _declare_schedule(self, declaration: ScheduleDeclaration) -> None:
        raise NotImplementedError

    def _default_queue(self) -> str:
        return "default"

    def _full_name(self, name: str) -> str:
        return name

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskKeywords]) -> Any:
        """Make a task of a function: ``@app.task``, or ``@app.task(queue="mail", max_attempts=5)``.

        An ``async def`` runs on the event loop, a plain ``def`` on a thread.

        Args:
            function: the function.
            options: see :class:`TaskKeywords`.

        Raises:
            InvalidValue: the function or an option breaks a rule.
        """
        name = options.get("name")
        values = _options_of(options, queue=self._default_queue())

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            if not callable(function):
                raise InvalidValue("task", function, "must be a function: use @app.task, or @app.task(queue=…)")
            own_name = name or str(getattr(function, "__name__", type(function).__name__))
            return self._declare_task(function, check_type("name", self._full_name(own_name)), values)

        return make if function is None else make(function)

    @overload
    def schedule(
        self,
        cron: str,
        /,
        *,
        timezone: str = "UTC",
        missed: Literal["skip", "once", "all"] | None = None,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[T], T]: ...
    @overload
    def schedule(
        self,
        cron: None = None,
        /,
        *,
        every: timedelta,
        missed: Literal["skip", "once", "all"] | None = None,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[T], T]: ...
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        every: timedelta | None = None,
        timezone: str = "UTC",
        missed: Literal["skip", "once", "all"] | None = None,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[T], T]:
        """Schedule a task to run periodically: ``@app.schedule("0 6 * * mon-fri", timezone="Europe/Berlin")``.

        Goes above ``@app.task``. Workers create the schedule in the store when they start, and change it when the code
        has changed; one that is no longer in the code stays until it is deleted.

        Args:
            cron: a cron expression of five fields, or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``.
            every: instead of it, the interval between two runs.
            timezone: of the cron expression.
            missed: what to do for times that passed while no worker ran: ``skip`` them, enqueue ``once`` for all of
                them, or enqueue ``all``. By default ``once``; pg-boss has only ``skip``, BullMQ only ``once``.
            name: of the schedule; the task's own name unless given.
            arguments: of the function, by name.

        Raises:
            InvalidValue: the expression, the time zone or an option is not valid.
            Unsupported: the store has no schedules by interval, or no such policy for missed times.
        """
        trigger = trigger_of(cron, every=every, timezone=timezone)
        policy = None if missed is None else one_of("missed", Missed, missed)

        def declare(task: T) -> T:
            if not isinstance(task, Task):
                raise InvalidValue("schedule", task, "must be above @app.task: it takes a task")
            self._declare_schedule(
                ScheduleDeclaration(
                    name=self._full_name(name) if name else task.name,
                    trigger=trigger,
                    missed=policy,
                    make_job=lambda: task.job(**(arguments or {})),
                )
            )
            return task

        return declare


def _options_of(given: TaskKeywords, *, queue: str) -> TaskOptions:
    timeout, rate = given.get("timeout"), given.get("rate")
    known: dict[str, Any] = {
        "queue": queue,
        **{name: value for name, value in given.items() if name != "name"},
        "retry": dict(given.get("retry") or {}),
        "aliases": dict(given.get("aliases") or {}),
        "timeout": None if timeout is None else as_duration("timeout", timeout),
        "rate": Rate.parse(rate) if isinstance(rate, str) else rate,
        "redact": tuple(given.get("redact", ())),
    }
    if unknown := known.keys() - set(TaskOptions.__struct_fields__):
        raise TypeError(f"task() got an unexpected keyword argument {', '.join(map(repr, sorted(unknown)))}")
    return TaskOptions(**known)
