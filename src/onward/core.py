"""What an App is made of: the engine, the configuration, the handlers, and what is waited for.

:class:`~onward.app.App` is what users see. The parts of Onward that need more (the command line, the testing helpers,
the integrations) take it from here, by :func:`core_of`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from onward import bulk_operation
from onward.alert import AlertRule
from onward.arguments import nearest, to_json
from onward.clock import Clock
from onward.config import Config, url_from
from onward.context import Middleware
from onward.declarations import ScheduleDeclaration
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.checked import CheckedEngine, EnqueueMiddleware
from onward.engine.contract import Engine, Producer
from onward.engine.declared_limits import DeclaredLimits, Limits
from onward.engine.event_reader import Events
from onward.engine.values import Claim
from onward.engines.urls import open_engine
from onward.errors import InvalidValue, TaskNotFound
from onward.handle import JobHandle
from onward.handler import Handler
from onward.job import Enqueued, Job, NewJob, UniformJobs
from onward.lifecycle import Outcome, Result, decide
from onward.loop_thread import LoopThread
from onward.own_loop import run_in_own_loop
from onward.results import Results
from onward.schedule import Schedule
from onward.store_url import url_of
from onward.task import Task, check_queue_template, handler_of, queue_pattern

if TYPE_CHECKING:
    from onward.worker.alerts import Alerts
    from onward.worker.one_shot import Ticker

R = TypeVar("R")

_alive: ContextVar[tuple[Core, asyncio.AbstractEventLoop, Any] | None] = ContextVar("onward_lifespan", default=None)
"""The App whose lifespan this code runs in, the event loop of its resources, and its value."""


class Plugin(Protocol):
    """What an application adds to the server and the command line: an ``onward.service.plugins.Plugin``."""

    name: str


class Binding:
    """A store that an App uses: its engine, and what is open or waited for there."""

    def __init__(
        self,
        engine: CheckedEngine,
        *,
        url: str,
        clock: Clock | None,
        decode: Callable[[Job], Any],
        loop: LoopThread,
    ) -> None:
        self.engine = engine
        self.url = url
        """The URL; empty where the engine was made by hand."""
        self.clock = clock
        self.producer: Producer = engine
        """Where new jobs are stored: the engine, or what a test has put before it."""
        self.results = Results(engine, self.open, decode=decode, loop=loop)
        self.is_open = False

    async def open(self) -> None:
        """Open the store. Idempotent."""
        if not self.is_open:
            await self.engine.open()  # safe when many do so at once
            self.is_open = True

    async def close(self) -> None:
        """Close the store. Idempotent."""
        self.is_open = False
        self.results.close()
        await self.engine.close()


class Core:
    """The inside of an App."""

    def __init__(
        self,
        config: Config,
        *,
        middleware: list[Middleware],
        enqueue_middleware: list[EnqueueMiddleware],
        clock: Clock | None,
        events: Events | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    ) -> None:
        self.config = config
        self.middleware = middleware
        self.tasks: dict[str, Task[..., Any]] = {}
        self.handlers: dict[str, Handler] = {}
        """By type: those of the tasks, and Onward's own (A5)."""
        self.catch_all: dict[str, Handler] = {}
        """The handlers of jobs whose names no task has, by the pattern of their queue."""
        self.schedules: dict[str, ScheduleDeclaration] = {}
        """The schedules that the code declares, by name."""
        self.alerts: dict[str, AlertRule] = {}
        """The alert rules that the code declares, by name."""
        self.alert_job_of: Callable[[AlertRule, dict[str, Any], str], NewJob] | None = None
        """Makes their deliveries; None: there is no webhook."""
        self.limits = DeclaredLimits()
        self.plugins: list[Plugin] = []
        self.loop = LoopThread()
        """Where the sync API waits."""
        self.import_path: str | None = None
        """Where another process finds the App, if it is not an attribute of a module: ``shop:create_app()``."""
        self._enqueue_middleware = enqueue_middleware
        self._clock = clock
        self._events: Events | None = events
        self._lifespan = lifespan
        self._required: dict[Feature, None] = {}
        """What the code needs of a store."""
        self._bound: Binding | None = None
        self._binding = threading.RLock()
        self._opening = threading.Lock()

    # The store

    def bind(self, url: str | Path | None = None, *, engine: Engine | None = None) -> Binding:
        """Use the store that a URL names, or an engine made by hand. Connects to nothing.

        Raises:
            InvalidValue: the URL names nothing that could be opened, or a task's queue has a name that it cannot have.
            Unsupported: the store lacks what the code needs.
        """
        with self._binding:
            binding = self.make_binding(url, engine=engine, clock=self._clock)
            self.use(binding)
            return binding

    def make_binding(
        self, url: str | Path | None = None, *, engine: Engine | None = None, clock: Clock | None = None
    ) -> Binding:
        """Make the engine of a URL, and see that it offers what the code needs."""
        address = "" if url is None else url_of(url)
        if engine is None:
            engine = open_engine(address, clock=clock, events=self._events)
        checked = CheckedEngine(
            engine,
            max_payload=self.config.max_payload,
            enqueue_middleware=self._enqueue_middleware,
            limits=self.limits,
        )
        for feature in self._required:
            checked.capabilities.require(feature)
        for declaration in self.schedules.values():
            declaration.check(checked.capabilities)
        for task in self.tasks.values():
            check_queue_template(task.options.queue, foreign=checked.capabilities.is_shared)
        return Binding(checked, url=address, clock=clock, decode=self.decode_result, loop=self.loop)

    def replace(self, binding: Binding | None) -> Binding | None:
        """Use another store, and return the one that was used before; None: it is not resolved."""
        with self._binding:
            previous = self._bound
            self.use(binding)
            return previous

    def use(self, binding: Binding | None) -> None:
        """Use a store from now on; None: resolve the URL again at the next use."""
        self._bound = binding
        self.config = msgspec.structs.replace(self.config, url="" if binding is None else binding.url)
        if binding is not None:
            self.handlers[bulk_operation.TYPE] = bulk_operation.handler_on(binding.engine)
            for task in self.tasks.values():
                self._adapt(task, binding)

    def _adapt(self, task: Task[..., Any], binding: Binding) -> None:
        if task.options.unknown_fields is None:
            handler_of(task).arguments.ignore_unknown(on=binding.engine.capabilities.is_shared)

    @property
    def bound(self) -> Binding:
        """The store in use. The first use resolves the URL: ``ONWARD_URL``, or ``[tool.onward]`` in pyproject.toml."""
        bound = self._bound
        if bound is None:
            with self._binding:
                bound = self._bound or self.bind(url_from())
        return bound

    @property
    def is_bound(self) -> bool:
        """Whether the URL of the store has been resolved."""
        return self._bound is not None

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._bound is not None and self._bound.is_open

    @property
    def url(self) -> str:
        """The URL of the store in use."""
        return self.bound.url

    @property
    def engine(self) -> CheckedEngine:
        """The engine in use."""
        return self.bound.engine

    @engine.setter
    def engine(self, engine: CheckedEngine) -> None:
        self.bound.engine = engine

    @property
    def producer(self) -> Producer:
        """Where new jobs are stored."""
        return self.bound.producer

    @producer.setter
    def producer(self, producer: Producer) -> None:
        self.bound.producer = producer

    @property
    def results(self) -> Results:
        """Where ends of jobs are waited for."""
        return self.bound.results

    @property
    def clock(self) -> Clock | None:
        """The source of time in use; None: the system's."""
        return self._clock if self._bound is None else self._bound.clock

    def require(self, feature: Feature) -> None:
        """Note that the code needs a feature, and refuse a store without it: now, or when it is known.

        Raises:
            Unsupported: the store lacks it.
        """
        if self._bound is not None:
            self._bound.engine.capabilities.require(feature)
        self._required[feature] = None

    @property
    def max_payload(self) -> int:
        """Bytes of JSON that a job, or its result, may be."""
        return self.config.max_payload

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self.engine.capabilities

    @property
    def allows_foreign_names(self) -> bool:
        """Whether queues may have names of a foreign store; True as long as the store is not known."""
        return self._bound is None or self._bound.engine.capabilities.is_shared

    # Opening and closing

    async def open(self) -> None:
        """Open the store. Idempotent."""
        await self.bound.open()

    async def close(self) -> None:
        """Close the store. Idempotent; the next use opens it again, unless it was a temporary one."""
        if self._bound is not None:
            await self._bound.close()
        if self.loop.is_running and not self.loop.is_current:
            await asyncio.to_thread(self.loop.close)

    def close_sync(self) -> None:
        """Close the store from code without an event loop."""
        self.loop.run(self.close)
        self.loop.close()

    async def opened(self) -> CheckedEngine:
        """Return the engine, open."""
        bound = self.bound
        if not bound.is_open:
            await bound.open()
        return bound.engine

    def open_sync(self) -> None:
        """Open the store from code without an event loop."""
        with self._opening:
            if not self.bound.is_open:
                # On a thread of its own, because this one may have an event loop already.
                run_in_own_loop(self.open)

    # Tasks

    def add(self, task: Task[..., Any]) -> None:
        """Add a task.

        Raises:
            InvalidValue: another task is the catch-all of its queue, or limits that queue otherwise.
            Unsupported: the store lacks what the task needs.
        """
        options = task.options
        if options.rate is not None:
            self.require(Feature.RATE)
        if options.concurrency is not None:
            self.require(Feature.CONCURRENCY)
        self.limits.declare(options.queue, Limits(options.rate, options.concurrency))
        self.tasks[task.name] = task
        self.handlers[task.name] = handler_of(task)
        if self._bound is not None:
            self._adapt(task, self._bound)
        if task.options.catch_all:
            pattern = queue_pattern(task.options.queue)
            if pattern in self.catch_all:
                raise InvalidValue(
                    "catch_all", task.name, f"{self.catch_all[pattern].name} is that of {pattern} already"
                )
            self.catch_all[pattern] = handler_of(task)

    def find_task(self, name: str) -> Task[..., Any]:
        """Find a task by its name.

        Raises:
            TaskNotFound: there is none; the message has the nearest.
        """
        task = self.tasks.get(name)
        if task is None:
            raise TaskNotFound(f"there is no task {name!r}{nearest(name, self.tasks)}")
        return task

    def add_schedule(self, declaration: ScheduleDeclaration) -> None:
        """Add a schedule that the code declares.

        Raises:
            InvalidValue: another one has its name.
            Unsupported: the store cannot keep it.
        """
        if declaration.name in self.schedules:
            raise InvalidValue("schedule", declaration.name, "is declared twice: give one of them another name=")
        if self._bound is not None:
            declaration.check(self._bound.engine.capabilities)
        self.schedules[declaration.name] = declaration

    def declared(self) -> list[Schedule]:
        """Make the schedules that the code declares."""
        return [declaration.schedule_on(self.capabilities) for declaration in self.schedules.values()]

    # Enqueueing

    def send(self, jobs: Sequence[NewJob], *, connection: object | None) -> Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue jobs."""
        bound = self._bound
        if bound is None or not bound.is_open:
            return self._open_send(jobs, connection)
        return bound.producer.enqueue(jobs, connection=connection)

    async def _open_send(self, jobs: Sequence[NewJob], connection: object | None) -> list[Enqueued]:
        await self.open()
        return await self.producer.enqueue(jobs, connection=connection)

    def send_sync(self, jobs: Sequence[NewJob], *, connection: object | None) -> list[Enqueued]:
        """Enqueue jobs from code without an event loop."""
        bound = self.bound
        if not bound.is_open:
            self.open_sync()
        return bound.producer.enqueue_sync(jobs, connection=connection)

    def encode(self, name: str, payload: Any) -> str:
        """Write the payload of a job that is enqueued by name; one of a task of ours must fit its function.

        Raises:
            InvalidPayload: it does not fit, or is no JSON value.
        """
        handler = self.handlers.get(name)
        encoded = to_json({} if payload is None and not _takes_whole(handler) else payload, max_size=self.max_payload)
        if handler is not None:
            handler.arguments.decode(encoded)
        return encoded

    def handles(self, jobs: Sequence[NewJob], enqueued: list[Enqueued]) -> list[JobHandle[Any]]:
        """Make a handle for each job, which decodes its result as its task returns it."""
        types = repeat(jobs.template.type, len(jobs)) if isinstance(jobs, UniformJobs) else [job.type for job in jobs]
        made = []
        for type_, one in zip(types, enqueued, strict=True):
            handler = self.handlers.get(type_)
            decode = _unchanged if handler is None else handler.arguments.read_result
            made.append(JobHandle(one, self.results, decode))
        return made

    def decode_result(self, job: Job) -> Any:
        """Read the result of a job as its task returns it."""
        handler = self.handlers.get(job.type)
        return job.result if handler is None else handler.arguments.read_result(job.result)

    # Working

    @property
    def place(self) -> tuple[str, str] | None:
        """Where another process finds the App, and the URL of its store, if a factory made the App."""
        return None if self.import_path is None else (self.import_path, self.url)

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[Any]:
        """Enter the App's lifespan and give its value, unless this code already runs within it.

        A handler that enqueues inline, or ticks, uses the resources of the run around it.
        """
        loop = asyncio.get_running_loop()
        current = _alive.get()
        if self._lifespan is None:
            yield None
        elif current is not None and current[0] is self and current[1] is loop:
            yield current[2]
        else:
            async with self._lifespan() as state:
                entered = _alive.set((self, loop, state))
                try:
                    yield state
                finally:
                    with suppress(ValueError):  # left in another context, such as that of an asynchronous fixture
                        _alive.reset(entered)

    def ticker(self, *, state: Any = None, decide: Callable[[Claim, Result], Outcome] = decide) -> Ticker:
        """Make a ticker.

        ``state`` is the value of the lifespan that it runs in; ``decide`` says what becomes of a job, given how its run
        ended.
        """
        from onward.worker.one_shot import Ticker  # noqa: PLC0415 - a program that only enqueues need not load the worker

        return Ticker(
            handlers=self.handlers,
            catch_all=self.catch_all,
            engine=self.engine,
            middleware=self.middleware,
            lease=self.config.lease,
            max_crashes=self.config.max_crashes,
            max_result=self.max_payload,
            unknown_tasks=self.config.unknown_tasks,
            unknown_task_grace=self.config.unknown_task_grace,
            clock=self.clock,
            decide=decide,
            declared=self.declared,
            limits=self.limits,
            state=state,
            app_place=self.place,
            alerts=self.alert_evaluation(),
        )

    def alert_evaluation(self) -> Alerts | None:
        """Make what evaluates the alert rules; None: there are none."""
        if not self.alerts or self.alert_job_of is None:
            return None
        from onward.worker.alerts import Alerts  # noqa: PLC0415 - as for the ticker

        return Alerts(self.engine, self.alerts.values(), self.alert_job_of)


class Override:
    """Another store for an App within a block: see :meth:`onward.App.override`. Not for two blocks at once."""

    def __init__(self, core: Core, make: Callable[[], Binding]) -> None:
        self._core = core
        self._make = make
        self._binding: Binding | None = None
        self._previous: Binding | None = None

    def __enter__(self) -> None:
        """Use the other store."""
        binding = self._make()
        self._previous = self._core.replace(binding)
        self._binding = binding

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Use the App's own store again, and close the other one."""
        # On a thread of its own, because this one may have an event loop already.
        run_in_own_loop(self._left().close)

    async def __aenter__(self) -> None:
        """Use the other store, and open it."""
        self.__enter__()
        try:
            await self._core.open()
        except BaseException:
            await self._left().close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Use the App's own store again, and close the other one."""
        await self._left().close()

    def _left(self) -> Binding:
        binding, self._binding = self._binding, None
        if binding is None:
            raise RuntimeError("this override has not been entered")
        self._core.replace(self._previous)
        return binding


class _HasCore(Protocol):
    _core: Core


def core_of(app: _HasCore) -> Core:
    """Return the inside of an App."""
    return app._core  # noqa: SLF001 - the one way in, for Onward's own parts


def _takes_whole(handler: Handler | None) -> bool:
    return handler is not None and handler.options.whole_payload


def _unchanged(value: Any) -> Any:
    return value
