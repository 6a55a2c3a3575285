"""The App: the one place where tasks, a store and the machinery around them meet.

Making an App connects to nothing. The store is opened by the first thing that needs it, by ``await app.open()``, or by
``async with app:``, which closes it as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime, timedelta
from itertools import repeat
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from onward.arguments import nearest
from onward.backoff import Backoff
from onward.batches.resources import Batch, Batches, Flow
from onward.clock import Clock
from onward.config import WORKER_TIMEOUT, Config, url_from
from onward.context import JobContext, Middleware
from onward.control_flow import as_duration
from onward.cron import rhythm_of
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.checked import CheckedEngine, Observer
from onward.engine.contract import Engine, Producer
from onward.engine.event_reader import Events
from onward.engine.values import Claim
from onward.engines.urls import open_engine
from onward.errors import InvalidJob
from onward.events import AnyEvent, Event, EventStream, JobCompleted, JobFailed
from onward.handle import JobHandle
from onward.job import Enqueued, NewJob, UniformJobs
from onward.lifecycle import MAX_CRASHES, Outcome, Result, decide
from onward.metering import Span, Usage, UsageBy, UsageQuery
from onward.prometheus import exposition
from onward.resources import Archive, DeadLetters, Jobs, Queues, Schedules, Workers
from onward.results import Results
from onward.schedule import Missed, Schedule
from onward.task import AsyncTask, Executor, PlainTask, RetryRules, Task, TaskOptions, is_async, queue_pattern
from onward.validation import MAX_PAYLOAD, one_of
from onward.webhook import Post, Webhook, keys_of, networks_of

if TYPE_CHECKING:
    from ssl import SSLContext

    from onward.worker.relay import Relay
    from onward.worker.tick import Ticker, TickReport
    from onward.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Task[..., Any])


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


class App:
    """Tasks on a store: ``App("sqlite:///jobs.db")``; without a URL, the one in ``ONWARD_URL``."""

    def __init__(
        self,
        url: str | None = None,
        *,
        engine: Engine | None = None,
        middleware: Iterable[Middleware] = (),
        observer: Observer | None = None,
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD,
        worker_timeout: timedelta | float = WORKER_TIMEOUT,
        max_crashes: int = MAX_CRASHES,
        events: Events | None = None,
    ) -> None:
        """Set up an App; nothing is connected to yet.

        Args:
            url: which store: see :mod:`onward.engines.urls`.
            engine: an engine made by hand, instead of a URL.
            middleware: what stands around every run, the first one outermost.
            observer: told of every verb that the store is asked for.
            clock: where the time comes from, for tests: see :mod:`onward.testing`.
            max_payload: bytes of JSON that a job, or its result, may be.
            worker_timeout: how long a worker may be silent before it counts as dead.
            max_crashes: how many times a job may take its worker down before it is buried.
            events: ``all`` has the store record events whether or not somebody listens, from now on and for everybody;
                ``listened`` takes that back. BullMQ always does.
        """
        if engine is None:
            url = url or url_from()
            engine = open_engine(url, clock=clock, events=events)
        elif url is not None:
            raise InvalidJob("engine", engine, "give a url or an engine, not both")
        elif events is not None:
            raise InvalidJob("events", events, "is for the engine to be told, where one is given")
        self.config = Config(
            url=url or "",
            max_payload=max_payload,
            worker_timeout=as_duration("worker_timeout", worker_timeout),
            max_crashes=max_crashes,
        )
        self.max_payload = max_payload
        self.clock = clock
        self.engine = CheckedEngine(engine, observer=observer, max_payload=max_payload)
        self.middleware: list[Middleware] = list(middleware)
        self.enqueuer: Producer = self.engine
        """Who stores new jobs: the engine, or what a test has put before it."""
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        """The tasks, by name."""
        self._declared: dict[str, Callable[[], Schedule]] = {}
        self._post: Post | None = None
        self._is_open = False
        self._opening = threading.Lock()
        self.results = Results(self.engine, self.open)
        self.jobs = Jobs(self._opened, timeout=self.config.worker_timeout)
        self.dead = DeadLetters(self._opened)
        self.archive = Archive(self._opened)
        self.queues = Queues(self._opened)
        self.workers = Workers(self._opened)
        self.schedules = Schedules(self._opened, self.enqueue_many)
        self.batches = Batches(self._opened, self._handles)

    def __repr__(self) -> str:
        """Name the store."""
        return f"<App on {self.engine.capabilities.engine}, {len(self._tasks)} tasks>"

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self.engine.capabilities

    # Opening and closing

    async def open(self) -> None:
        """Open the store, and bring its schema up to date where it is ours. Twice is fine."""
        if not self._is_open:
            await self.engine.open()  # safe when many do so at once
            self._is_open = True

    async def close(self) -> None:
        """Let go of the store. Twice is fine; whoever needs it again opens it again, unless it was a temporary one."""
        self._is_open = False
        await self.engine.close()

    async def __aenter__(self) -> Self:
        """Open the store for the length of a block."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _opened(self) -> CheckedEngine:
        if not self._is_open:
            await self.open()
        return self.engine

    def _open_sync(self) -> None:
        with self._opening:
            if not self._is_open:
                # On a thread of its own, because this one may have an event loop already.
                run_elsewhere(self.open)

    # Tasks

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
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        retry: RetryRules | None = None,
        timeout: timedelta | float | None = None,
        dedupe: bool = False,
        executor: Executor = "auto",
        keep_result: bool = True,
    ) -> TaskDecorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        retry: RetryRules | None = None,
        timeout: timedelta | float | None = None,
        dedupe: bool = False,
        executor: Executor = "auto",
        keep_result: bool = True,
    ) -> Any:
        """Make a task of a function: ``@app.task``, or ``@app.task(queue="mail", max_attempts=5)``.

        Args:
            function: an ``async def``, which runs on the event loop, or a plain ``def``, which runs on a thread.
            name: what its jobs are called in the store; the function's own name unless given.
            queue: where its jobs wait; ``mail/{org_id}`` gives each organisation a queue of its own.
            priority: higher is more urgent.
            max_attempts: the most runs a job may have; the queue's default, else 5.
            backoff: how long to wait between them; the queue's default, else 1 s doubling up to 60 s.
            retry: for single classes of exceptions, another backoff, or None for no retry.
            timeout: how long one run may take. A plain function cannot be stopped: its run counts as failed, and the
                thread is left to end by itself.
            dedupe: while a job with the same arguments and organisation waits or runs, another enqueue adds nothing.
            executor: ``process`` runs a plain function in a process of its own, for work that needs a whole processor.
            keep_result: whether what it returns is stored.

        Raises:
            InvalidJob: the function or an option is not such as can be kept.
        """
        options = TaskOptions(
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            backoff=backoff,
            retry=dict(retry or {}),
            timeout=None if timeout is None else as_duration("timeout", timeout),
            dedupe=dedupe,
            executor=executor,
            keep_result=keep_result,
        )

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            return self._add(function, name, options)

        return make if function is None else make(function)

    def _add(self, function: Callable[..., Any], name: str | None, options: TaskOptions) -> Task[..., Any]:
        if not callable(function):
            raise InvalidJob("task", function, "must be a function: use @app.task, or @app.task(queue=…)")
        name = name or str(getattr(function, "__name__", type(function).__name__))
        if name in self._tasks:
            other = self._tasks[name].function
            where = f"{other.__module__}.{getattr(other, '__qualname__', name)}"
            raise InvalidJob("name", name, f"is taken by {where}: give one of them another, @app.task(name=…)")
        kind = AsyncTask if is_async(function) else PlainTask
        task: Task[..., Any] = kind(function, name=name, options=options, app=self)
        self._tasks[name] = task
        return task

    def every(
        self,
        rhythm: str | timedelta,
        /,
        *,
        timezone: str = "UTC",
        missed: Missed | str = Missed.ONCE,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[T], T]:
        """Have a task's job enqueued again and again: ``@app.every("0 6 * * mon-fri", timezone="Europe/Berlin")``.

        Stands above ``@app.task``. Workers make the schedule in the store when they start, and change it when the code
        has changed; one that is no longer in the code stays until it is deleted.

        Args:
            rhythm: a cron expression of five fields, or a timedelta.
            timezone: whose clocks the expression is about.
            missed: what becomes of turns that came while no worker ran: ``skip``, ``once`` (one job for all), ``all``.
            name: of the schedule; the task's own name unless given.
            arguments: of the function, by name.

        Raises:
            InvalidJob: the expression, the time zone or an option cannot be read.
        """
        turns = rhythm_of(rhythm, timezone=timezone)
        policy = one_of("missed", Missed, missed)

        def declare(task: T) -> T:
            if not isinstance(task, Task):
                raise InvalidJob("every", task, "must stand above @app.task, for it takes a task")
            called = name or task.name
            if called in self._declared:
                raise InvalidJob("every", called, "is declared twice: give one of them another name=")

            def schedule() -> Schedule:  # made when it is needed: annotations may name what is defined further down
                return Schedule(name=called, job=task.job(**(arguments or {})), rhythm=turns, missed=policy)

            self._declared[called] = schedule
            return task

        return declare

    def webhook(
        self,
        name: str,
        url: str,
        *,
        secret: str | Sequence[str],
        events: Iterable[type[Event]] = (JobCompleted, JobFailed),
        queues: Sequence[str] = ("*",),
        allow: Iterable[str] = (),
        timeout: timedelta | float = 10,
        max_attempts: int = 12,
        tls: SSLContext | None = None,
    ) -> Webhook:
        """Have events posted to an address: ``app.webhook("crm", "https://…", secret=…, events=[JobFailed])``.

        Workers of this app make a job of each event, whose handler posts it: it is tried again, with growing pauses,
        and ends as a dead letter when all attempts are used up. From the first worker on that declares it, none is left
        out.

        Args:
            name: by which the store knows how far events were read for it; keep it when the address changes.
            url: where to.
            secret: what is signed with, at least 16 bytes; several while receivers change from one to another.
            events: the kinds of events, from :mod:`onward.events`.
            queues: names and patterns.
            allow: networks that it may lead to although they are not public, such as ``10.1.0.0/16``.
            timeout: how long one attempt may take.
            max_attempts: the most attempts of one delivery.
            tls: how to be sure of who is there; by the system's certificates unless given.

        Raises:
            InvalidJob: something of this cannot be kept to.
            Unsupported: the store has no webhooks.
        """
        self.capabilities.require(Feature.WEBHOOKS)
        webhook = Webhook(
            name=name,
            url=url,
            queues=tuple(queues),
            event_types=frozenset(str(kind.__struct_config__.tag) for kind in events),
            keys=keys_of(secret),
            allowed=networks_of(allow),
            timeout=as_duration("timeout", timeout).total_seconds(),
            max_attempts=max_attempts,
            tls=tls,
        )
        if self._post is None:
            self._post = Post(self._add, room=self.max_payload // 2)
        return self._post.declare(webhook)

    def _relays(self, holder: str) -> list[Relay]:
        from onward.worker.relay import Relay  # noqa: PLC0415 - as for the worker

        post = self._post
        return [] if post is None else [Relay(self.engine, each, post.job_of, holder=holder) for each in post.webhooks]

    def declared(self) -> list[Schedule]:
        """Make the schedules that :meth:`every` has declared."""
        return [make() for make in self._declared.values()]

    def find_task(self, name: str) -> Task[..., Any]:
        """Find a task by its name.

        Raises:
            InvalidJob: there is none; the message has the nearest.
        """
        task = self._tasks.get(name)
        if task is None:
            raise InvalidJob("task", name, f"there is no such task{nearest(name, self._tasks)}")
        return task

    # Enqueueing

    async def enqueue_many(self, jobs: Iterable[NewJob], *, within: object | None = None) -> list[JobHandle[Any]]:
        """Store jobs of any tasks at once, all or none: ``[send_mail.job(to=…), resize.job(path=…), …]``."""
        if not self._is_open:
            await self.open()
        made = list(jobs)
        return self._handles(made, await self.enqueuer.enqueue(made, within=within))

    def enqueue_many_sync(self, jobs: Iterable[NewJob], *, within: object | None = None) -> list[JobHandle[Any]]:
        """Do the same from code without an event loop."""
        if not self._is_open:
            self._open_sync()
        made = list(jobs)
        return self._handles(made, self.enqueuer.enqueue_sync(made, within=within))

    def send(self, jobs: Sequence[NewJob], *, within: object | None) -> Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue jobs of one task: see :meth:`Task.enqueue`."""
        return self.enqueuer.enqueue(jobs, within=within) if self._is_open else self._open_and_send(jobs, within)

    async def _open_and_send(self, jobs: Sequence[NewJob], within: object | None) -> list[Enqueued]:
        await self.open()
        return await self.enqueuer.enqueue(jobs, within=within)

    def send_sync(self, jobs: Sequence[NewJob], *, within: object | None) -> list[Enqueued]:
        """Enqueue jobs of one task from code without an event loop: see :meth:`Task.enqueue_sync`."""
        if not self._is_open:
            self._open_sync()
        return self.enqueuer.enqueue_sync(jobs, within=within)

    # Waiting

    async def gather(self, handles: Iterable[JobHandle[R]], *, timeout: timedelta | float | None = None) -> list[R]:
        """Wait until all these jobs have ended, and give what they returned, in order.

        However many they are, the store is asked for all of them at once.

        Raises:
            JobFailed: one of them ended without a result.
            TimeoutError: they have not all ended in that time. The jobs go on.
        """
        seconds = None if timeout is None else as_duration("timeout", timeout).total_seconds()
        waiting = [asyncio.create_task(handle.result()) for handle in handles]
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    # Batches and flows

    def batch(
        self,
        name: str | None = None,
        *,
        queue: str | None = None,
        on_success: NewJob | None = None,
        on_failure: NewJob | None = None,
        on_finished: NewJob | None = None,
    ) -> Batch:
        """Name a set of jobs that are counted together: ``async with app.batch("import-42") as batch:``.

        It is made by the first :meth:`Batch.add`, or by ``async with``, which also seals it at the end. Give the name
        of one that is there to add to it.

        Args:
            name: its name in the store; a new one unless given.
            queue: one of its own, which all its jobs are put in: so it can be paused and limited by itself.
            on_success: a job to enqueue when all of its jobs have completed.
            on_failure: a job to enqueue when the first of them has failed for good.
            on_finished: a job to enqueue when all of them have ended.
        """
        return self.batches.make(
            name, queue=queue, on_success=on_success, on_failure=on_failure, on_finished=on_finished
        )

    def flow(
        self,
        name: str | None = None,
        *,
        queue: str | None = None,
        on_success: NewJob | None = None,
        on_failure: NewJob | None = None,
        on_finished: NewJob | None = None,
    ) -> Flow:
        """Plan jobs that wait for each other: a batch whose jobs have an order. See :meth:`batch` for the arguments."""
        return self.batch(
            name, queue=queue, on_success=on_success, on_failure=on_failure, on_finished=on_finished
        ).flow()

    # Watching

    def events(self, *queues: str, types: Iterable[type[Event]] = (), after: str | None = None) -> EventStream:
        """Tell what happens to jobs, as it happens: ``async for event in app.events("mail/*", types=[JobFailed])``.

        Args:
            queues: names and patterns; all queues unless given.
            types: the kinds of events, from :mod:`onward.events`; all unless given.
            after: the ``cursor`` of an event, to go on after it; ``events.OLDEST`` for all that is still kept; from now
                on unless given.
        """
        words = frozenset(str(kind.__struct_config__.tag) for kind in types) or None

        async def begin() -> AsyncGenerator[AnyEvent, None]:
            return await (await self._opened()).events(queues or ("*",), after=after, types=words)

        return EventStream(begin)

    async def usage(
        self,
        *,
        span: Span | str = Span.DAY,
        by: Iterable[UsageBy | str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        org_id: str | None = None,
        queue: str | None = None,
        type: str | None = None,
    ) -> list[Usage]:
        """Sum up what was run: ``await app.usage(span="day", by=["org_id", "type"], since=…)``.

        Args:
            span: of how long a time each sum is: ``minute`` (of the last two days), ``day`` or ``all``.
            by: what to tell apart: ``org_id``, ``queue``, ``type``, ``outcome``.
            since: from this moment on.
            until: before this moment.
            org_id: of this organisation only.
            queue: of this queue only.
            type: of this task only.

        Raises:
            InvalidJob: a word is not one of those.
        """
        query = UsageQuery(
            span=one_of("span", Span, span),
            by=frozenset(one_of("by", UsageBy, word) for word in by),
            since=since,
            until=until,
            org_id=org_id,
            queue=queue,
            type=type,
        )
        return await (await self._opened()).usage(query)

    async def metrics(self) -> str:
        """Tell how things stand, as Prometheus reads it: queues, workers, runs and how long they took."""
        engine = await self._opened()
        usage: list[Usage] = []
        if self.capabilities.has(Feature.USAGE):
            every = frozenset({UsageBy.QUEUE, UsageBy.TYPE, UsageBy.OUTCOME})
            usage = await engine.usage(UsageQuery(span=Span.ALL, by=every))
        return exposition(await engine.queues(), await engine.workers(), usage)

    # Working

    def worker(self, **options: Any) -> Worker:
        """Make a worker: ``async with app.worker(concurrency=20):`` beside something else, or ``await app.work()``.

        ``options`` are those of :class:`onward.worker.options.WorkerOptions`. Where nothing is said of queues, it takes
        from all; in a store that it shares with others' workers, and where ``only`` names some, from its tasks' own.
        """
        from onward.worker.worker import Worker  # noqa: PLC0415 - who only enqueues need not load all that

        settings: dict[str, Any] = {
            "queues": self._own_queues(options.get("only", ())),
            "max_crashes": self.config.max_crashes,
            "lease": self.config.worker_timeout,
        } | options
        return Worker(
            self.engine, self.tasks, middleware=self.middleware, declared=self.declared, relays=self._relays, **settings
        )

    async def work(self, **options: Any) -> None:
        """Run jobs until cancelled: then what has ended is stored, and all the rest given back."""
        await self.worker(**options).run()

    async def tick(self, limit: int = 100) -> TickReport:
        """Do by one call what a worker does all the time, without one (H7).

        Fires schedules, promotes what is due, takes back what dead workers held, then claims at most ``limit`` jobs,
        runs them in this process and records how they ended: for a serverless host or a plain cron.
        """
        await self.open()
        return await self.ticker().tick(limit, queues=self._own_queues())

    def _own_queues(self, only: Collection[str] = ()) -> tuple[str, ...]:
        # A job that we have no task for fails at once, and on a foreign store it may be for somebody else's worker.
        if not self.capabilities.is_shared and self._tasks.keys().isdisjoint(only):
            return ("*",)
        tasks = [task for name, task in self._tasks.items() if not only or name in only]
        return tuple(dict.fromkeys(queue_pattern(task.options.queue) for task in tasks))

    def ticker(self, *, decide: Callable[[Claim, Result], Outcome] = decide) -> Ticker:
        """Make what ticks; ``decide`` says what becomes of a job, given how its run ended."""
        from onward.worker.tick import Ticker  # noqa: PLC0415 - as above

        return Ticker(
            tasks=self.tasks,
            engine=self.engine,
            middleware=self.middleware,
            worker_timeout=self.config.worker_timeout,
            max_crashes=self.config.max_crashes,
            max_result=self.max_payload,
            clock=self.clock,
            decide=decide,
            declared=self.declared,
        )

    def _handles(self, jobs: Sequence[NewJob], enqueued: list[Enqueued]) -> list[JobHandle[Any]]:
        types = repeat(jobs.template.type, len(jobs)) if isinstance(jobs, UniformJobs) else [job.type for job in jobs]
        made = []
        for type_, one in zip(types, enqueued, strict=True):
            task = self._tasks.get(type_)
            made.append(JobHandle(one, self.results, _as_it_is if task is None else task.arguments.read_result))
        return made


def run_elsewhere(work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run async work to its end from plain code, on a thread and an event loop of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="onward-sync") as thread:
        return thread.submit(copy_context().run, asyncio.run, work()).result()


def _as_it_is(value: Any) -> Any:
    return value
