"""The App: the one place where tasks, a store and the machinery around them meet.

Making an App connects to nothing. The store is opened by the first thing that needs it, by ``await app.open()``, or by
``async with app:``, which closes it as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from onward.alert import AlertRule, rule_of
from onward.arguments import nearest
from onward.backoff import Backoff
from onward.batches.resources import Batch, Batches, Flow
from onward.batches.values import Callbacks, NewBatch
from onward.clock import Clock
from onward.config import DEFAULT_LEASE, Config, url_from
from onward.connection import Connection
from onward.context import JobContext, Middleware
from onward.control_flow import as_duration
from onward.core import Core, Plugin
from onward.cron import trigger_of
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.checked import CheckedEngine
from onward.engine.contract import Engine
from onward.engines.urls import open_engine
from onward.errors import InvalidValue
from onward.events import AnyEvent, Completed, Event, EventStream, Failed, tags_of
from onward.handle import JobHandle
from onward.handler import Executor, Handler, RetryRules, TaskOptions, UnknownFields
from onward.ids import new_id
from onward.job import NewJob
from onward.lifecycle import MAX_CRASHES, CrashPolicy
from onward.metering import Bucket, Usage, UsageBy, UsageQuery
from onward.prometheus import exposition
from onward.resources import Archive, DeadLetters, Jobs, Queues, Schedules, Workers
from onward.schedule import Missed, Schedule
from onward.task import AsyncTask, PlainTask, Task, queue_pattern
from onward.validation import MAX_PAYLOAD, check_type, one_of
from onward.webhook import Deliveries, Webhook, keys_of, networks_of
from onward.worker_options import UNKNOWN_TASK_GRACE, UnknownTaskPolicy, WorkerOptions

if TYPE_CHECKING:
    from ssl import SSLContext

    from onward.worker.event_relay import Relay
    from onward.worker.one_shot import TickReport
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
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD,
        lease: timedelta | float = DEFAULT_LEASE,
        max_crashes: int = MAX_CRASHES,
        unknown_tasks: UnknownTaskPolicy = "wait",
        unknown_task_grace: timedelta | float = UNKNOWN_TASK_GRACE,
        unknown_fields: UnknownFields | None = None,
        events: Literal["all", "on_demand"] | None = None,
        redact: Iterable[str] = (),
    ) -> None:
        """Set up an App; nothing is connected to yet.

        Args:
            url: which store: see :mod:`onward.engines.urls`.
            engine: an engine made by hand, instead of a URL.
            middleware: called around every run, the first one outermost.
            clock: the source of time, for tests: see :mod:`onward.testing`.
            max_payload: bytes of JSON that a job, or its result, may be.
            lease: time without a heartbeat after which a worker counts as dead.
            max_crashes: how many child processes a suspect may take down before its task's ``on_crash`` applies.
            unknown_tasks: ``wait`` puts a job whose task a worker does not have back for another worker, at no cost;
                ``fail`` fails it at once.
            unknown_task_grace: how long such a job is put back before it fails as NoHandler.
            unknown_fields: whether keys of a payload that a task has no argument for are ignored (``ignore``) or make
                the run fail (``refuse``); ``ignore`` on foreign stores, ``refuse`` on others unless given.
            events: ``all`` records events also while no one listens, from now on and for every App on this store;
                ``on_demand`` takes that back. BullMQ always records them.
            redact: names of keys whose values the server and the dashboard do not show, besides the usual ones
                (password, secret, token, …): ``iban`` also hides ``customer_iban`` and ``customerIban`` (S6).
        """
        if engine is None:
            url = url or url_from()
            engine = open_engine(url, clock=clock, events=events)
        elif url is not None:
            raise InvalidValue("engine", engine, "give a url or an engine, not both")
        elif events is not None:
            raise InvalidValue("events", events, "belongs to the engine, where one is given")
        config = Config(
            url=url or "",
            max_payload=max_payload,
            lease=as_duration("lease", lease),
            max_crashes=max_crashes,
            unknown_tasks=unknown_tasks,
            unknown_task_grace=as_duration("unknown_task_grace", unknown_task_grace),
            redact=tuple(redact),
        )
        checked = CheckedEngine(engine, max_payload=max_payload)
        self._unknown_fields: UnknownFields = unknown_fields or (
            "ignore" if checked.capabilities.is_shared else "refuse"
        )
        self.middleware: list[Middleware] = list(middleware)
        self._core = core = Core(checked, config, middleware=self.middleware, clock=clock)
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(core.tasks)
        """The tasks, by name."""
        self._webhooks: Deliveries | None = None
        self.jobs = Jobs(core.opened, lease=config.lease)
        self.dead = DeadLetters(core.opened)
        self.archive = Archive(core.opened)
        self.queues = Queues(core.opened)
        self.workers = Workers(core.opened)
        self.schedules = Schedules(core.opened, self.enqueue_many)
        self.batches = Batches(core.opened, core.handles)

    def __repr__(self) -> str:
        """Name the store."""
        return f"<App on {self.capabilities.engine}, {len(self.tasks)} tasks>"

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._core.capabilities

    # Opening and closing

    async def open(self) -> None:
        """Open the store, and migrate its schema where it is ours. Idempotent."""
        await self._core.open()

    async def close(self) -> None:
        """Close the store. Idempotent; the next use opens it again, unless it was a temporary one."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        """Open the store for the length of a block."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

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
        on_crash: CrashPolicy = "dead_letter",
        store_result: bool = True,
        unknown_fields: UnknownFields | None = None,
        aliases: Mapping[str, str] | None = None,
        whole_payload: bool = False,
        catch_all: bool = False,
        redact: Iterable[str] = (),
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
        on_crash: CrashPolicy = "dead_letter",
        store_result: bool = True,
        unknown_fields: UnknownFields | None = None,
        aliases: Mapping[str, str] | None = None,
        whole_payload: bool = False,
        catch_all: bool = False,
        redact: Iterable[str] = (),
    ) -> Any:
        """Make a task of a function: ``@app.task``, or ``@app.task(queue="mail", max_attempts=5)``.

        Args:
            function: an ``async def``, which runs on the event loop, or a plain ``def``, which runs on a thread.
            name: what its jobs are called in the store; the function's own name unless given.
            queue: where its jobs wait; ``mail/{org_id}`` gives each organisation a queue of its own.
            priority: higher is more urgent.
            max_attempts: the most runs a job may have; the queue's default, else 5.
            backoff: how long to wait between them; the queue's default, else 1 s doubling up to 60 s.
            retry: for single classes of exceptions, another backoff, or False for no retry.
            timeout: how long one run may take. A plain function cannot be stopped: its run counts as failed, and the
                thread is left to end by itself.
            dedupe: while a job with the same arguments and organisation waits or runs, another enqueue adds nothing.
            executor: ``process`` runs a plain function in a process of its own, for work that needs a whole processor.
            on_crash: what becomes of a job that has ended ``max_crashes`` child processes, alone in each: a
                ``dead_letter``; ``retry``, as after any failure; ``fail``; ``hold``, until a person edits its
                ``run_at``.
            store_result: whether what it returns is stored.
            unknown_fields: whether keys of a payload that no argument has are ignored or make the run fail; the App's
                setting unless given.
            aliases: the payload's keys for arguments whose names differ, such as ``{"sender": "from"}``.
            whole_payload: the function's one argument is the payload itself: a string, an array, a number or null too.
            catch_all: also run jobs of the queue whose names no task has; ``context.type`` is the job's name.
            redact: names of keys of its payload and result whose values are not shown, as ``App(redact=…)``; ``*``
                hides all of both.

        Raises:
            InvalidValue: the function or an option is not such as can be kept.
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
            on_crash=on_crash,
            store_result=store_result,
            unknown_fields=unknown_fields or self._unknown_fields,
            aliases=dict(aliases or {}),
            whole_payload=whole_payload,
            catch_all=catch_all,
            redact=tuple(redact),
        )

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            return self._add(function, name, options)

        return make if function is None else make(function)

    def _add(self, function: Callable[..., Any], name: str | None, options: TaskOptions) -> Task[..., Any]:
        if not callable(function):
            raise InvalidValue("task", function, "must be a function: use @app.task, or @app.task(queue=…)")
        name = check_type("name", name or str(getattr(function, "__name__", type(function).__name__)))
        if name in self.tasks:
            other = self.tasks[name].function
            where = f"{other.__module__}.{getattr(other, '__qualname__', name)}"
            raise InvalidValue("name", name, f"is taken by {where}: give one of them another, @app.task(name=…)")
        handler = Handler(function, name=name, options=options)
        task: Task[..., Any] = (AsyncTask if handler.is_async else PlainTask)(handler, self._core)
        self._core.add(task)
        return task

    @overload
    def schedule(
        self,
        cron: str,
        /,
        *,
        timezone: str = "UTC",
        missed: Literal["skip", "once", "all"] = "once",
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
        missed: Literal["skip", "once", "all"] = "once",
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
        missed: Literal["skip", "once", "all"] = "once",
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[T], T]:
        """Schedule a task to run periodically: ``@app.schedule("0 6 * * mon-fri", timezone="Europe/Berlin")``.

        Goes above ``@app.task``. Workers create the schedule in the store when they start, and change it when the code
        has changed; one that is no longer in the code stays until it is deleted.

        Args:
            cron: a cron expression of five fields.
            every: instead of it, the interval between two runs.
            timezone: of the cron expression.
            missed: what to do for times that passed while no worker ran: ``skip`` them, enqueue ``once`` for all of
                them, or enqueue ``all``.
            name: of the schedule; the task's own name unless given.
            arguments: of the function, by name.

        Raises:
            InvalidValue: the expression, the time zone or an option is not valid.
            Unsupported: the store has no schedules.
        """
        self.capabilities.require(Feature.SCHEDULES)
        trigger = trigger_of(cron, every=every, timezone=timezone)
        policy = one_of("missed", Missed, missed)

        def declare(task: T) -> T:
            if not isinstance(task, Task):
                raise InvalidValue("schedule", task, "must stand above @app.task, for it takes a task")
            called = name or task.name
            if called in self._core.schedules:
                raise InvalidValue("schedule", called, "is declared twice: give one of them another name=")

            def schedule() -> Schedule:  # made when it is needed: annotations may name what is defined further down
                return Schedule(name=called, job=task.job(**(arguments or {})), trigger=trigger, missed=policy)

            self._core.schedules[called] = schedule
            return task

        return declare

    def webhook(
        self,
        name: str,
        url: str,
        *,
        secret: str | Sequence[str],
        events: Iterable[type[Event]] = (Completed, Failed),
        queues: Sequence[str] = ("*",),
        allow: Iterable[str] = (),
        timeout: timedelta | float = 10,
        max_attempts: int = 12,
        tls: SSLContext | None = None,
    ) -> Webhook:
        """Have events posted to an address: ``app.webhook("crm", "https://…", secret=…, events=[events.Failed])``.

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
            InvalidValue: something of this cannot be kept to.
            Unsupported: the store has no webhooks.
        """
        self.capabilities.require(Feature.WEBHOOKS)
        webhook = Webhook(
            name=name,
            url=url,
            queues=tuple(queues),
            event_types=tags_of(events) or frozenset(),
            keys=keys_of(secret),
            allowed=networks_of(allow),
            timeout=as_duration("timeout", timeout).total_seconds(),
            max_attempts=max_attempts,
            tls=tls,
        )
        if self._webhooks is None:
            self._webhooks = Deliveries(self._add, max_bytes=self._core.max_payload // 2)
        return self._webhooks.declare(webhook)

    def alert(
        self,
        name: str,
        *,
        webhook: Webhook | str,
        oldest_ready: timedelta | float | None = None,
        failure_rate: float | None = None,
        dead_letters: int | None = None,
        queues: Sequence[str] = ("*",),
        window: timedelta | float = timedelta(minutes=5),
        min_runs: int = 20,
        min_interval: timedelta | float = timedelta(minutes=5),
    ) -> AlertRule:
        """Post to a webhook when a condition begins and when it ends: ``app.alert("x", webhook=ops, dead_letters=1)``.

        The leader evaluates all rules every 15 s, and so does each tick. A rule delivers ``alert.fired`` once when it
        begins to hold and ``alert.resolved`` once when it ends, whichever worker leads. Give one condition.

        Args:
            name: of the rule; lower-case letters, digits, ``_``, ``.`` and ``-``.
            webhook: one of this app, or its name. One for alerts alone has ``events=()``.
            oldest_ready: fires when a ready job has waited that long, in a queue that is not paused.
            failure_rate: fires when that share of the runs of ``window`` failed: 0.2 is one in five.
            dead_letters: fires when there are that many.
            queues: names and patterns; Onward's own queues are left out.
            window: of the failure rate, between a minute and a day.
            min_runs: fewer runs in the window have no failure rate.
            min_interval: the shortest time between two deliveries of the rule, so that a value about the threshold
                delivers little.

        Raises:
            InvalidValue: something of this cannot be evaluated, or there is no such webhook.
            Unsupported: the store has no webhooks, or no usage, or no leader.
        """
        for feature in (Feature.WEBHOOKS, Feature.USAGE, Feature.LEADER, Feature.SCHEDULES):
            self.capabilities.require(feature)
        target = webhook if isinstance(webhook, str) else webhook.name
        known = [] if self._webhooks is None else [one.name for one in self._webhooks.webhooks]
        if self._webhooks is None or target not in known:
            raise InvalidValue("webhook", target, f"is not declared by app.webhook(…){nearest(target, known)}")
        if name in self._core.alerts:
            raise InvalidValue("alert", name, "is declared twice: give one of them another name")
        rule = rule_of(
            name,
            target,
            {"oldest_ready": oldest_ready, "failure_rate": failure_rate, "dead_letters": dead_letters},
            queues=tuple(queues),
            window=as_duration("window", window),
            min_runs=min_runs,
            min_interval=as_duration("min_interval", min_interval),
        )
        self._core.alert_job_of = self._webhooks.alert_job_of
        self._core.alerts[name] = rule
        return rule

    def add_plugin(self, plugin: Plugin) -> None:
        """Add routes and commands of your own to the server and the command line: see ``onward.service.plugins``.

        Raises:
            InvalidValue: another plug-in has that name.
        """
        if any(known.name == plugin.name for known in self._core.plugins):
            raise InvalidValue("plugin", plugin.name, "is added twice, or another plug-in has that name")
        self._core.plugins.append(plugin)

    def _relays(self, holder: str) -> list[Relay]:
        from onward.worker.event_relay import Relay  # noqa: PLC0415 - as for the worker

        deliveries, engine = self._webhooks, self._core.engine
        if deliveries is None:
            return []
        # One without events is for alerts alone.
        wanted = [each for each in deliveries.webhooks if each.event_types]
        return [Relay(engine, each, deliveries.job_of, holder=holder) for each in wanted]

    # Enqueueing

    async def enqueue_many(
        self, jobs: Iterable[NewJob], *, connection: Connection | None = None
    ) -> list[JobHandle[Any]]:
        """Store jobs of any tasks at once, all or none: ``[send_mail.job(to=…), resize.job(path=…), …]``.

        With ``connection``, a connection of yours with a transaction open, the jobs exist if and only if that commits.
        """
        made = list(jobs)
        return self._core.handles(made, await self._core.send(made, connection=connection))

    def enqueue_many_sync(
        self, jobs: Iterable[NewJob], *, connection: Connection | None = None
    ) -> list[JobHandle[Any]]:
        """Do the same from code without an event loop."""
        made = list(jobs)
        return self._core.handles(made, self._core.send_sync(made, connection=connection))

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
        callbacks = Callbacks(on_success=on_success, on_failure=on_failure, on_finished=on_finished)
        new = NewBatch(name=name or new_id(), queue=queue, callbacks=callbacks)
        return Batch(new, self._core.opened, self._core.handles)

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

    def events(self, *queues: str, types: Iterable[type[Event]] = (), cursor: str | None = None) -> EventStream:
        """Stream what happens to jobs: ``async for event in app.events("mail/*", types=[events.Failed])``.

        Args:
            queues: names and patterns; all queues unless given.
            types: the kinds of events, from :mod:`onward.events`; all unless given.
            cursor: of an event, to continue after it; ``events.OLDEST`` for all that is still kept; from now on unless
                given.
        """

        async def begin() -> AsyncGenerator[AnyEvent, None]:
            return await (await self._core.opened()).events(queues or ("*",), cursor=cursor, types=tags_of(types))

        return EventStream(begin)

    async def usage(
        self,
        *,
        bucket: Literal["minute", "day", "all"] = "day",
        by: Iterable[Literal["org_id", "queue", "type", "outcome"]] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        org_id: str | None = None,
        queue: str | None = None,
        type: str | None = None,
    ) -> list[Usage]:
        """Sum up the runs of jobs: ``await app.usage(bucket="day", by=["org_id", "type"], since=…)``.

        Args:
            bucket: the length of time that each sum covers: ``minute`` (of the last two days), ``day`` or ``all``.
            by: the fields to group by.
            since: from this moment on.
            until: before this moment.
            org_id: of this organisation only.
            queue: of this queue only.
            type: of this task only.

        Raises:
            InvalidValue: ``bucket`` or ``by`` has another value than those.
        """
        query = UsageQuery(
            bucket=one_of("bucket", Bucket, bucket),
            by=frozenset(one_of("by", UsageBy, word) for word in by),
            since=since,
            until=until,
            org_id=org_id,
            queue=queue,
            type=type,
        )
        return await (await self._core.opened()).usage(query)

    async def metrics(self) -> str:
        """Write metrics of queues, workers and runs in Prometheus's text format."""
        engine = await self._core.opened()
        usage: list[Usage] = []
        if self.capabilities.has(Feature.USAGE):
            every = frozenset({UsageBy.QUEUE, UsageBy.TYPE, UsageBy.OUTCOME})
            usage = await engine.usage(UsageQuery(bucket=Bucket.ALL, by=every))
        return exposition(await engine.queues(), await engine.workers(), usage)

    # Working

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Make a worker: ``async with app.worker(concurrency=20):`` beside something else, or ``await app.work()``.

        Without ``queues`` it serves all; on a store that it shares with workers of other programs, and where ``tasks``
        names some, the queues of its tasks.
        """
        from onward.worker.options import WorkerSettings  # noqa: PLC0415 - a program that only enqueues
        from onward.worker.worker import Worker  # noqa: PLC0415 - need not load the worker

        core = self._core
        alerts = core.alert_evaluation()
        settings: WorkerOptions = {
            "queues": self._own_queues(options.get("tasks", ())),
            "max_crashes": core.config.max_crashes,
            "lease": core.config.lease,
            "unknown_tasks": core.config.unknown_tasks,
            "unknown_task_grace": core.config.unknown_task_grace,
            **options,
        }
        return Worker(
            core.engine,
            {name: core.handlers[name] for name in core.tasks} if options.get("tasks") else core.handlers,
            WorkerSettings(**settings),
            middleware=self.middleware,
            declared=core.declared,
            relays=self._relays,
            catch_all=core.catch_all,
            maintenance_tasks=() if alerts is None else (alerts.task,),
        )

    async def work(self, **options: Unpack[WorkerOptions]) -> None:
        """Run jobs until cancelled: then outcomes of finished runs are stored, and all other jobs released."""
        await self.worker(**options).run()

    async def tick(self, limit: int = 100, *, timeout: timedelta | float | None = None) -> TickReport:
        """Do in one call what a worker does all the time (H7), for a serverless host or a plain cron.

        Fires schedules, promotes due jobs, rescues jobs of dead workers, then claims at most ``limit`` jobs, runs them
        in this process and records how they ended. After ``timeout`` it claims nothing more, cancels the handlers that
        still run, and releases their jobs; a plain ``def`` cannot be stopped, and its thread is left to end by itself.

        Raises:
            StoreMisconfigured: the server would lose jobs. Nothing was done.
        """
        seconds = None if timeout is None else as_duration("timeout", timeout).total_seconds()
        await self.open()
        return await self._core.ticker().tick(limit, queues=self._own_queues(), timeout=seconds)

    def _own_queues(self, only: Collection[str] = ()) -> tuple[str, ...]:
        # On a foreign store, a job that this app has no task for may be meant for another program's worker.
        if not self.capabilities.is_shared and self.tasks.keys().isdisjoint(only):
            return ("*",)
        tasks = [task for name, task in self.tasks.items() if not only or name in only]
        return tuple(dict.fromkeys(queue_pattern(task.options.queue) for task in tasks))
