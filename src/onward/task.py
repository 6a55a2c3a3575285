"""A task: a typed function, what is to become of its jobs, and the verbs that make them.

Options never mix with arguments. What belongs to every job of a task is said once, in the decorator; what belongs to
one job is said by :meth:`Task.using`, which gives a configured copy; and ``enqueue`` takes the function's own
arguments and nothing else, so type checkers hold callers to its signature and no argument can be mistaken for an
option.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from onward import keys, validation
from onward.arguments import Arguments
from onward.backoff import Backoff
from onward.context import JobContext
from onward.control_flow import as_duration
from onward.engine.capabilities import Capabilities
from onward.errors import InvalidJob
from onward.handle import JobHandle
from onward.job import Enqueued, NewJob, UniformJobs
from onward.results import Results

P = ParamSpec("P")
R = TypeVar("R")

Executor = Literal["auto", "thread", "process"]
"""Where a handler runs: ``auto`` is the event loop for ``async def`` and a thread for ``def``."""

RetryRules = Mapping[type[BaseException], Backoff | None]
"""Which exceptions to retry otherwise than the job says: after that backoff, or (None) not at all. The nearest class in
the exception's family decides, so ``{Exception: None, TimeoutError: Backoff()}`` retries timeouts and nothing else."""

_ORG: Final = "{org_id}"


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every job of a task. Checked when the task is defined."""

    queue: str = "default"
    """``mail/{org_id}`` gives each organisation a queue of its own."""
    priority: int = 0
    """Higher is more urgent."""
    max_attempts: int | None = None
    """None: the queue's default, else 5."""
    backoff: Backoff | None = None
    """None: the queue's default, else 1 s doubling up to 60 s."""
    retry: RetryRules = {}
    timeout: timedelta | None = None
    """How long one run may take. A thread cannot be stopped: see :attr:`JobContext.is_cancelled`."""
    dedupe: bool = False
    """While a job with the same arguments and organisation waits or runs, a second enqueue adds nothing (H5)."""
    executor: Executor = "auto"
    keep_result: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        validation.check_priority(self.priority)
        if self.max_attempts is not None:
            validation.check_at_least("max_attempts", self.max_attempts, 1)
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidJob("backoff", self.backoff, "must be a Backoff, such as Backoff.exponential(1, cap=60)")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise InvalidJob("timeout", self.timeout, "must be more than 0 seconds, or None for no limit")
        if self.executor not in ("auto", "thread", "process"):
            raise InvalidJob("executor", self.executor, "must be 'auto', 'thread' or 'process'")
        for kind, backoff in self.retry.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidJob("retry", kind, "must have classes of exceptions as keys")
            if backoff is not None and not isinstance(backoff, Backoff):
                raise InvalidJob(f"retry[{kind.__name__}]", backoff, "must be a Backoff, or None for never")


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one job: see :meth:`Task.using`. UNSET: as the task says."""

    delay: timedelta | UnsetType | None = UNSET
    run_at: datetime | UnsetType | None = UNSET
    start_by: datetime | UnsetType | None = UNSET
    priority: int | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    org_id: str | UnsetType | None = UNSET
    idempotency_key: str | UnsetType | None = UNSET
    dedupe: bool | str | UnsetType = UNSET
    throttle: timedelta | UnsetType | None = UNSET
    debounce: timedelta | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    backoff: Backoff | UnsetType | None = UNSET
    within: object | None = None


class Sender(Protocol):
    """Stores what a task has made: the App."""

    max_payload: int
    results: Results

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        ...

    def send(self, jobs: Sequence[NewJob], *, within: object | None) -> Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue jobs."""
        ...

    def send_sync(self, jobs: Sequence[NewJob], *, within: object | None) -> list[Enqueued]:
        """Do the same from code without an event loop."""
        ...


