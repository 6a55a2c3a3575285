"""The App: the one place where tasks, a store and the machinery around them meet.

Making an App connects to nothing. The store is opened by the first thing that needs it, by ``await app.open()``, or by
``async with app:``, which closes it as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

import msgspec

from onward.alert import AlertRule, rule_of
from onward.arguments import nearest
from onward.backoff import Backoff
from onward.batches.resources import Batch, Batches, Flow
from onward.batches.values import Callbacks, NewBatch
from onward.blueprint import Tasks, include, is_included
from onward.clock import Clock
from onward.config import DEFAULT_LEASE, Config
from onward.connection import Connection
from onward.context import Middleware
from onward.control_flow import as_duration
from onward.core import Core, Override, Plugin
from onward.declarations import Declarations, ScheduleDeclaration
from onward.discovery import modules_below
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.checked import EnqueueMiddleware
from onward.engine.contract import Engine
from onward.errors import InvalidValue, JobError, JobNotFound, OnwardError
from onward.events import AnyEvent, Completed, Event, EventStream, Failed, tags_of
from onward.handle import JobHandle
from onward.handler import Handler, TaskOptions, UnknownFields
from onward.ids import new_id
from onward.job import NewJob
from onward.lifecycle import MAX_CRASHES
from onward.loop_thread import LoopThread
from onward.metering import Bucket, Usage, UsageBy, UsageQuery
from onward.prometheus import exposition
from onward.resources import Archive, DeadLetters, Jobs, Queues, Schedules, Workers
from onward.store_url import hide_secrets, url_of
from onward.sync import SyncApp, SyncJobHandle
from onward.task import AsyncTask, PlainTask, Task, fill_queue, queue_pattern
from onward.validation import MAX_PAYLOAD, one_of
from onward.webhook import Deliveries, Webhook, keys_of, networks_of
from onward.worker_options import UNKNOWN_TASK_GRACE, UnknownTaskPolicy, WorkerOptions

if TYPE_CHECKING:
    from ssl import SSLContext

    from onward.worker.event_relay import Relay
    from onward.worker.one_shot import TickReport
    from onward.worker.worker import Worker

R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")


Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]
"""Makes an async context manager around a worker's life; its value is ``context.state`` in handlers."""


