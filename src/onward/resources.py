"""The resources of an App: jobs, dead letters, archive, queues, workers, schedules.

Each method is thin: a verb of the engine, and an error that helps. ``which`` says which jobs: one by ``"queue:id"``,
its :class:`JobRef`, its handle or, where ids are global, its id alone; or many by a :class:`JobFilter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypedDict, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from onward.arguments import nearest, to_json
from onward.backoff import Backoff
from onward.cron import trigger_of
from onward.engine.checked import CheckedEngine
from onward.engine.values import (
    Changed,
    GroupBy,
    JobChange,
    JobFilter,
    LogLine,
    Page,
    QueueChange,
    QueueInfo,
    Rate,
    Retention,
    WorkerCommand,
    WorkerInfo,
)
from onward.errors import InvalidValue, JobNotFound, QueueNotFound, ScheduleNotFound
from onward.explain import Reason, explain
from onward.handle import JobHandle, handle_of
from onward.job import Job, JobRef, NewJob
from onward.lifecycle import HELD, JobStatus, StatusName
from onward.loop_thread import LoopThread
from onward.results import Results
from onward.schedule import Missed, Schedule
from onward.sync import (
    SyncArchive,
    SyncDeadLetters,
    SyncJobHandle,
    SyncJobs,
    SyncQueues,
    SyncSchedules,
    SyncWorkers,
)
from onward.validation import one_of

CountBy = Literal["status", "queue", "type", "org_id"]
"""The field to count jobs by."""


class JobFields(TypedDict, total=False):
    """The keywords that select jobs: every one given must hold."""

    status: JobStatus | StatusName | Iterable[JobStatus | StatusName]
    queue: str | Iterable[str]
    """Names and patterns."""
    type: str | Iterable[str]
    org_id: str
    batch: str
    worker_id: str
    error_contains: str
    created_after: datetime
    created_before: datetime
    finished_before: datetime


One = str | JobRef | Job | JobHandle[Any] | SyncJobHandle[Any]
"""One job, by any of its names."""
Which = One | JobFilter
"""Some jobs."""
_PAGE: Final = 200
"""Jobs read at a time where all are iterated over."""
_NAMED: Final = 5
"""Jobs that are told by name where there may be many."""
# In classes that have a method of that name, `list` is not the type.
Changes = list[Changed]
LogLines = list[LogLine]
Reasons = list[Reason]
Opened = Callable[[], Awaitable[CheckedEngine]]
"""Gives the engine, open."""


class Resource:
    """What all resources have: the engine, and the thread of the sync API."""

    def __init__(self, opened: Opened, *, loop: LoopThread | None = None) -> None:
        self._opened = opened
        self._loop = loop or LoopThread()


class Jobs(Resource):
    """All jobs: ``app.jobs``."""

    def __init__(
        self, opened: Opened, *, lease: timedelta, results: Callable[[], Results], loop: LoopThread | None = None
    ) -> None:
        super().__init__(opened, loop=loop)
        self._results = results
        self._lease = lease
        """Time without a heartbeat after which a worker counts as dead."""

    @property
    def sync(self) -> SyncJobs:
        """The same for code without an event loop: ``app.sync.jobs``."""
        return SyncJobs(self)

    def handle(self, job: str | JobRef | Job) -> JobHandle[Any]:
        """Make a handle from the name of a job: ``app.jobs.handle(id)``, where ids are not global ``"queue:id"``.

        Reads nothing. ``task.handle(id)`` gives one that knows the type of the result.

        Raises:
            InvalidValue: it is an id alone, and several queues may have a job of that id.
        """
        results = self._results()
        name = results.name_of(job) if isinstance(job, str) else job if isinstance(job, JobRef) else job.ref
        return handle_of(name, results)

    async def get(self, job: One) -> Job:
        """Read a job.

        Raises:
            JobNotFound: there is none of that name.
        """
        found = await (await self._opened()).get(_name_of(job))
        if found is None:
            raise JobNotFound(f"job {_name_of(job)} not found: it never existed, was deleted, or has been pruned")
        return found

    async def explain(self, job: One) -> Reasons:
        """Tell why a job is not running: everything that stands in its way.

        Raises:
            JobNotFound: there is none of that name.
        """
        engine = await self._opened()
        found = await self.get(job)
        held = JobFilter(queues=(found.queue,), status=frozenset(engine.capabilities.shown(state) for state in HELD))
        known, workers, held_jobs, info = await asyncio.gather(
            engine.queues(found.queue), engine.workers(), engine.find(held, limit=_NAMED), engine.check()
        )
        dependencies = (
            await engine.dependency_jobs(found.ref) if found.status is JobStatus.BLOCKED and found.batch else ()
        )
        return explain(
            found,
            queue=next((queue for queue in known if queue.name == found.queue), QueueInfo(name=found.queue)),
            workers=workers,
            held_jobs=held_jobs.items,
            now=info.now or datetime.now(UTC),
            lease=self._lease,
            dependencies=dependencies,
        )

    async def list(
        self,
        which: JobFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        newest_first: bool = True,
        **fields: Unpack[JobFields],
    ) -> Page[Job]:
        """List jobs by when they were created; pass ``page.next_cursor`` as ``cursor`` for the next page.

        Jobs are selected by keywords, ``list(status="failed", queue="mail/*")``, or by a :class:`JobFilter`.
        """
        engine = await self._opened()
        return await engine.find(filter_of(which, fields), cursor=cursor, limit=limit, newest_first=newest_first)

    async def iterate(
        self, which: JobFilter | None = None, *, newest_first: bool = True, **fields: Unpack[JobFields]
    ) -> AsyncGenerator[Job, None]:
        """Iterate over all selected jobs, page by page: ``async for job in app.jobs.iterate(status="failed")``."""
        cursor: str | None = None
        selected = filter_of(which, fields)
        while True:
            page = await self.list(selected, cursor=cursor, limit=_PAGE, newest_first=newest_first)
            for job in page.items:
                yield job
            cursor = page.next_cursor
            if cursor is None:
                return

    async def count(
        self, which: JobFilter | None = None, *, by: CountBy = "status", **fields: Unpack[JobFields]
    ) -> Mapping[str, int]:
        """Count the selected jobs by ``status``, ``queue``, ``type`` or ``org_id``."""
        return await (await self._opened()).count(filter_of(which, fields), by=one_of("by", GroupBy, by))

    async def cancel(self, which: Which, *, reason: str = "cancelled", limit: int = 1000) -> Changes:
        """Take jobs back. The handler of a running one is stopped, as far as it can be."""
        engine = await self._opened()
        return await engine.cancel(_filter_of(engine, which), reason=reason, limit=limit)

    async def replay(self, which: Which, *, limit: int = 1000) -> Changes:
        """Give failed, buried and cancelled jobs a new life: ready now, with all their attempts."""
        engine = await self._opened()
        return await engine.replay(_filter_of(engine, which), limit=limit)

    async def delete(self, which: Which, *, limit: int = 1000) -> Changes:
        """Remove jobs and their keys. One that is being run stays."""
        engine = await self._opened()
        return await engine.delete(_filter_of(engine, which), limit=limit)

    async def edit(
        self,
        job: One,
        *,
        priority: int | UnsetType = UNSET,
        payload: Mapping[str, Any] | UnsetType = UNSET,
        run_at: datetime | UnsetType = UNSET,
        max_attempts: int | UnsetType = UNSET,
    ) -> Job:
        """Change a job that waits.

        Raises:
            JobNotFound: there is none of that name that waits.
        """
        engine = await self._opened()
        change = JobChange(
            priority=priority,
            payload=UNSET if payload is UNSET else to_json(payload),
            run_at=run_at,
            max_attempts=max_attempts,
        )
        ref = await self._ref_of(job)
        edited = await engine.edit(ref, change)
        if edited is None:
            raise JobNotFound(f"job {ref} does not wait: one that runs or has ended cannot be edited")
        return edited

    async def logs(self, job: One) -> LogLines:
        """Read what a job's handler has written."""
        ref = await self._ref_of(job)
        return await (await self._opened()).logs(ref)

    async def _ref_of(self, job: One) -> JobRef:
        name = _name_of(job)
        return (await self.get(name)).ref if isinstance(name, str) else name