class Task(Generic[P, R]):
    """A function whose calls can be enqueued. Made by ``@app.task``.

    Calling the task itself calls the function, here and now, without a job; a :class:`JobContext` that it asks for
    and is not given is a detached one.
    """

    def __init__(self, function: Callable[..., Any], *, name: str, options: TaskOptions, app: Sender) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.is_async = is_async(function)
        self.__name__: str
        self.arguments = Arguments(function, name=name)
        self._app = app
        self._using = JobOptions()
        self._template: NewJob | None = None
        self._are_alike = True
        """Whether what comes of that differs in nothing but the payload: no key is made of the arguments."""
        self._check_queue(options.queue)
        self._check_function()
        update_wrapper(cast("Callable[..., Any]", self), function)

    def __repr__(self) -> str:
        """Name it."""
        return f"<Task {self.name}>"

    def _check_function(self) -> None:
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise InvalidJob(f"task {self.name}", self.function, "is a generator: a handler returns once, or raises")
        if self.is_async and self.options.executor != "auto":
            rule = "is for plain functions: an `async def` runs on the event loop"
            raise InvalidJob("executor", self.options.executor, rule)

    def _check_queue(self, queue: str) -> None:
        check_queue_template(queue, foreign=self._app.capabilities.is_shared)

    # Making jobs

    def using(
        self,
        *,
        delay: timedelta | float | UnsetType | None = UNSET,
        run_at: datetime | UnsetType | None = UNSET,
        start_by: datetime | UnsetType | None = UNSET,
        priority: int | UnsetType = UNSET,
        queue: str | UnsetType = UNSET,
        org_id: str | UnsetType | None = UNSET,
        idempotency_key: str | UnsetType | None = UNSET,
        dedupe: bool | str | UnsetType = UNSET,
        throttle: timedelta | float | UnsetType | None = UNSET,
        debounce: timedelta | float | UnsetType | None = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        backoff: Backoff | UnsetType | None = UNSET,
        within: object | None = UNSET,
    ) -> Self:
        """Give a copy of the task whose jobs differ so; what is not said stays as it was, and None is none.

        Args:
            delay: how long to wait before the first run, by the store's clock.
            run_at: when to run first, if not at once.
            start_by: not started by then, the job is cancelled as expired.
            priority: higher is more urgent.
            queue: instead of the task's own.
            org_id: the organisation the job belongs to; fills ``{org_id}`` in the name of the queue.
            idempotency_key: a second enqueue of this task with the same key gives back the first job, for as long as
                that is kept.
            dedupe: True: while a job with the same arguments waits or runs, a second enqueue gives that one back; a
                string is the key to compare instead of the arguments.
            throttle: for so long after a job with the same arguments has come, another enqueue gives that one back,
                whatever has become of it. ``dedupe`` may give another key.
            debounce: run when for so long no other job of the task (and organisation) has come, and of all that came
                only the last. ``dedupe`` may give another key, or True for the same arguments.
            max_attempts: the most runs there may be.
            backoff: how long to wait between them.
            within: a connection of yours, in whose transaction the job is to be stored: it exists if and only if that
                commits.
        """
        given = {
            "delay": _duration("delay", delay),
            "throttle": _duration("throttle", throttle),
            "debounce": _duration("debounce", debounce),
            "run_at": run_at,
            "start_by": start_by,
            "priority": priority,
            "queue": queue,
            "org_id": org_id,
            "idempotency_key": idempotency_key,
            "dedupe": dedupe,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "within": within,
        }
        if isinstance(queue, str):
            self._check_queue(queue)
        changes = {name: value for name, value in given.items() if value is not UNSET}
        return self._copy(msgspec.structs.replace(self._using, **changes))

    def _copy(self, using: JobOptions) -> Self:
        other = copy.copy(self)
        vars(other).update(_using=using, _template=None)
        return other

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Make a job without enqueueing it, for :meth:`App.enqueue_many`.

        Raises:
            BadPayload: the arguments do not fit the function.
            InvalidJob: an option breaks a rule.
        """
        if self._using.within is not None:
            raise InvalidJob("within", self._using.within, "belongs to the enqueue, not to the job: give it there")
        return self._jobs(self._encoded(args, kwargs))[0]

    def jobs(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> Sequence[NewJob]:
        """Make many jobs without enqueueing them, for :meth:`Batch.add`: see :meth:`enqueue_many` for the calls."""
        if self._using.within is not None:
            raise InvalidJob("within", self._using.within, "belongs to the enqueue, not to the job: give it there")
        return self._jobs(self._encoded_all(calls))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that will call the function with these arguments. Durable when it returns.

        Raises:
            BadPayload: the arguments do not fit the function.
            InvalidJob: an option breaks a rule.
            Unsupported: the engine does not offer an option.
        """
        payload = self.arguments.encode(args, kwargs, max_size=self._app.max_payload)
        enqueued = await self._app.send(self._jobs([payload]), within=self._using.within)
        return JobHandle(enqueued[0], self._app.results, self.arguments.read_result)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Do the same from code without an event loop."""
        enqueued = self._app.send_sync(self._jobs(self._encoded(args, kwargs)), within=self._using.within)
        return JobHandle(enqueued[0], self._app.results, self.arguments.read_result)

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[JobHandle[R]]:
        """Store many jobs at once, all or none: each call is the arguments by name, or a tuple of them by position."""
        return self._handles(await self._app.send(self._jobs(self._encoded_all(calls)), within=self._using.within))

    def enqueue_many_sync(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[JobHandle[R]]:
        """Do the same from code without an event loop."""
        return self._handles(self._app.send_sync(self._jobs(self._encoded_all(calls)), within=self._using.within))

    def _handles(self, enqueued: list[Enqueued]) -> list[JobHandle[R]]:
        results, decode = self._app.results, self.arguments.read_result
        return [JobHandle(one, results, decode) for one in enqueued]

    def _encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        return [self.arguments.encode(args, kwargs, max_size=self._app.max_payload)]

    def _encoded_all(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[str]:
        return self.arguments.encode_many(calls, max_size=self._app.max_payload)

    def _jobs(self, payloads: Sequence[str]) -> Sequence[NewJob]:
        template = self._template or self._make_template()
        if self._are_alike:
            return UniformJobs(template, payloads)
        return [
            msgspec.structs.replace(
                template,
                payload=payload,
                dedupe_key=keys.dedupe_key(self.name, template.org_id, msgspec.json.decode(payload)),
            )
            for payload in payloads
        ]

    def _make_template(self) -> NewJob:
        """Gather what all jobs of this copy of the task have in common."""
        options, using = self.options, self._using
        org_id = _or(using.org_id, None)
        dedupe = _or(using.dedupe, options.dedupe)
        debounce = _or(using.debounce, None)
        if debounce is not None and dedupe is False:
            dedupe = f"{self.name}::{org_id or 'global'}"
        self._template = NewJob(
            type=self.name,
            queue=fill_queue(_or(using.queue, options.queue), org_id, foreign=self._app.capabilities.is_shared),
            org_id=org_id,
            priority=_or(using.priority, options.priority),
            idempotency_key=_or(using.idempotency_key, None),
            dedupe_key=dedupe if isinstance(dedupe, str) else None,
            throttle=_or(using.throttle, None),
            debounce=debounce,
            delay=_or(using.delay, None),
            run_at=_or(using.run_at, None),
            start_by=_or(using.start_by, None),
            max_attempts=_or(using.max_attempts, options.max_attempts),
            backoff=_or(using.backoff, options.backoff),
        )
        self._are_alike = isinstance(dedupe, str) or not (dedupe or self._template.throttle is not None)
        return self._template

    # Running them

    def bind(self, payload: str) -> Callable[[JobContext], Any]:
        """Read a payload into a call that is ready to be made.

        Raises:
            BadPayload: it does not fit the function.
        """
        return partial(self.call, self.arguments.decode(payload))

    def call(self, arguments: dict[str, Any], context: JobContext) -> Any:
        """Call the function with arguments that have been read, and with the context if it asks for one."""
        if (parameter := self.arguments.context) is not None:
            arguments[parameter] = context
        return self.function(**arguments)

    def backoff_for(self, error: BaseException) -> Backoff | UnsetType | None:
        """Say how to retry after an exception: a backoff, None for never, UNSET for as the job says."""
        rules = self.options.retry
        if rules:
            for kind in type(error).__mro__:
                if kind in rules:
                    return rules[kind]
        return UNSET

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parameter = self.arguments.context
        if parameter is not None and parameter not in kwargs and not any(isinstance(arg, JobContext) for arg in args):
            signature = inspect.signature(self.function)
            bound = signature.replace(
                parameters=[p for p in signature.parameters.values() if p.name != parameter]
            ).bind(*args, **kwargs)
            return self.function(**{parameter: JobContext.detached(self.name)}, **bound.arguments)
        return self.function(*args, **kwargs)


class AsyncTask(Task[P, R]):
    """A task whose function is an ``async def``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function, here and now, without a job."""
        call: Coroutine[Any, Any, R] = self._called(args, kwargs)
        return call


class PlainTask(Task[P, R]):
    """A task whose function is a plain ``def``: its jobs run on threads, or in processes."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now, without a job."""
        value: R = self._called(args, kwargs)
        return value