class App(Declarations):
    """Tasks on a store: ``App("sqlite:///jobs.db")``.

    Without a URL the store is resolved at the first use: by :meth:`configure`, else ``ONWARD_URL``, else the ``url`` of
    ``[tool.onward]`` in pyproject.toml.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        engine: Engine | None = None,
        middleware: Iterable[Middleware] = (),
        enqueue_middleware: Iterable[EnqueueMiddleware] = (),
        lifespan: Lifespan | None = None,
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
            url: which store: see :mod:`onward.engines.urls`; a path is that of a SQLite file.
            engine: an engine made by hand, instead of a URL.
            middleware: called around every run, the first one outermost.
            enqueue_middleware: called around every enqueue, the first one outermost.
            lifespan: called with the App by each worker when it starts; gives an async context manager, which the
                worker leaves when it has stopped. Its value is ``context.state`` in handlers.
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
        config = Config(
            max_payload=max_payload,
            lease=as_duration("lease", lease),
            max_crashes=max_crashes,
            unknown_tasks=unknown_tasks,
            unknown_task_grace=as_duration("unknown_task_grace", unknown_task_grace),
            redact=tuple(redact),
        )
        self._unknown_fields = unknown_fields
        self.middleware: list[Middleware] = list(middleware)
        self.enqueue_middleware: list[EnqueueMiddleware] = list(enqueue_middleware)
        self._core = core = Core(
            config,
            middleware=self.middleware,
            enqueue_middleware=self.enqueue_middleware,
            clock=clock,
            events=events,
            lifespan=None if lifespan is None else partial(lifespan, self),
        )
        if engine is not None and events is not None:
            raise InvalidValue("events", events, "belongs to the engine, where one is given")
        if url or engine is not None:
            self.configure(url=url, engine=engine)
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(core.tasks)
        """The tasks, by name."""
        self._webhooks: Deliveries | None = None
        self.jobs = Jobs(core.opened, lease=config.lease, results=lambda: core.results, loop=core.loop)
        self.dead = DeadLetters(core.opened, loop=core.loop)
        self.archive = Archive(core.opened, loop=core.loop)
        self.queues = Queues(core.opened, loop=core.loop)
        self.workers = Workers(core.opened, loop=core.loop)
        self.schedules = Schedules(core.opened, self.enqueue_many, loop=core.loop)
        self.batches = Batches(core.opened, core.handles, loop=core.loop)

    def __repr__(self) -> str:
        """Name the store, if it is known, and count the tasks."""
        where = self.capabilities.engine if self._core.is_bound else "a store that is not resolved yet"
        return f"<App on {where}, {len(self.tasks)} tasks>"

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._core.capabilities

    @property
    def sync(self) -> SyncApp:
        """The same for code without an event loop: ``app.sync.queues.pause("mail")``."""
        return SyncApp(self)

    @property
    def _loop(self) -> LoopThread:
        return self._core.loop

    # Which store

    def configure(self, *, url: str | Path | None = None, engine: Engine | None = None) -> None:
        """Set the store: ``app.configure(url=settings.jobs_url)``. Connects to nothing.

        For programs that read their settings after the module of the App has been imported. The last call before the
        first use counts.

        Args:
            url: which store: see :mod:`onward.engines.urls`; a path is that of a SQLite file.
            engine: an engine made by hand, instead of a URL.

        Raises:
            InvalidValue: the URL names no store, or the App has opened its store already.
            Unsupported: the store lacks what a task, schedule or webhook of the App needs.
        """
        if engine is not None and url is not None:
            raise InvalidValue("engine", engine, "give a url or an engine, not both")
        if engine is None and not url:
            raise InvalidValue("url", url, 'give one, such as app.configure(url="sqlite:///jobs.db")')
        if self._core.is_open:
            rule = "cannot be set: the App has opened its store. Close the App first; in a test, use app.override(…)"
            raise InvalidValue("url", None if url is None else hide_secrets(url_of(url)), rule)
        self._core.bind(url, engine=engine)

    def override(
        self, url: str | Path = "sqlite://", *, engine: Engine | None = None, clock: Clock | None = None
    ) -> Override:
        """Use another store within a block, for a test: ``with app.override(clock=ManualClock()):``.

        By default a temporary SQLite file. Holds for all threads and tasks; at the end the store is closed, and the App
        uses its own again, as if it had not been used. Goes by ``async with`` too.

        Args:
            url: which store.
            engine: an engine made by hand, instead of a URL.
            clock: the source of time: see :mod:`onward.testing`.

        Raises:
            InvalidValue: the URL names no store.
            Unsupported: the store lacks what a task, schedule or webhook of the App needs.
        """
        return Override(self._core, lambda: self._core.make_binding(url, engine=engine, clock=clock))

    # Opening and closing

    async def open(self) -> None:
        """Open the store, and migrate its schema where it is ours. Idempotent."""
        await self._core.open()

    async def close(self) -> None:
        """Close the store. Idempotent; the next use opens it again, unless it was a temporary one."""
        await self._core.close()

    def _close_sync(self) -> None:
        self._core.close_sync()

    async def __aenter__(self) -> Self:
        """Open the store for the length of a block."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def _aexit_sync(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._core.close_sync()

    # Tasks

    def _declare_task(self, function: Callable[..., Any], name: str, options: TaskOptions) -> Task[..., Any]:
        self._refuse_taken(name)
        if options.unknown_fields is None and self._unknown_fields is not None:
            options = msgspec.structs.replace(options, unknown_fields=self._unknown_fields)
        handler = Handler(function, name=name, options=options)
        task: Task[..., Any] = (AsyncTask if handler.is_async else PlainTask)(handler, self._core)
        self._core.add(task)
        return task

    def _refuse_taken(self, name: str) -> None:
        if name in self.tasks:
            other = self.tasks[name].function
            where = f"{other.__module__}.{getattr(other, '__qualname__', name)}"
            raise InvalidValue("name", name, f"is taken by {where}: give one of them another, @app.task(name=…)")

    def _declare_schedule(self, declaration: ScheduleDeclaration) -> None:
        self._core.add_schedule(declaration)

    def _include_task(self, task: Task[..., Any]) -> None:
        self._declare_task(task.function, task.name, task.options)

    def include(self, *tasks: Tasks) -> None:
        """Add the tasks and schedules of blueprints: ``app.include(mail.tasks, billing.tasks)``. Idempotent.

        Tasks that a blueprint declares later are added too. Its tasks enqueue to the App that included it last.

        Raises:
            InvalidValue: another task has one of the names. Nothing of that blueprint was added.
            Unsupported: the store lacks what a task needs.
        """
        for blueprint in tasks:
            if not isinstance(blueprint, Tasks):
                raise InvalidValue("tasks", blueprint, "must be an onward.Tasks")
            if not is_included(blueprint, self):
                for name in blueprint.tasks:
                    self._refuse_taken(name)
            include(blueprint, self, self._core)

    def discover(self, *packages: str, module: str = "tasks") -> list[Tasks]:
        """Import modules that declare tasks, and include their blueprints: ``app.discover("shop")``.

        Walks each package and imports the modules called ``tasks``, at any depth, and what is below them. Goes also by
        the name of a single module.

        Args:
            packages: their names, as they are imported.
            module: the name of the modules to import.

        Raises:
            InvalidValue: a package has no module of that name.
        """
        found: dict[int, Tasks] = {}
        for package in packages:
            for each in modules_below(package, module):
                found |= {id(value): value for value in vars(each).values() if isinstance(value, Tasks)}
        self.include(*found.values())
        return list(found.values())

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
        self._core.require(Feature.WEBHOOKS)
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
            self._webhooks = Deliveries(self._declare_task, max_bytes=self._core.max_payload // 2)
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
        """Post to a webhook when a condition begins and ends: ``app.alert("dead", webhook=ops, dead_letters=1)``.

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
            self._core.require(feature)
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

    async def enqueue(
        self,
        name: str,
        payload: Any = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        delay: timedelta | float | None = None,
        run_at: datetime | None = None,
        start_by: datetime | None = None,
        org_id: str | None = None,
        idempotency_key: str | None = None,
        dedupe_key: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        connection: Connection | None = None,
    ) -> JobHandle[Any]:
        """Store a job by the name of its task, for a worker of another program: ``app.enqueue("billing.charge", {…})``.

        A payload for a task that this App has is checked against its function. Any other is stored as it is.

        Args:
            name: of the task, as the worker knows it.
            payload: any JSON value; an object with the task's arguments. None: no arguments.
            queue: where it waits; that of the task, if this App has it, else ``default``.
            priority: higher is more urgent.
            delay: how long to wait before the first run, by the store's clock.
            run_at: when to run first, if not at once.
            start_by: not started by then, the job is cancelled as expired.
            org_id: the organisation that the job belongs to; fills ``{org_id}`` in the name of the queue.
            idempotency_key: a second enqueue of this name with the same key gives back the first job.
            dedupe_key: while a job with this key waits or runs, a second enqueue returns that one.
            max_attempts: the most runs that there may be.
            backoff: how long to wait between them.
            connection: a connection of yours with a transaction open: the job exists if and only if that commits.

        Raises:
            InvalidPayload: the payload does not fit the task, or is no JSON value.
            InvalidValue: an option breaks a rule.
            Unsupported: the engine does not offer an option.
        """
        job = self._job_by_name(
            name,
            payload,
            queue=queue,
            priority=priority,
            delay=delay,
            run_at=run_at,
            start_by=start_by,
            org_id=org_id,
            idempotency_key=idempotency_key,
            dedupe_key=dedupe_key,
            max_attempts=max_attempts,
            backoff=backoff,
        )
        return (await self.enqueue_many([job], connection=connection))[0]

    def _enqueue_sync(
        self, name: str, payload: Any = None, *, connection: Connection | None = None, **options: Any
    ) -> JobHandle[Any]:
        handle: JobHandle[Any]
        (handle,) = self._enqueue_many_sync([self._job_by_name(name, payload, **options)], connection=connection)
        return handle

    def _job_by_name(
        self,
        name: str,
        payload: Any,
        *,
        queue: str | None,
        priority: int,
        delay: timedelta | float | None,
        max_attempts: int | None,
        backoff: Backoff | None,
        org_id: str | None,
        **others: Any,
    ) -> NewJob:
        known = self.tasks.get(name)
        template = queue or (known.options.queue if known is not None else "default")
        return NewJob(
            type=name,
            payload=self._core.encode(name, payload),
            queue=fill_queue(template, org_id, foreign=self._core.allows_foreign_names),
            priority=priority or (known.options.priority if known is not None else 0),
            delay=None if delay is None else as_duration("delay", delay),
            org_id=org_id,
            max_attempts=max_attempts or (known.options.max_attempts if known is not None else None),
            backoff=backoff or (known.options.backoff if known is not None else None),
            **others,
        )

    @overload
    async def enqueue_many(  # type: ignore[overload-overlap] # a tuple keeps the type of each
        self, jobs: tuple[NewJob[R1], NewJob[R2]], *, connection: Connection | None = None
    ) -> tuple[JobHandle[R1], JobHandle[R2]]: ...
    @overload
    async def enqueue_many(  # type: ignore[overload-overlap]
        self, jobs: tuple[NewJob[R1], NewJob[R2], NewJob[R3]], *, connection: Connection | None = None
    ) -> tuple[JobHandle[R1], JobHandle[R2], JobHandle[R3]]: ...
    @overload
    async def enqueue_many(  # type: ignore[overload-overlap]
        self, jobs: tuple[NewJob[R1], NewJob[R2], NewJob[R3], NewJob[R4]], *, connection: Connection | None = None
    ) -> tuple[JobHandle[R1], JobHandle[R2], JobHandle[R3], JobHandle[R4]]: ...
    @overload
    async def enqueue_many(  # type: ignore[overload-overlap]
        self, jobs: tuple[NewJob[R], ...], *, connection: Connection | None = None
    ) -> tuple[JobHandle[R], ...]: ...
    @overload
    async def enqueue_many(
        self, jobs: Iterable[NewJob[R]], *, connection: Connection | None = None
    ) -> list[JobHandle[R]]: ...
    async def enqueue_many(self, jobs: Iterable[NewJob], *, connection: Connection | None = None) -> Any:
        """Store jobs of any tasks at once, all or none: ``[send_mail.job(to=…), resize.job(path=…), …]``.

        A tuple of jobs gives a tuple of handles, of which each keeps its type; anything else gives a list. With
        ``connection``, a connection of yours with a transaction open, the jobs exist if and only if that commits.
        """
        made = list(jobs)
        handles = self._core.handles(made, await self._core.send(made, connection=connection))
        return tuple(handles) if isinstance(jobs, tuple) else handles

    def _enqueue_many_sync(self, jobs: Iterable[NewJob], *, connection: Connection | None = None) -> Any:
        made = list(jobs)
        handles = self._core.handles(made, self._core.send_sync(made, connection=connection))
        return tuple(handles) if isinstance(jobs, tuple) else handles

    # Waiting

    @overload
    async def gather(  # type: ignore[overload-overlap] # a tuple keeps the type of each
        self,
        handles: tuple[JobHandle[R1], JobHandle[R2]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2]: ...
    @overload
    async def gather(  # type: ignore[overload-overlap]
        self,
        handles: tuple[JobHandle[R1], JobHandle[R2], JobHandle[R3]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3]: ...
    @overload
    async def gather(  # type: ignore[overload-overlap]
        self,
        handles: tuple[JobHandle[R1], JobHandle[R2], JobHandle[R3], JobHandle[R4]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4]: ...
    @overload
    async def gather(  # type: ignore[overload-overlap]
        self,
        handles: tuple[JobHandle[R], ...],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R, ...]: ...
    @overload
    async def gather(  # type: ignore[overload-overlap]
        self,
        handles: Iterable[JobHandle[R]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    async def gather(  # type: ignore[overload-overlap]
        self,
        handles: tuple[JobHandle[R1], JobHandle[R2]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> tuple[R1 | OnwardError, R2 | OnwardError]: ...
    @overload
    async def gather(  # type: ignore[overload-overlap]
        self,
        handles: tuple[JobHandle[R1], JobHandle[R2], JobHandle[R3]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> tuple[R1 | OnwardError, R2 | OnwardError, R3 | OnwardError]: ...
    @overload
    async def gather(  # type: ignore[overload-overlap]
        self,
        handles: tuple[JobHandle[R], ...],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> tuple[R | OnwardError, ...]: ...
    @overload
    async def gather(
        self,
        handles: Iterable[JobHandle[R]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> list[R | OnwardError]: ...
    async def gather(
        self,
        handles: Iterable[JobHandle[Any]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool = False,
    ) -> Any:
        """Wait until all these jobs have ended, and give what they returned, in order.

        A tuple of handles gives a tuple, of which each place keeps its type; anything else gives a list. However many
        they are, the store is asked for all of them at once.

        Args:
            handles: of the jobs.
            timeout: how long to wait for all of them.
            return_exceptions: give a :class:`JobFailed`, :class:`JobCancelled`, :class:`JobExpired` or
                :class:`JobNotFound` in the place of a job that has no result, and wait for the others.

        Raises:
            JobFailed: one of them ended without a result; the other jobs go on.
            TimeoutError: they have not all ended in that time. The jobs go on.
        """
        seconds = None if timeout is None else as_duration("timeout", timeout).total_seconds()
        kind = tuple if isinstance(handles, tuple) else list
        result_of = _result_or_error if return_exceptions else JobHandle[Any].result
        waiting = [asyncio.create_task(result_of(handle)) for handle in handles]
        try:
            async with asyncio.timeout(seconds):
                return kind(await asyncio.gather(*waiting))
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _gather_sync(
        self,
        handles: Iterable[SyncJobHandle[Any]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool = False,
    ) -> Any:
        inner = [handle._inner for handle in handles]  # noqa: SLF001 - the two kinds of a handle
        gathered = self._loop.run(lambda: self.gather(inner, timeout=timeout, return_exceptions=return_exceptions))
        return tuple(gathered) if isinstance(handles, tuple) else gathered

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
        return Batch(new, self._core.opened, self._core.handles, loop=self._core.loop)

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

    def _events_sync(
        self, *queues: str, types: Iterable[type[Event]] = (), cursor: str | None = None
    ) -> Generator[AnyEvent, None, None]:
        return self._loop.stream(self.events(*queues, types=types, cursor=cursor))

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
            lifespan=core.alive,
            limits=core.limits,
            app_place=core.place,
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
        async with self._core.alive() as state:
            return await self._core.ticker(state=state).tick(limit, queues=self._own_queues(), timeout=seconds)

    def _own_queues(self, only: Collection[str] = ()) -> tuple[str, ...]:
        # On a foreign store, a job that this app has no task for may be meant for another program's worker.
        if not self.capabilities.is_shared and self.tasks.keys().isdisjoint(only):
            return ("*",)
        tasks = [task for name, task in self.tasks.items() if not only or name in only]
        return tuple(dict.fromkeys(queue_pattern(task.options.queue) for task in tasks))


async def _result_or_error(handle: JobHandle[Any]) -> Any:
    try:
        return await handle.result()
    except (JobError, JobNotFound) as error:
        return error