class DeadLetters(Resource):
    """Jobs whose attempts are used up, kept until replayed or purged (O8): ``app.dead``."""

    @property
    def sync(self) -> SyncDeadLetters:
        """The same for code without an event loop: ``app.sync.dead``."""
        return SyncDeadLetters(self)

    async def list(
        self,
        which: JobFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        **fields: Unpack[JobFields],
    ) -> Page[Job]:
        """List dead letters, the newest first; see :meth:`Jobs.list`."""
        engine = await self._opened()
        return await engine.find(_dead(engine, filter_of(which, fields)), cursor=cursor, limit=limit)

    async def count(self, which: JobFilter | None = None, **fields: Unpack[JobFields]) -> int:
        """Count dead letters."""
        engine = await self._opened()
        return sum((await engine.count(_dead(engine, filter_of(which, fields)), by=GroupBy.STATUS)).values())

    async def replay(self, which: Which | None = None, *, all: bool = False, limit: int = 1000) -> Changes:
        """Re-enqueue one or some, or with ``all=True`` all of them, with a fresh attempt count; at most ``limit``."""
        engine = await self._opened()
        return await engine.replay(_dead(engine, _chosen(engine, which, all=all, verb="dead.replay")), limit=limit)

    async def purge(self, which: Which | None = None, *, all: bool = False, limit: int = 1000) -> Changes:
        """Delete one or some, or with ``all=True`` all of them, at most ``limit``."""
        engine = await self._opened()
        return await engine.delete(_dead(engine, _chosen(engine, which, all=all, verb="dead.purge")), limit=limit)