def check_queue_template(queue: str, *, foreign: bool = False) -> str:
    """Refuse a queue that is neither a name nor a name with ``{org_id}`` in it."""
    if isinstance(queue, str) and ("{" in queue or "}" in queue):
        bare = queue.replace(_ORG, "x")
        if "{" in bare or "}" in bare:
            raise InvalidJob("queue", queue, "may have {org_id} in it, and nothing else in braces")
        validation.check_queue_name(bare, foreign=foreign)
    else:
        validation.check_queue_name(queue, foreign=foreign)
    return queue


def fill_queue(queue: str, org_id: str | None, *, foreign: bool = False) -> str:
    """Put the organisation into a queue's name."""
    if _ORG not in queue:
        return queue
    if org_id is None:
        raise InvalidJob("org_id", None, f"is needed to name the queue {queue}: use using(org_id=…)")
    try:
        # One part of the path and no more: an organisation must not name its way into another one's queues.
        validation.check_queue_name(org_id.replace("/", "?"))
        return validation.check_queue_name(queue.replace(_ORG, org_id), foreign=foreign)
    except InvalidJob as error:
        raise InvalidJob("org_id", org_id, f"cannot be part of the queue {queue}, which {error.rule}") from None


def queue_pattern(queue: str) -> str:
    """Say where the jobs of all organisations are: ``mail/*`` for ``mail/{org_id}``."""
    before, found, _ = queue.partition(_ORG)
    if not found:
        return queue
    parent, slash, _ = before.rpartition("/")
    return f"{parent}/*" if slash else "*"


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


V = TypeVar("V")
D = TypeVar("D")


def _duration(field: str, given: timedelta | float | UnsetType | None) -> timedelta | UnsetType | None:
    return given if given is UNSET or given is None else as_duration(field, given)


def _or(value: V | UnsetType, default: D) -> V | D:
    return default if value is UNSET else value
