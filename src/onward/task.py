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
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from onward import keys, validation
from onward.backoff import Backoff
from onward.connection import Connection
from onward.context import JobContext, detached_context
from onward.control_flow import as_duration
from onward.engine.capabilities import Capabilities
from onward.engine.declared_limits import ORG
from onward.errors import InvalidValue
from onward.handle import JobHandle, handle_of
from onward.handler import Handler, TaskOptions
from onward.job import Enqueued, JobRef, NewJob, UniformJobs
from onward.results import Results
from onward.sync import SyncTask

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one job: see :meth:`Task.using`. UNSET: as the task says."""

    delay: timedelta | UnsetType | None = UNSET
    run_at: datetime | UnsetType | None = UNSET
    start_by: datetime | UnsetType | None = UNSET
    priority: int | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    org_id: str | UnsetType | None = UNSET
    idempotency_key: str | UnsetType | None = UNSET
    dedupe: bool | UnsetType = UNSET
    dedupe_key: str | UnsetType | None = UNSET
    throttle: timedelta | UnsetType | None = UNSET
    debounce: timedelta | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    backoff: Backoff | UnsetType | None = UNSET
    connection: object | None = None


class Sender(Protocol):
    """Stores what a task has made: see :class:`onward.core.Core`."""

    @property
    def max_payload(self) -> int:
        """Bytes of JSON that a job may be."""
        ...

    @property
    def results(self) -> Results:
        """Where ends of jobs are waited for."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        ...

    @property
    def allows_foreign_names(self) -> bool:
        """Whether queues may have names of a foreign store; True as long as the store is not known."""
        ...

    def send(self, jobs: Sequence[NewJob], *, connection: object | None) -> Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue jobs."""
        ...

    def send_sync(self, jobs: Sequence[NewJob], *, connection: object | None) -> list[Enqueued]:
        """Do the same from code without an event loop."""
        ...


class Task(Generic[P, R]):
    """A function whose calls can be enqueued. Made by ``@app.task``.

    Calling the task itself calls the function, here and now, without a job; a :class:`JobContext` that it asks for
    and is not given is a detached one.
    """

    def __init__(self, handler: Handler, sender: Sender) -> None:
        self._handler = handler
        self._sender = sender
        self.__name__: str
        self._using = JobOptions()
        self._template: NewJob | None = None
        self._is_uniform = True
        """Whether jobs made of the template differ only in their payload: no key is made of the arguments."""
        self._check_queue(handler.options.queue)
        update_wrapper(cast("Callable[..., Any]", self), handler.function)

    def __repr__(self) -> str:
        """Name it."""
        return f"<Task {self.name}>"

    @property
    def name(self) -> str:
        """The name of its jobs in the store."""
        return self._handler.name

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        return self._handler.function

    @property
    def options(self) -> TaskOptions:
        """The options that hold for every job of the task."""
        return self._handler.options

    @property
    def is_async(self) -> bool:
        """Whether the function is an ``async def``."""
        return self._handler.is_async

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same for code without an event loop: ``send_mail.sync.enqueue(to="a@example.com")``."""
        return SyncTask(self)

    def handle(self, id: str | JobRef) -> JobHandle[R]:
        """Make a handle from the id of a job of this task: ``await send_mail.handle(id).result()``. Reads nothing.

        Where ids are not global, an id alone is one of the task's own queue; ``"queue:id"`` names another.

        Raises:
            InvalidValue: it is an id alone, and the task's jobs are in several queues.
        """
        results, name = self._sender.results, id
        if isinstance(name, str):
            queue = self.options.queue
            is_global = self._sender.capabilities.has_global_ids or ":" in name or ORG in queue
            name = results.name_of(name) if is_global else JobRef(queue, name)
        return handle_of(name, results, self._handler.arguments.read_result)

    def _check_queue(self, queue: str) -> None:
        check_queue_template(queue, foreign=self._sender.allows_foreign_names)

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
        dedupe: bool | UnsetType = UNSET,
        dedupe_key: str | UnsetType | None = UNSET,
        throttle: timedelta | float | UnsetType | None = UNSET,
        debounce: timedelta | float | UnsetType | None = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        backoff: Backoff | UnsetType | None = UNSET,
        connection: Connection | UnsetType | None = UNSET,
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
            dedupe: while a job with the same arguments waits or runs, a second enqueue returns that one.
            dedupe_key: the same, comparing this key instead of the arguments.
            throttle: for so long after a job with the same arguments has come, another enqueue gives that one back,
                whatever has become of it. ``dedupe_key`` gives another key.
            debounce: run when for so long no other job of the task (and organisation) has come, and of all that came
                only the last. ``dedupe_key`` gives another key, ``dedupe=True`` the arguments.
            max_attempts: the most runs there may be.
            backoff: how long to wait between them.
            connection: a connection of yours with a transaction open: the job exists if and only if that commits.
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
            "dedupe_key": dedupe_key,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "connection": connection,
        }
        if isinstance(queue, str):
            self._check_queue(queue)
        changes = {name: value for name, value in given.items() if value is not UNSET}
        return self._copy(msgspec.structs.replace(self._using, **changes))

    def _copy(self, using: JobOptions) -> Self:
        other = copy.copy(self)
        vars(other).update(_using=using, _template=None)
        return other

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R]:
        """Make a job without enqueueing it, for :meth:`App.enqueue_many`.

        Raises:
            InvalidPayload: the arguments do not fit the function.
            InvalidValue: an option breaks a rule.
        """
        if self._using.connection is not None:
            raise InvalidValue(
                "connection", self._using.connection, "belongs to the enqueue, not to the job: give it there"
            )
        return self._jobs(self._encoded(args, kwargs))[0]

    def jobs(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> Sequence[NewJob[R]]:
        """Make many jobs without enqueueing them, for :meth:`Batch.add`: see :meth:`enqueue_many` for the calls."""
        if self._using.connection is not None:
            raise InvalidValue(
                "connection", self._using.connection, "belongs to the enqueue, not to the job: give it there"
            )
        return self._jobs(self._encoded_all(calls))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that will call the function with these arguments. Durable when it returns.

        Raises:
            InvalidPayload: the arguments do not fit the function.
            InvalidValue: an option breaks a rule.
            Unsupported: the engine does not offer an option.
        """
        payload = self._handler.arguments.encode(args, kwargs, max_size=self._sender.max_payload)
        enqueued = await self._sender.send(self._jobs([payload]), connection=self._using.connection)
        return JobHandle(enqueued[0], self._sender.results, self._handler.arguments.read_result)

    def _enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        enqueued = self._sender.send_sync(self._jobs(self._encoded(args, kwargs)), connection=self._using.connection)
        return JobHandle(enqueued[0], self._sender.results, self._handler.arguments.read_result)

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[JobHandle[R]]:
        """Store many jobs at once, all or none: each call is the arguments by name, or a tuple of them by position."""
        return self._handles(
            await self._sender.send(self._jobs(self._encoded_all(calls)), connection=self._using.connection)
        )

    def _enqueue_many_sync(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[JobHandle[R]]:
        return self._handles(
            self._sender.send_sync(self._jobs(self._encoded_all(calls)), connection=self._using.connection)
        )

    def _handles(self, enqueued: list[Enqueued]) -> list[JobHandle[R]]:
        results, decode = self._sender.results, self._handler.arguments.read_result
        return [JobHandle(one, results, decode) for one in enqueued]

    def _encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        return [self._handler.arguments.encode(args, kwargs, max_size=self._sender.max_payload)]

    def _encoded_all(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[str]:
        return self._handler.arguments.encode_many(calls, max_size=self._sender.max_payload)

    def _jobs(self, payloads: Sequence[str]) -> Sequence[NewJob]:
        template = self._template or self._make_template()
        if self._is_uniform:
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
        dedupe, dedupe_key = _or(using.dedupe, options.dedupe), _or(using.dedupe_key, None)
        debounce = _or(using.debounce, None)
        if debounce is not None and dedupe is False and dedupe_key is None:
            dedupe_key = f"{self.name}::{org_id or 'global'}"
        self._template = NewJob(
            type=self.name,
            queue=fill_queue(_or(using.queue, options.queue), org_id, foreign=self._sender.allows_foreign_names),
            org_id=org_id,
            priority=_or(using.priority, options.priority),
            idempotency_key=_or(using.idempotency_key, None),
            dedupe_key=dedupe_key,
            throttle=_or(using.throttle, None),
            debounce=debounce,
            delay=_or(using.delay, None),
            run_at=_or(using.run_at, None),
            start_by=_or(using.start_by, None),
            max_attempts=_or(using.max_attempts, options.max_attempts),
            backoff=_or(using.backoff, options.backoff),
        )
        self._is_uniform = dedupe_key is not None or not (dedupe or self._template.throttle is not None)
        return self._template

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parameter = self._handler.arguments.context
        if parameter is not None and parameter not in kwargs and not any(isinstance(arg, JobContext) for arg in args):
            signature = inspect.signature(self.function)
            bound = signature.replace(
                parameters=[p for p in signature.parameters.values() if p.name != parameter]
            ).bind(*args, **kwargs)
            # By name: the context may stand anywhere. Arguments of **kwargs are bound as one dictionary.
            arguments = dict(bound.arguments)
            for each in signature.parameters.values():
                if each.kind is each.VAR_KEYWORD:
                    arguments |= arguments.pop(each.name, {})
            return self.function(**{parameter: detached_context(self.name)}, **arguments)
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


def handler_of(task: Task[..., Any]) -> Handler:
    """Return what a worker needs to call the task's function."""
    return task._handler  # noqa: SLF001 - the worker's side of a task is not for users


def check_queue_template(queue: str, *, foreign: bool = False) -> str:
    """Refuse a queue that is neither a name nor a name with ``{org_id}`` in it."""
    if isinstance(queue, str) and ("{" in queue or "}" in queue):
        bare = queue.replace(ORG, "x")
        if "{" in bare or "}" in bare:
            raise InvalidValue("queue", queue, "may have {org_id} in it, and nothing else in braces")
        validation.check_queue_name(bare, foreign=foreign)
    else:
        validation.check_queue_name(queue, foreign=foreign)
    return queue


def fill_queue(queue: str, org_id: str | None, *, foreign: bool = False) -> str:
    """Put the organisation into a queue's name."""
    if not isinstance(queue, str) or ORG not in queue:
        return queue
    if org_id is None:
        raise InvalidValue("org_id", None, f"is needed to name the queue {queue}: use using(org_id=…)")
    try:
        # One part of the path and no more: an organisation must not name its way into another one's queues.
        validation.check_queue_name(org_id.replace("/", "?"))
        return validation.check_queue_name(queue.replace(ORG, org_id), foreign=foreign)
    except InvalidValue as error:
        raise InvalidValue("org_id", org_id, f"cannot be part of the queue {queue}, which {error.rule}") from None


def queue_pattern(queue: str) -> str:
    """Say where the jobs of all organisations are: ``mail/*`` for ``mail/{org_id}``."""
    before, found, _ = queue.partition(ORG)
    if not found:
        return queue
    parent, slash, _ = before.rpartition("/")
    return f"{parent}/*" if slash else "*"


V = TypeVar("V")
D = TypeVar("D")


def _duration(field: str, given: timedelta | float | UnsetType | None) -> timedelta | UnsetType | None:
    return given if given is UNSET or given is None else as_duration(field, given)


def _or(value: V | UnsetType, default: D) -> V | D:
    return default if value is UNSET else value