class Archive(Resource):
    """Ended jobs that their queue's retention has moved to the archive: ``app.archive``. See :class:`Retention`."""

    @property
    def sync(self) -> SyncArchive:
        """The same for code without an event loop: ``app.sync.archive``."""
        return SyncArchive(self)

    async def get(self, job: One) -> Job:
        """Read an archived job.

        Raises:
            JobNotFound: the archive has no such job.
        """
        engine = await self._opened()
        found = await engine.archived(_filter_of(engine, job), limit=1)
        if not found.items:
            raise JobNotFound(f"job {_name_of(job)} is not in the archive: it is still live, or has been pruned")
        return found.items[0]

    async def list(
        self,
        which: JobFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        **fields: Unpack[JobFields],
    ) -> Page[Job]:
        """List archived jobs, the latest first; see :meth:`Jobs.list`."""
        return await (await self._opened()).archived(filter_of(which, fields), cursor=cursor, limit=limit)

    async def count(
        self, which: JobFilter | None = None, *, by: CountBy = "status", **fields: Unpack[JobFields]
    ) -> Mapping[str, int]:
        """Count archived jobs by ``status``, ``queue``, ``type`` or ``org_id``."""
        return await (await self._opened()).count_archived(filter_of(which, fields), by=one_of("by", GroupBy, by))

    async def purge(self, which: Which | None = None, *, all: bool = False, limit: int = 1000) -> Changes:
        """Delete one or some, or with ``all=True`` all of them, before their time; at most ``limit``."""
        engine = await self._opened()
        return await engine.purge_archived(_chosen(engine, which, all=all, verb="archive.purge"), limit=limit)


