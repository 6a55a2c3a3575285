"""The worker: takes jobs, runs them, and says how they ended.

It assumes nothing of the store but the contract, and holds no job that the store does not know it holds. Whatever is
killed, a job accepted is run at least once (X3). Several workers may share a process; production runs one worker a
process, so that one killed process is one lost worker.

Stopping has four steps: ask for nothing more and give back what has not begun; let what runs come to its end, for as
long as four fifths of the grace last; cancel the rest, at no cost to the jobs, and leave what does not stop by the end
of the grace to itself; store what they all said. A worker that is cancelled
takes the same steps, with no grace; cancelled again, it takes a second for what is left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from onward import validation
from onward.arguments import nearest
from onward.context import Middleware
from onward.engine.capabilities import Capabilities
from onward.engine.checked import CheckedEngine
from onward.engine.declared_limits import DeclaredLimits
from onward.errors import InvalidValue, Unsupported
from onward.handler import Handler
from onward.schedule import Schedule
from onward.task import queue_pattern
from onward.worker.event_relay import Relay
from onward.worker.maintenance import MaintenanceTask
from onward.worker.options import WorkerSettings
from onward.worker.running_worker import RunningWorker
from onward.worker.scheduler import Scheduler


class Worker:
    """Runs jobs until told to stop: ``await worker.run()``, or ``async with worker:`` beside something else.

    ``maintenance_tasks`` are what a leader does besides promoting, rescuing, pruning and firing; ``declared`` gives the
    schedules that the code declares; ``relays`` makes what relays events to webhooks, given the worker's id;
    ``catch_all`` has the handlers of jobs whose names no task has, by the pattern of their queue; ``lifespan`` is
    entered around each run; ``limits`` are what the tasks declare for their queues; ``app_place`` is the
    factory that made the App, with the URL of its store, where the App is not an attribute of a module;
    ``overrides`` are settings by name, those of :class:`~onward.worker.options.WorkerSettings`.
    """

    def __init__(
        self,
        engine: CheckedEngine,
        handlers: Mapping[str, Handler],
        options: WorkerSettings | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        maintenance_tasks: Sequence[MaintenanceTask] = (),
        declared: Callable[[], Sequence[Schedule]] = tuple,
        relays: Callable[[str], Sequence[Relay]] = lambda _: (),
        catch_all: Mapping[str, Handler] | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] = contextlib.nullcontext,
        limits: DeclaredLimits | None = None,
        app_place: tuple[str, str] | None = None,
        **overrides: Any,
    ) -> None:
        self.options = replace(options or WorkerSettings(), **overrides)
        for patterns, _ in self.options.pools:
            for pattern in patterns:
                validation.check_pattern(pattern, foreign=engine.capabilities.is_shared)
        self._engine = engine
        self._handlers = (
            _select_handlers(handlers, self.options, engine.capabilities) if self.options.tasks else handlers
        )
        self._middleware = tuple(middleware)
        self._maintenance_tasks = tuple(maintenance_tasks)
        self._declared = declared
        self._relays = relays
        self._catch_all = {} if self.options.tasks else catch_all or {}
        self._lifespan = lifespan
        self._limits = DeclaredLimits() if limits is None else limits
        self._app_place = app_place
        self._is_stop_requested = False
        self._stopping: asyncio.Event | None = None
        self._started: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: RunningWorker | None = None
        self._is_running = False
        self._background_task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work until :meth:`stop` is called. May be called again then; to the store each run is another worker.

        To cancel it is a stop, too, that waits for no handler.

        Raises:
            StoreUnavailable: the store stayed away for longer than ``give_up_after``.
        """
        if self._is_running:
            raise RuntimeError("this worker is running already")
        self._is_running = True
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        started, self._started = self._started or asyncio.Event(), None
        if self._is_stop_requested:
            self._stopping.set()
        self._running = RunningWorker(
            self._engine,
            self._handlers,
            self.options,
            middleware=self._middleware,
            maintenance_tasks=self._maintenance_tasks,
            stopping=self._stopping,
            scheduler=Scheduler(self._engine, self._declared),
            relays=self._relays,
            catch_all=self._catch_all,
            limits=self._limits,
            app_place=self._app_place,
        )
        try:
            if await self._running.open(started):
                async with self._lifespan() as state:
                    await self._run_until_stopped(self._running, started, state)
        except BaseExceptionGroup as group:
            # One part failed and took the others down: what people want to see is why.
            raise group.exceptions[0] from None
        finally:
            self._is_running = self._is_stop_requested = False
            self._loop = self._stopping = None

    async def _run_until_stopped(self, running: RunningWorker, started: asyncio.Event, state: Any) -> None:
        """Wait until it has stopped, which is soon if this is cancelled."""
        task = asyncio.create_task(running.run(started, state), name="onward-worker")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                running.force_stop()
        if cancelled is not None:
            raise cancelled
        task.result()

    def stop(self) -> None:
        """Stop in good order, within the grace. From any thread, and from signal handlers."""
        self._is_stop_requested = True
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def __aenter__(self) -> Self:
        """Work beside what the block does."""
        self._started = asyncio.Event()
        started = asyncio.create_task(self._started.wait())
        self._background_task = asyncio.create_task(self.run(), name="onward-worker")
        try:
            await asyncio.wait([self._background_task, started], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        finally:
            started.cancel()
        if self._background_task.done():
            self._background_task.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in good order, and raise what the worker died of, if it did. If the block is cancelled, so is it."""
        background_task, self._background_task = self._background_task, None
        if background_task is None:
            return
        self.stop()
        if isinstance(error, asyncio.CancelledError):
            background_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # the block's own goes on
                await background_task
        else:
            await background_task

    @property
    def worker_id(self) -> str | None:
        """The name of the present or the last run; None: there was none."""
        return None if self._running is None else self._running.worker_id

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads now."""
        return self._is_running and self._running is not None and self._running.leader.term is not None

    @property
    def tally(self) -> Mapping[str, int]:
        """What became of the jobs of the present or last run, by move; the fence's are ``stale_rejections``."""
        return {} if self._running is None else dict(self._running.inflight.tally)

    @property
    def unstoppable(self) -> int:
        """How many handlers of the last run would not stop, and still run."""
        return 0 if self._running is None else self._running.unstoppable


def _select_handlers(
    handlers: Mapping[str, Handler], options: WorkerSettings, capabilities: Capabilities
) -> dict[str, Handler]:
    """Give the tasks that a worker is to run, and refuse what it would take from others."""
    if capabilities.is_shared:
        raise Unsupported(
            capabilities.engine,
            "claims by name (only)",
            "whoever asks is given the next job in line, whatever its name, and others' workers are given theirs: "
            "give these names a queue of their own, and serve that (queues)",
        )
    for name in options.tasks:
        if name not in handlers:
            raise InvalidValue("tasks", name, f"is no task of this app{nearest(name, handlers)}")
    for name, handler in handlers.items():
        task_pattern = queue_pattern(handler.options.queue)
        for pattern in options.patterns:
            if name not in options.tasks and (
                validation.matches(pattern, task_pattern) or validation.matches(task_pattern, pattern)
            ):
                message = (
                    f"must name {name!r} too, whose jobs are in {task_pattern!r}: "
                    "this worker takes all that comes there"
                )
                raise InvalidValue("tasks", list(options.tasks), message)
    return {name: handlers[name] for name in options.tasks}
