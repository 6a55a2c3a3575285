"""What an App is made of: the engine, the configuration, the handlers, and what is waited for.

:class:`~onward.app.App` is what users see. The parts of Onward that need more (the command line, the testing helpers,
the integrations) take it from here, by :func:`core_of`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from onward import bulk_operation
from onward.alert import AlertRule
from onward.arguments import nearest
from onward.clock import Clock
from onward.config import Config
from onward.context import Middleware
from onward.engine.capabilities import Capabilities
from onward.engine.checked import CheckedEngine
from onward.engine.contract import Producer
from onward.engine.values import Claim
from onward.errors import InvalidValue, TaskNotFound
from onward.handle import JobHandle
from onward.handler import Handler
from onward.job import Enqueued, NewJob, UniformJobs
from onward.lifecycle import Outcome, Result, decide
from onward.results import Results
from onward.schedule import Schedule
from onward.task import Task, handler_of, queue_pattern

if TYPE_CHECKING:
    from onward.worker.alerts import Alerts
    from onward.worker.one_shot import Ticker

R = TypeVar("R")


class Plugin(Protocol):
    """What an application adds to the server and the command line: an ``onward.service.plugins.Plugin``."""

    name: str


class Core:
    """The inside of an App."""

    def __init__(
        self, engine: CheckedEngine, config: Config, *, middleware: list[Middleware], clock: Clock | None
    ) -> None:
        self.engine = engine
        self.config = config
        self.clock = clock
        self.middleware = middleware
        self.producer: Producer = engine
        """Where new jobs are stored: the engine, or what a test has put before it."""
        self.tasks: dict[str, Task[..., Any]] = {}
        self.handlers: dict[str, Handler] = {bulk_operation.TYPE: bulk_operation.handler_on(engine)}
        """By type: those of the tasks, and Onward's own (A5)."""
        self.catch_all: dict[str, Handler] = {}
        """The handlers of jobs whose names no task has, by the pattern of their queue."""
        self.schedules: dict[str, Callable[[], Schedule]] = {}
        """The schedules that the code declares, by name; made when they are needed."""
        self.alerts: dict[str, AlertRule] = {}
        """The alert rules that the code declares, by name."""
        self.alert_job_of: Callable[[AlertRule, dict[str, Any], str], NewJob] | None = None
        """Makes their deliveries; None: there is no webhook."""
        self.plugins: list[Plugin] = []
        self.results = Results(engine, self.open)
        self._is_open = False
        self._opening = threading.Lock()

    @property
    def max_payload(self) -> int:
        """Bytes of JSON that a job, or its result, may be."""
        return self.config.max_payload

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self.engine.capabilities

    # Opening and closing

    async def open(self) -> None:
        """Open the store. Idempotent."""
        if not self._is_open:
            await self.engine.open()  # safe when many do so at once
            self._is_open = True

    async def close(self) -> None:
        """Close the store. Idempotent; the next use opens it again, unless it was a temporary one."""
        self._is_open = False
        self.results.close()
        await self.engine.close()

    async def opened(self) -> CheckedEngine:
        """Return the engine, open."""
        if not self._is_open:
            await self.open()
        return self.engine

    def open_sync(self) -> None:
        """Open the store from code without an event loop."""
        with self._opening:
            if not self._is_open:
                # On a thread of its own, because this one may have an event loop already.
                run_elsewhere(self.open)

    # Tasks

    def add(self, task: Task[..., Any]) -> None:
        """Add a task."""
        self.tasks[task.name] = task
        self.handlers[task.name] = handler_of(task)
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

    def declared(self) -> list[Schedule]:
        """Make the schedules that the code declares."""
        return [make() for make in self.schedules.values()]

    # Enqueueing

    def send(self, jobs: Sequence[NewJob], *, connection: object | None) -> Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue jobs."""
        return (
            self.producer.enqueue(jobs, connection=connection) if self._is_open else self._open_send(jobs, connection)
        )

    async def _open_send(self, jobs: Sequence[NewJob], connection: object | None) -> list[Enqueued]:
        await self.open()
        return await self.producer.enqueue(jobs, connection=connection)

    def send_sync(self, jobs: Sequence[NewJob], *, connection: object | None) -> list[Enqueued]:
        """Enqueue jobs from code without an event loop."""
        if not self._is_open:
            self.open_sync()
        return self.producer.enqueue_sync(jobs, connection=connection)

    def handles(self, jobs: Sequence[NewJob], enqueued: list[Enqueued]) -> list[JobHandle[Any]]:
        """Make a handle for each job, which decodes its result as its task returns it."""
        types = repeat(jobs.template.type, len(jobs)) if isinstance(jobs, UniformJobs) else [job.type for job in jobs]
        made = []
        for type_, one in zip(types, enqueued, strict=True):
            handler = self.handlers.get(type_)
            decode = _unchanged if handler is None else handler.arguments.read_result
            made.append(JobHandle(one, self.results, decode))
        return made

    # Working

    def ticker(self, *, decide: Callable[[Claim, Result], Outcome] = decide) -> Ticker:
        """Make a ticker; ``decide`` says what becomes of a job, given how its run ended."""
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
            alerts=self.alert_evaluation(),
        )

    def alert_evaluation(self) -> Alerts | None:
        """Make what evaluates the alert rules; None: there are none."""
        if not self.alerts or self.alert_job_of is None:
            return None
        from onward.worker.alerts import Alerts  # noqa: PLC0415 - as for the ticker

        return Alerts(self.engine, self.alerts.values(), self.alert_job_of)


class _HasCore(Protocol):
    _core: Core


def core_of(app: _HasCore) -> Core:
    """Return the inside of an App."""
    return app._core  # noqa: SLF001 - the one way in, for Onward's own parts


def run_elsewhere(work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run async work to its end from plain code, on a thread and an event loop of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="onward-sync") as thread:
        return thread.submit(copy_context().run, asyncio.run, work()).result()


def _unchanged(value: Any) -> Any:
    return value