class Queues(Resource):
    """The lanes that jobs wait in: ``app.queues``."""

    @property
    def sync(self) -> SyncQueues:
        """The same for code without an event loop: ``app.sync.queues``."""
        return SyncQueues(self)

    async def list(self, pattern: str = "*") -> list[QueueInfo]:
        """List queues with their settings and depth: all of them, or those of a pattern (``mail/*``)."""
        return await (await self._opened()).queues(pattern)

    async def get(self, name: str) -> QueueInfo:
        """Read one queue.

        Raises:
            QueueNotFound: there is none of that name; the message has the nearest.
        """
        engine = await self._opened()
        if found := await engine.queues(name):
            return found[0]
        known = [queue.name for queue in await engine.queues()]
        raise QueueNotFound(f"there is no queue {name!r}{nearest(name, known)}")

    async def pause(self, name: str, *, reason: str | None = None, by: str | None = None) -> QueueInfo:
        """Start no job of the queue until it is resumed. Running jobs go on.

        Args:
            name: of the queue.
            reason: shown with the queue: ``"the provider is down"``.
            by: the author, shown with it: ``"cli:anna@host"``.
        """
        change = QueueChange(
            paused=True,
            pause_reason=UNSET if reason is None else reason,
            paused_by=UNSET if by is None else by,
        )
        return await (await self._opened()).configure(name, change)

    async def resume(self, name: str) -> QueueInfo:
        """Go on with a paused queue."""
        return await (await self._opened()).configure(name, QueueChange(paused=False))

    async def configure(
        self,
        name: str,
        *,
        paused: bool | UnsetType = UNSET,
        rate: Rate | str | UnsetType | None = UNSET,
        global_concurrency: int | UnsetType | None = UNSET,
        weight: int | UnsetType = UNSET,
        lease: timedelta | UnsetType | None = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        backoff: Backoff | UnsetType | None = UNSET,
        retention: Retention | UnsetType = UNSET,
    ) -> QueueInfo:
        """Change settings of a queue, and create it if there is none. What is not given stays as it is.

        Args:
            name: of the queue.
            paused: start no job; running ones go on.
            rate: how often jobs start, across all workers: ``Rate(600)``, or ``"600/min"``; None: no limit.
            global_concurrency: how many jobs run at once, across all workers; None: no limit.
            weight: the queue's share of a claim over several queues.
            lease: how long a silent worker keeps its jobs; None: as the worker says.
            max_attempts: for jobs that do not say.
            backoff: for jobs that do not say.
            retention: how long finished jobs are kept.

        Raises:
            InvalidValue: a setting breaks a rule.
        """
        change = QueueChange(
            paused=paused,
            rate=Rate.parse(rate) if isinstance(rate, str) else rate,
            global_concurrency=global_concurrency,
            weight=weight,
            lease=lease,
            max_attempts=max_attempts,
            backoff=backoff,
            retention=retention,
        )
        return await (await self._opened()).configure(name, change)


class Workers(Resource):
    """The processes that run jobs: ``app.workers``."""

    @property
    def sync(self) -> SyncWorkers:
        """The same for code without an event loop: ``app.sync.workers``."""
        return SyncWorkers(self)

    async def list(self) -> list[WorkerInfo]:
        """List the workers that have registered and not gone."""
        return await (await self._opened()).workers()

    async def quiet(self, worker_id: str) -> bool:
        """Have a worker claim no more jobs; those that it holds go on. Answers whether it is registered.

        The worker learns of it with its next heartbeat, within a quarter of its lease.
        """
        return await (await self._opened()).command_worker(worker_id, WorkerCommand.QUIET)

    async def resume(self, worker_id: str) -> bool:
        """Have a quiet worker claim jobs again. Answers whether it is registered."""
        return await (await self._opened()).command_worker(worker_id, WorkerCommand.RESUME)

    async def stop(self, worker_id: str) -> bool:
        """Have a worker stop in good order, as after SIGTERM. Answers whether it is registered.

        What started the worker may start another: ``onward work --processes``, systemd, Kubernetes.
        """
        return await (await self._opened()).command_worker(worker_id, WorkerCommand.STOP)


def _name_of(job: One) -> JobRef | str:
    if isinstance(job, str | JobRef):
        return job
    return job.ref if job.ref.queue else job.ref.id  # a handle that was made from an id alone


def filter_of(which: JobFilter | None, fields: JobFields) -> JobFilter:
    """Make a filter of the keywords of a call, or take the one that was given."""
    if which is not None:
        if fields:
            raise InvalidValue("which", which, f"give a JobFilter or keywords ({', '.join(fields)}), not both")
        return which
    given: dict[str, Any] = dict(fields)
    for name, field in (("queue", "queues"), ("type", "types")):
        if (value := given.pop(name, None)) is not None:
            given[field] = (value,) if isinstance(value, str) else tuple(value)
    if (status := given.pop("status", None)) is not None:
        words = (status,) if isinstance(status, str) else tuple(status)
        given["status"] = frozenset(one_of("status", JobStatus, word) for word in words)
    return JobFilter(**given)


def _filter_of(engine: CheckedEngine, which: Which) -> JobFilter:
    if isinstance(which, JobFilter):
        return which
    name = engine.name_of(which) if isinstance(which, str) else _name_of(which)
    return JobFilter(ids=(name,)) if isinstance(name, str) else JobFilter(refs=(name,))


def _chosen(engine: CheckedEngine, which: Which | None, *, all: bool, verb: str) -> JobFilter:
    if which is None:
        if not all:
            raise InvalidValue("which", None, f"give {verb} a job or a filter, or all=True for every one")
        return JobFilter()
    if all:
        raise InvalidValue("all", all, "give a job or a filter, or all=True, not both")
    return _filter_of(engine, which)


def _dead(engine: CheckedEngine, which: Which) -> JobFilter:
    # An engine that cannot tell dead letters from other failures shows those too (O1).
    status = frozenset({engine.capabilities.shown(JobStatus.DEAD_LETTER)})
    return msgspec.structs.replace(_filter_of(engine, which), status=status)


class Schedules(Resource):
    """Jobs that are enqueued periodically: ``app.schedules``. Those in the code are declared by ``@app.schedule``."""

    def __init__(
        self,
        opened: Opened,
        enqueue_many: Callable[[list[NewJob]], Awaitable[list[JobHandle[Any]]]],
        *,
        loop: LoopThread | None = None,
    ) -> None:
        super().__init__(opened, loop=loop)
        self._enqueue_many = enqueue_many

    @property
    def sync(self) -> SyncSchedules:
        """The same for code without an event loop: ``app.sync.schedules``."""
        return SyncSchedules(self)

    async def list(self) -> list[Schedule]:
        """List all, by name."""
        return await (await self._opened()).schedules()

    async def get(self, name: str) -> Schedule:
        """Read one.

        Raises:
            ScheduleNotFound: there is none of that name; the message has the nearest.
        """
        known = {schedule.name: schedule for schedule in await self.list()}
        if name not in known:
            raise ScheduleNotFound(f"there is no schedule {name!r}{nearest(name, known)}")
        return known[name]

    async def set(
        self,
        name: str,
        job: NewJob,
        cron: str | None = None,
        *,
        every: timedelta | None = None,
        timezone: str = "UTC",
        missed: Literal["skip", "once", "all"] | None = None,
    ) -> Schedule:
        """Create or change a schedule: ``set("digest/42", digest.job(user=42), "0 7 * * *")``.

        Args:
            name: of the schedule.
            job: to enqueue, as a task's ``job(…)`` makes it.
            cron: a cron expression of five fields.
            every: instead of it, the interval between two runs.
            timezone: of the cron expression.
            missed: as in :meth:`App.schedule`.

        Raises:
            InvalidValue: the expression, the time zone or the job is not valid.
            Unsupported: the store has no schedules by interval, or no such policy for missed times.
        """
        trigger = trigger_of(cron, every=every, timezone=timezone)
        requested = None if missed is None else one_of("missed", Missed, missed)
        policy = (await self._opened()).capabilities.missed_policy(requested)
        schedule = Schedule(name=name, job=job, trigger=trigger, missed=policy)
        return await self._go_on(schedule)

    async def pause(self, name: str) -> Schedule:
        """Let no turn come until it is resumed."""
        schedule = await self.get(name)
        return await (await self._opened()).save_schedule(schedule.stopped())

    async def resume(self, name: str) -> Schedule:
        """Go on with the next turn from now; those that passed meanwhile were not missed."""
        schedule = await self.get(name)
        return await self._go_on(schedule) if schedule.paused else schedule

    async def delete(self, name: str) -> None:
        """Remove one; the jobs that it made stay.

        Raises:
            ScheduleNotFound: there is none of that name.
        """
        if not await (await self._opened()).delete_schedule(name):
            await self.get(name)

    async def run(self, name: str) -> JobHandle[Any]:
        """Enqueue its job now, besides its turns."""
        return (await self._enqueue_many([(await self.get(name)).job]))[0]

    async def _go_on(self, schedule: Schedule) -> Schedule:
        engine = await self._opened()
        return await engine.save_schedule(schedule.going_on((await engine.due_schedules(limit=1)).now))
