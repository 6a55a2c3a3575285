"""The sync API: ``app.sync``, ``task.sync``, ``handle.sync``, … for code without an event loop.

Generated from the async classes; do not edit. After a change to those: ``python -m tests.app.generate_sync``.

Every call has the signature of its async form, and blocks. Enqueueing and completing happen on the caller's thread;
everything else is run by the App's loop thread: see :mod:`onward.loop_thread`. Inside a running event loop each call
raises :class:`onward.EventLoopRunning`.
"""

# mypy: disable-error-code="overload-overlap"
# ruff: noqa: SLF001 - the two forms of a class are one

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import msgspec
from msgspec import UNSET

from onward.job import R_co
from onward.loop_thread import refuse_inside_loop

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Literal, Self, Unpack

    from msgspec import UnsetType

    from onward.app import App
    from onward.backoff import Backoff
    from onward.batches.resources import Batch, Batches, Flow, Parent, Step
    from onward.batches.values import BatchInfo, Dependency
    from onward.connection import Connection
    from onward.context import JobContext
    from onward.engine.values import JobFilter, Page, QueueInfo, Rate, Retention, WorkerInfo
    from onward.errors import OnwardError
    from onward.events import AnyEvent, Event
    from onward.handle import JobHandle
    from onward.job import EnqueueStatus, Job, JobRef, NewJob
    from onward.metering import Usage
    from onward.resources import (
        Archive,
        Changes,
        CountBy,
        DeadLetters,
        JobFields,
        Jobs,
        LogLines,
        One,
        Queues,
        Reasons,
        Schedules,
        Which,
        Workers,
    )
    from onward.schedule import Schedule
    from onward.task import Task
    from onward.worker.one_shot import TickReport
    from onward.worker_options import WorkerOptions

P = ParamSpec("P")
R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")


class SyncJobHandle(msgspec.Struct, Generic[R_co], eq=False, gc=False):
    """The sync form of :class:`~onward.handle.JobHandle`: ``handle.sync``."""

    _inner: JobHandle[R_co]

    @property
    def ref(self) -> JobRef:
        """The job's name. The queue of a handle that was made from an id alone is empty until the job has been read."""
        return self._inner.ref

    @property
    def enqueue_status(self) -> EnqueueStatus | None:
        """What the enqueue did: made a job, or found one with the same key. None: the handle was made from an id."""
        return self._inner.enqueue_status

    def __repr__(self) -> str:
        """Name the job."""
        return f"<Sync{self._inner.__repr__()[1:]}"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._inner.id

    @property
    def is_new(self) -> bool:
        """Whether the enqueue made the job, and did not find one with the same key."""
        return self._inner.is_new

    def info(self) -> Job:
        """Read the job as the store has it now.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
        """
        refuse_inside_loop("handle.sync.info", "await handle.info(…)")
        return self._inner._loop.run(self._inner.info)

    def watch(self) -> Generator[Job, None, None]:
        """Yield the job now and whenever it has changed (its status, progress, errors), until it has ended.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
        """
        refuse_inside_loop("handle.sync.watch", "async for … in handle.watch(…)")
        return self._inner._loop.iterate(self._inner.watch)

    def wait(self, *, timeout: timedelta | float | None = None) -> Job:
        """Wait until the job has ended, however it ended, and read it.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
            TimeoutError: it has not ended in that time. The job goes on.
        """
        refuse_inside_loop("handle.sync.wait", "await handle.wait(…)")
        return self._inner._loop.run(lambda: self._inner.wait(timeout=timeout))

    def result(self, *, timeout: timedelta | float | None = None) -> R_co:
        """Wait until the job has ended, and give what its handler returned.

        Raises:
            JobFailed: it failed for good, or its attempts are used up.
            JobCancelled: it was cancelled.
            JobExpired: it had not started by its ``start_by``.
            JobNotFound: it is gone: deleted, or no longer kept.
            TimeoutError: it has not ended in that time. The job goes on.
        """
        refuse_inside_loop("handle.sync.result", "await handle.result(…)")
        return self._inner._loop.run(lambda: self._inner.result(timeout=timeout))

    def cancel(self, *, reason: str = "cancelled by its handle") -> bool:
        """Cancel the job, as :meth:`app.jobs.cancel` does. Answers whether it was cancelled: False, if it had ended."""
        refuse_inside_loop("handle.sync.cancel", "await handle.cancel(…)")
        return self._inner._loop.run(lambda: self._inner.cancel(reason=reason))


class SyncTask(Generic[P, R]):
    """The sync form of :class:`~onward.task.Task`: ``task.sync``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Task[P, R]) -> None:
        self._inner = inner

    def handle(self, id: str | JobRef) -> SyncJobHandle[R]:
        """Make a handle from the id of a job of this task: ``send_mail.sync.handle(id).result()``. Reads nothing.

        Where ids are not global, an id alone is one of the task's own queue; ``"queue:id"`` names another.

        Raises:
            InvalidValue: it is an id alone, and the task's jobs are in several queues.
        """
        return SyncJobHandle(self._inner.handle(id))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Store a job that will call the function with these arguments. Durable when it returns.

        Raises:
            InvalidPayload: the arguments do not fit the function.
            InvalidValue: an option breaks a rule.
            Unsupported: the engine does not offer an option.
        """
        refuse_inside_loop("task.sync.enqueue", "await task.enqueue(…)")
        return SyncJobHandle(self._inner._enqueue_sync(*args, **kwargs))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[SyncJobHandle[R]]:
        """Store many jobs at once, all or none: each call is the arguments by name, or a tuple of them by position."""
        refuse_inside_loop("task.sync.enqueue_many", "await task.enqueue_many(…)")
        return [SyncJobHandle(each) for each in self._inner._enqueue_many_sync(calls)]


class SyncJobContext:
    """The sync form of :class:`~onward.context.JobContext`: ``context.sync``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: JobContext) -> None:
        self._inner = inner

    def dependencies(self) -> list[Job]:
        """Read the jobs that this one has waited for, each with its ``result``, in the order in which it named them.

        Those that are no longer kept are left out.
        """
        refuse_inside_loop("context.sync.dependencies", "await context.dependencies(…)")
        return self._inner._dependencies_sync()

    def complete(self, result: Any = None, *, connection: Connection) -> None:
        """Complete the job in a transaction of the handler's own, so that it is done if and only if that commits (X3).

        Call it last before the commit. What the handler returns afterwards is not recorded. If the transaction is
        rolled back after all, the run counts as failed. Log and report progress before the transaction begins: a job
        that is done takes no more lines.

        Raises:
            ClaimLost: the job is no longer held by this run; roll back.
            Unsupported: the engine cannot take part in a transaction of yours.
            WrongIsolation: the transaction is REPEATABLE READ or SERIALIZABLE (PostgreSQL). A run that fails because of
                it costs no attempt: the job runs again a minute later.
        """
        refuse_inside_loop("context.sync.complete", "await context.complete(…)")
        self._inner._complete_sync(result, connection=connection)


class SyncJobs:
    """The sync form of :class:`~onward.resources.Jobs`: ``app.sync.jobs``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Jobs) -> None:
        self._inner = inner

    def handle(self, job: str | JobRef | Job) -> SyncJobHandle[Any]:
        """Make a handle from the name of a job: ``app.jobs.handle(id)``, where ids are not global ``"queue:id"``.

        Reads nothing. ``task.handle(id)`` gives one that knows the type of the result.

        Raises:
            InvalidValue: it is an id alone, and several queues may have a job of that id.
        """
        return SyncJobHandle(self._inner.handle(job))

    def get(self, job: One) -> Job:
        """Read a job.

        Raises:
            JobNotFound: there is none of that name.
        """
        refuse_inside_loop("app.sync.jobs.get", "await app.jobs.get(…)")
        return self._inner._loop.run(lambda: self._inner.get(job))

    def explain(self, job: One) -> Reasons:
        """Tell why a job is not running: everything that stands in its way.

        Raises:
            JobNotFound: there is none of that name.
        """
        refuse_inside_loop("app.sync.jobs.explain", "await app.jobs.explain(…)")
        return self._inner._loop.run(lambda: self._inner.explain(job))

    def list(
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
        refuse_inside_loop("app.sync.jobs.list", "await app.jobs.list(…)")
        return self._inner._loop.run(
            lambda: self._inner.list(which, cursor=cursor, limit=limit, newest_first=newest_first, **fields)
        )

    def iterate(
        self, which: JobFilter | None = None, *, newest_first: bool = True, **fields: Unpack[JobFields]
    ) -> Generator[Job, None, None]:
        """Iterate over all selected jobs, page by page: ``for job in app.sync.jobs.iterate(status="failed")``."""
        refuse_inside_loop("app.sync.jobs.iterate", "async for … in app.jobs.iterate(…)")
        return self._inner._loop.iterate(lambda: self._inner.iterate(which, newest_first=newest_first, **fields))

    def count(
        self, which: JobFilter | None = None, *, by: CountBy = "status", **fields: Unpack[JobFields]
    ) -> Mapping[str, int]:
        """Count the selected jobs by ``status``, ``queue``, ``type`` or ``org_id``."""
        refuse_inside_loop("app.sync.jobs.count", "await app.jobs.count(…)")
        return self._inner._loop.run(lambda: self._inner.count(which, by=by, **fields))

    def cancel(self, which: Which, *, reason: str = "cancelled", limit: int = 1000) -> Changes:
        """Take jobs back. The handler of a running one is stopped, as far as it can be."""
        refuse_inside_loop("app.sync.jobs.cancel", "await app.jobs.cancel(…)")
        return self._inner._loop.run(lambda: self._inner.cancel(which, reason=reason, limit=limit))

    def replay(self, which: Which, *, limit: int = 1000) -> Changes:
        """Give failed, buried and cancelled jobs a new life: ready now, with all their attempts."""
        refuse_inside_loop("app.sync.jobs.replay", "await app.jobs.replay(…)")
        return self._inner._loop.run(lambda: self._inner.replay(which, limit=limit))

    def delete(self, which: Which, *, limit: int = 1000) -> Changes:
        """Remove jobs and their keys. One that is being run stays."""
        refuse_inside_loop("app.sync.jobs.delete", "await app.jobs.delete(…)")
        return self._inner._loop.run(lambda: self._inner.delete(which, limit=limit))

    def edit(
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
        refuse_inside_loop("app.sync.jobs.edit", "await app.jobs.edit(…)")
        return self._inner._loop.run(
            lambda: self._inner.edit(job, priority=priority, payload=payload, run_at=run_at, max_attempts=max_attempts)
        )

    def logs(self, job: One) -> LogLines:
        """Read what a job's handler has written."""
        refuse_inside_loop("app.sync.jobs.logs", "await app.jobs.logs(…)")
        return self._inner._loop.run(lambda: self._inner.logs(job))


class SyncDeadLetters:
    """The sync form of :class:`~onward.resources.DeadLetters`: ``app.sync.dead``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: DeadLetters) -> None:
        self._inner = inner

    def list(
        self, which: JobFilter | None = None, *, cursor: str | None = None, limit: int = 50, **fields: Unpack[JobFields]
    ) -> Page[Job]:
        """List dead letters, the newest first; see :meth:`Jobs.list`."""
        refuse_inside_loop("app.sync.dead.list", "await app.dead.list(…)")
        return self._inner._loop.run(lambda: self._inner.list(which, cursor=cursor, limit=limit, **fields))

    def count(self, which: JobFilter | None = None, **fields: Unpack[JobFields]) -> int:
        """Count dead letters."""
        refuse_inside_loop("app.sync.dead.count", "await app.dead.count(…)")
        return self._inner._loop.run(lambda: self._inner.count(which, **fields))

    def replay(self, which: Which | None = None, *, all: bool = False, limit: int = 1000) -> Changes:
        """Re-enqueue one or some, or with ``all=True`` all of them, with a fresh attempt count; at most ``limit``."""
        refuse_inside_loop("app.sync.dead.replay", "await app.dead.replay(…)")
        return self._inner._loop.run(lambda: self._inner.replay(which, all=all, limit=limit))

    def purge(self, which: Which | None = None, *, all: bool = False, limit: int = 1000) -> Changes:
        """Delete one or some, or with ``all=True`` all of them, at most ``limit``."""
        refuse_inside_loop("app.sync.dead.purge", "await app.dead.purge(…)")
        return self._inner._loop.run(lambda: self._inner.purge(which, all=all, limit=limit))


class SyncArchive:
    """The sync form of :class:`~onward.resources.Archive`: ``app.sync.archive``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Archive) -> None:
        self._inner = inner

    def get(self, job: One) -> Job:
        """Read an archived job.

        Raises:
            JobNotFound: the archive has no such job.
        """
        refuse_inside_loop("app.sync.archive.get", "await app.archive.get(…)")
        return self._inner._loop.run(lambda: self._inner.get(job))

    def list(
        self, which: JobFilter | None = None, *, cursor: str | None = None, limit: int = 50, **fields: Unpack[JobFields]
    ) -> Page[Job]:
        """List archived jobs, the latest first; see :meth:`Jobs.list`."""
        refuse_inside_loop("app.sync.archive.list", "await app.archive.list(…)")
        return self._inner._loop.run(lambda: self._inner.list(which, cursor=cursor, limit=limit, **fields))

    def count(
        self, which: JobFilter | None = None, *, by: CountBy = "status", **fields: Unpack[JobFields]
    ) -> Mapping[str, int]:
        """Count archived jobs by ``status``, ``queue``, ``type`` or ``org_id``."""
        refuse_inside_loop("app.sync.archive.count", "await app.archive.count(…)")
        return self._inner._loop.run(lambda: self._inner.count(which, by=by, **fields))

    def purge(self, which: Which | None = None, *, all: bool = False, limit: int = 1000) -> Changes:
        """Delete one or some, or with ``all=True`` all of them, before their time; at most ``limit``."""
        refuse_inside_loop("app.sync.archive.purge", "await app.archive.purge(…)")
        return self._inner._loop.run(lambda: self._inner.purge(which, all=all, limit=limit))


class SyncQueues:
    """The sync form of :class:`~onward.resources.Queues`: ``app.sync.queues``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Queues) -> None:
        self._inner = inner

    def list(self, pattern: str = "*") -> list[QueueInfo]:
        """List queues with their settings and depth: all of them, or those of a pattern (``mail/*``)."""
        refuse_inside_loop("app.sync.queues.list", "await app.queues.list(…)")
        return self._inner._loop.run(lambda: self._inner.list(pattern))

    def get(self, name: str) -> QueueInfo:
        """Read one queue.

        Raises:
            QueueNotFound: there is none of that name; the message has the nearest.
        """
        refuse_inside_loop("app.sync.queues.get", "await app.queues.get(…)")
        return self._inner._loop.run(lambda: self._inner.get(name))

    def pause(self, name: str, *, reason: str | None = None, by: str | None = None) -> QueueInfo:
        """Start no job of the queue until it is resumed. Running jobs go on.

        Args:
            name: of the queue.
            reason: shown with the queue: ``"the provider is down"``.
            by: the author, shown with it: ``"cli:anna@host"``.
        """
        refuse_inside_loop("app.sync.queues.pause", "await app.queues.pause(…)")
        return self._inner._loop.run(lambda: self._inner.pause(name, reason=reason, by=by))

    def resume(self, name: str) -> QueueInfo:
        """Go on with a paused queue."""
        refuse_inside_loop("app.sync.queues.resume", "await app.queues.resume(…)")
        return self._inner._loop.run(lambda: self._inner.resume(name))

    def configure(
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
        refuse_inside_loop("app.sync.queues.configure", "await app.queues.configure(…)")
        return self._inner._loop.run(
            lambda: self._inner.configure(
                name,
                paused=paused,
                rate=rate,
                global_concurrency=global_concurrency,
                weight=weight,
                lease=lease,
                max_attempts=max_attempts,
                backoff=backoff,
                retention=retention,
            )
        )


class SyncWorkers:
    """The sync form of :class:`~onward.resources.Workers`: ``app.sync.workers``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Workers) -> None:
        self._inner = inner

    def list(self) -> list[WorkerInfo]:
        """List the workers that have registered and not gone."""
        refuse_inside_loop("app.sync.workers.list", "await app.workers.list(…)")
        return self._inner._loop.run(self._inner.list)

    def quiet(self, worker_id: str) -> bool:
        """Have a worker claim no more jobs; those that it holds go on. Answers whether it is registered.

        The worker learns of it with its next heartbeat, within a quarter of its lease.
        """
        refuse_inside_loop("app.sync.workers.quiet", "await app.workers.quiet(…)")
        return self._inner._loop.run(lambda: self._inner.quiet(worker_id))

    def resume(self, worker_id: str) -> bool:
        """Have a quiet worker claim jobs again. Answers whether it is registered."""
        refuse_inside_loop("app.sync.workers.resume", "await app.workers.resume(…)")
        return self._inner._loop.run(lambda: self._inner.resume(worker_id))

    def stop(self, worker_id: str) -> bool:
        """Have a worker stop in good order, as after SIGTERM. Answers whether it is registered.

        What started the worker may start another: ``onward work --processes``, systemd, Kubernetes.
        """
        refuse_inside_loop("app.sync.workers.stop", "await app.workers.stop(…)")
        return self._inner._loop.run(lambda: self._inner.stop(worker_id))


class SyncSchedules:
    """The sync form of :class:`~onward.resources.Schedules`: ``app.sync.schedules``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Schedules) -> None:
        self._inner = inner

    def list(self) -> list[Schedule]:
        """List all, by name."""
        refuse_inside_loop("app.sync.schedules.list", "await app.schedules.list(…)")
        return self._inner._loop.run(self._inner.list)

    def get(self, name: str) -> Schedule:
        """Read one.

        Raises:
            ScheduleNotFound: there is none of that name; the message has the nearest.
        """
        refuse_inside_loop("app.sync.schedules.get", "await app.schedules.get(…)")
        return self._inner._loop.run(lambda: self._inner.get(name))

    def set(
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
        refuse_inside_loop("app.sync.schedules.set", "await app.schedules.set(…)")
        return self._inner._loop.run(
            lambda: self._inner.set(name, job, cron, every=every, timezone=timezone, missed=missed)
        )

    def pause(self, name: str) -> Schedule:
        """Let no turn come until it is resumed."""
        refuse_inside_loop("app.sync.schedules.pause", "await app.schedules.pause(…)")
        return self._inner._loop.run(lambda: self._inner.pause(name))

    def resume(self, name: str) -> Schedule:
        """Go on with the next turn from now; those that passed meanwhile were not missed."""
        refuse_inside_loop("app.sync.schedules.resume", "await app.schedules.resume(…)")
        return self._inner._loop.run(lambda: self._inner.resume(name))

    def delete(self, name: str) -> None:
        """Remove one; the jobs that it made stay.

        Raises:
            ScheduleNotFound: there is none of that name.
        """
        refuse_inside_loop("app.sync.schedules.delete", "await app.schedules.delete(…)")
        self._inner._loop.run(lambda: self._inner.delete(name))

    def run(self, name: str) -> SyncJobHandle[Any]:
        """Enqueue its job now, besides its turns."""
        refuse_inside_loop("app.sync.schedules.run", "await app.schedules.run(…)")
        return SyncJobHandle(self._inner._loop.run(lambda: self._inner.run(name)))


class SyncBatch:
    """The sync form of :class:`~onward.batches.resources.Batch`: ``batch.sync``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Batch) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        """Name it."""
        return f"<Sync{self._inner.__repr__()[1:]}"

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    def __enter__(self) -> Self:
        """Make it in the store."""
        refuse_inside_loop("batch.sync", "async with batch")
        self._inner._loop.run(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Seal it; after an exception it stays open, for whoever goes on with it or cancels it."""
        self._inner._loop.run(lambda: self._inner.__aexit__(kind, error, trace))

    def add(self, jobs: Iterable[NewJob[R]], *, connection: Connection | None = None) -> list[SyncJobHandle[R]]:
        """Add jobs: ``batch.sync.add([resize.job(path=…), …])``, or ``batch.add(resize.jobs(calls))`` for many alike.

        Makes the batch where there is none. More than 10 000 come by several transactions, unless they come by
        ``connection`` in one of yours.

        Raises:
            InvalidValue: the batch has finished or was stopped, or a job breaks a rule.
        """
        refuse_inside_loop("batch.sync.add", "await batch.add(…)")
        return [SyncJobHandle(each) for each in self._inner._add_sync(jobs, connection=connection)]

    def seal(self) -> None:
        """Say that no job is to come but from its own: it finishes when all have ended."""
        refuse_inside_loop("batch.sync.seal", "await batch.seal(…)")
        self._inner._loop.run(self._inner.seal)

    def info(self) -> BatchInfo:
        """Read how it stands.

        Raises:
            BatchNotFound: there is none of that name.
        """
        refuse_inside_loop("batch.sync.info", "await batch.info(…)")
        return self._inner._loop.run(self._inner.info)

    def watch(self) -> Generator[BatchInfo, None, None]:
        """Tell how it stands, now and whenever that has changed, until it has finished."""
        refuse_inside_loop("batch.sync.watch", "async for … in batch.watch(…)")
        return self._inner._loop.iterate(self._inner.watch)

    def wait(self, *, timeout: timedelta | float | None = None) -> BatchInfo:
        """Wait until it has finished.

        Raises:
            TimeoutError: it has not finished in that time. It goes on.
        """
        refuse_inside_loop("batch.sync.wait", "await batch.wait(…)")
        return self._inner._loop.run(lambda: self._inner.wait(timeout=timeout))

    def cancel(self, *, reason: str = "cancelled with its batch") -> int:
        """Stop it: cancel what waits and what runs, and let nothing be added. Answers how many jobs that were."""
        refuse_inside_loop("batch.sync.cancel", "await batch.cancel(…)")
        return self._inner._loop.run(lambda: self._inner.cancel(reason=reason))

    def pause(self) -> None:
        """Start none of its jobs until it is resumed; what runs goes on.

        Raises:
            InvalidValue: it has no queue of its own, and pausing a shared one would pause others' jobs.
        """
        refuse_inside_loop("batch.sync.pause", "await batch.pause(…)")
        self._inner._loop.run(self._inner.pause)

    def resume(self) -> None:
        """Go on."""
        refuse_inside_loop("batch.sync.resume", "await batch.resume(…)")
        self._inner._loop.run(self._inner.resume)

    def dependencies(self) -> list[Dependency]:
        """List which of its jobs wait for which."""
        refuse_inside_loop("batch.sync.dependencies", "await batch.dependencies(…)")
        return self._inner._loop.run(self._inner.dependencies)

    def jobs(self, *, cursor: str | None = None, limit: int = 100) -> Page[Job]:
        """List its jobs, the oldest first; those still kept."""
        refuse_inside_loop("batch.sync.jobs", "await batch.jobs(…)")
        return self._inner._loop.run(lambda: self._inner.jobs(cursor=cursor, limit=limit))

    def flow(self) -> SyncFlow:
        """Plan further jobs that wait for each other, or for jobs that are there."""
        return SyncFlow(self._inner.flow())


class SyncFlow:
    """The sync form of :class:`~onward.batches.resources.Flow`: ``flow.sync``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Flow) -> None:
        self._inner = inner

    @property
    def batch(self) -> SyncBatch:
        """Its batch."""
        return self._inner.batch.sync

    def __len__(self) -> int:
        """Count its jobs."""
        return len(self._inner)

    def add(
        self,
        job: NewJob[R],
        *,
        after: Parent | Iterable[Parent] = (),
        on_dependency_failure: Literal["cancel", "skip", "run"] = "cancel",
    ) -> Step[R]:
        """Plan a job, ``after`` others: it runs when they have completed.

        Args:
            job: as a task's ``job(…)`` makes it.
            after: steps of this flow, or jobs that its batch has already.
            on_dependency_failure: what to do when one of those does not complete: ``cancel`` all of the flow that has
                not started, ``skip`` this job and what waits for it, or ``run`` it all the same.
        """
        return self._inner.add(job, after=after, on_dependency_failure=on_dependency_failure)

    def chain(self, *jobs: NewJob, after: Parent | Iterable[Parent] = ()) -> Step[Any]:
        """Plan jobs one after the other, and give the last."""
        return self._inner.chain(*jobs, after=after)

    def start(self, *, connection: Connection | None = None) -> SyncBatch:
        """Write all of it to the store, in one transaction, and begin.

        Raises:
            InvalidValue: the batch has finished or was stopped, or a job breaks a rule; nothing is written.
        """
        refuse_inside_loop("flow.sync.start", "await flow.start(…)")
        return SyncBatch(self._inner._start_sync(connection=connection))

    def handle(self, step: Step[R]) -> SyncJobHandle[R]:
        """Give the job that a step has become: ``flow.sync.handle(total).result()``.

        Raises:
            InvalidValue: the flow has not been started, or the step is of another flow.
        """
        return SyncJobHandle(self._inner.handle(step))


class SyncBatches:
    """The sync form of :class:`~onward.batches.resources.Batches`: ``app.sync.batches``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Batches) -> None:
        self._inner = inner

    def list(self, *, cursor: str | None = None, limit: int = 50) -> Page[BatchInfo]:
        """List batches, the newest first."""
        refuse_inside_loop("app.sync.batches.list", "await app.batches.list(…)")
        return self._inner._loop.run(lambda: self._inner.list(cursor=cursor, limit=limit))

    def get(self, name: str) -> SyncBatch:
        """Find a batch that is there.

        Raises:
            BatchNotFound: there is none of that name; the message has the nearest.
        """
        refuse_inside_loop("app.sync.batches.get", "await app.batches.get(…)")
        return SyncBatch(self._inner._loop.run(lambda: self._inner.get(name)))

    def delete(self, name: str) -> None:
        """Forget a batch that has finished; its jobs stay for as long as their queue keeps them.

        Raises:
            BatchNotFound: there is none of that name.
            InvalidValue: it has not finished.
        """
        refuse_inside_loop("app.sync.batches.delete", "await app.batches.delete(…)")
        self._inner._loop.run(lambda: self._inner.delete(name))


class SyncApp:
    """The sync form of :class:`~onward.app.App`: ``app.sync``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: App) -> None:
        self._inner = inner

    @property
    def jobs(self) -> SyncJobs:
        """The sync form of ``app.jobs``."""
        return self._inner.jobs.sync

    @property
    def dead(self) -> SyncDeadLetters:
        """The sync form of ``app.dead``."""
        return self._inner.dead.sync

    @property
    def archive(self) -> SyncArchive:
        """The sync form of ``app.archive``."""
        return self._inner.archive.sync

    @property
    def queues(self) -> SyncQueues:
        """The sync form of ``app.queues``."""
        return self._inner.queues.sync

    @property
    def workers(self) -> SyncWorkers:
        """The sync form of ``app.workers``."""
        return self._inner.workers.sync

    @property
    def schedules(self) -> SyncSchedules:
        """The sync form of ``app.schedules``."""
        return self._inner.schedules.sync

    @property
    def batches(self) -> SyncBatches:
        """The sync form of ``app.batches``."""
        return self._inner.batches.sync

    def open(self) -> None:
        """Open the store, and migrate its schema where it is ours. Idempotent."""
        refuse_inside_loop("app.sync.open", "await app.open(…)")
        self._inner._loop.run(self._inner.open)

    def close(self) -> None:
        """Close the store. Idempotent; the next use opens it again, unless it was a temporary one."""
        refuse_inside_loop("app.sync.close", "await app.close(…)")
        self._inner._close_sync()

    def __enter__(self) -> Self:
        """Open the store for the length of a block."""
        refuse_inside_loop("app.sync", "async with app")
        self._inner._loop.run(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._inner._aexit_sync(kind, error, trace)

    def enqueue(
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
    ) -> SyncJobHandle[Any]:
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
        refuse_inside_loop("app.sync.enqueue", "await app.enqueue(…)")
        return SyncJobHandle(
            self._inner._enqueue_sync(
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
                connection=connection,
            )
        )

    @overload
    def enqueue_many(
        self, jobs: tuple[NewJob[R1], NewJob[R2]], *, connection: Connection | None = None
    ) -> tuple[SyncJobHandle[R1], SyncJobHandle[R2]]: ...
    @overload
    def enqueue_many(
        self, jobs: tuple[NewJob[R1], NewJob[R2], NewJob[R3]], *, connection: Connection | None = None
    ) -> tuple[SyncJobHandle[R1], SyncJobHandle[R2], SyncJobHandle[R3]]: ...
    @overload
    def enqueue_many(
        self, jobs: tuple[NewJob[R1], NewJob[R2], NewJob[R3], NewJob[R4]], *, connection: Connection | None = None
    ) -> tuple[SyncJobHandle[R1], SyncJobHandle[R2], SyncJobHandle[R3], SyncJobHandle[R4]]: ...
    @overload
    def enqueue_many(
        self, jobs: tuple[NewJob[R], ...], *, connection: Connection | None = None
    ) -> tuple[SyncJobHandle[R], ...]: ...
    @overload
    def enqueue_many(
        self, jobs: Iterable[NewJob[R]], *, connection: Connection | None = None
    ) -> list[SyncJobHandle[R]]: ...
    def enqueue_many(self, jobs: Iterable[NewJob], *, connection: Connection | None = None) -> Any:
        """Store jobs of any tasks at once, all or none: ``[send_mail.job(to=…), resize.job(path=…), …]``.

        A tuple of jobs gives a tuple of handles, of which each keeps its type; anything else gives a list. With
        ``connection``, a connection of yours with a transaction open, the jobs exist if and only if that commits.
        """
        refuse_inside_loop("app.sync.enqueue_many", "await app.enqueue_many(…)")
        made = self._inner._enqueue_many_sync(jobs, connection=connection)
        return type(made)(map(SyncJobHandle, made))

    @overload
    def gather(
        self,
        handles: tuple[SyncJobHandle[R1], SyncJobHandle[R2]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2]: ...
    @overload
    def gather(
        self,
        handles: tuple[SyncJobHandle[R1], SyncJobHandle[R2], SyncJobHandle[R3]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3]: ...
    @overload
    def gather(
        self,
        handles: tuple[SyncJobHandle[R1], SyncJobHandle[R2], SyncJobHandle[R3], SyncJobHandle[R4]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4]: ...
    @overload
    def gather(
        self,
        handles: tuple[SyncJobHandle[R], ...],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R, ...]: ...
    @overload
    def gather(
        self,
        handles: Iterable[SyncJobHandle[R]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def gather(
        self,
        handles: tuple[SyncJobHandle[R1], SyncJobHandle[R2]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> tuple[R1 | OnwardError, R2 | OnwardError]: ...
    @overload
    def gather(
        self,
        handles: tuple[SyncJobHandle[R1], SyncJobHandle[R2], SyncJobHandle[R3]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> tuple[R1 | OnwardError, R2 | OnwardError, R3 | OnwardError]: ...
    @overload
    def gather(
        self,
        handles: tuple[SyncJobHandle[R], ...],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> tuple[R | OnwardError, ...]: ...
    @overload
    def gather(
        self, handles: Iterable[SyncJobHandle[R]], *, timeout: timedelta | float | None = None, return_exceptions: bool
    ) -> list[R | OnwardError]: ...
    def gather(
        self,
        handles: Iterable[SyncJobHandle[Any]],
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
        refuse_inside_loop("app.sync.gather", "await app.gather(…)")
        return self._inner._gather_sync(handles, timeout=timeout, return_exceptions=return_exceptions)

    def batch(
        self,
        name: str | None = None,
        *,
        queue: str | None = None,
        on_success: NewJob | None = None,
        on_failure: NewJob | None = None,
        on_finished: NewJob | None = None,
    ) -> SyncBatch:
        """Name a set of jobs that are counted together: ``with app.sync.batch("import-42") as batch:``.

        It is made by the first :meth:`Batch.add`, or by ``async with``, which also seals it at the end. Give the name
        of one that is there to add to it.

        Args:
            name: its name in the store; a new one unless given.
            queue: one of its own, which all its jobs are put in: so it can be paused and limited by itself.
            on_success: a job to enqueue when all of its jobs have completed.
            on_failure: a job to enqueue when the first of them has failed for good.
            on_finished: a job to enqueue when all of them have ended.
        """
        return SyncBatch(
            self._inner.batch(name, queue=queue, on_success=on_success, on_failure=on_failure, on_finished=on_finished)
        )

    def flow(
        self,
        name: str | None = None,
        *,
        queue: str | None = None,
        on_success: NewJob | None = None,
        on_failure: NewJob | None = None,
        on_finished: NewJob | None = None,
    ) -> SyncFlow:
        """Plan jobs that wait for each other: a batch whose jobs have an order. See :meth:`batch` for the arguments."""
        return SyncFlow(
            self._inner.flow(name, queue=queue, on_success=on_success, on_failure=on_failure, on_finished=on_finished)
        )

    def events(
        self, *queues: str, types: Iterable[type[Event]] = (), cursor: str | None = None
    ) -> Generator[AnyEvent, None, None]:
        """Stream what happens to jobs: ``for event in app.sync.events("mail/*", types=[events.Failed])``.

        Args:
            queues: names and patterns; all queues unless given.
            types: the kinds of events, from :mod:`onward.events`; all unless given.
            cursor: of an event, to continue after it; ``events.OLDEST`` for all that is still kept; from now on unless
                given.
        """
        refuse_inside_loop("app.sync.events", "async for … in app.events(…)")
        return self._inner._events_sync(*queues, types=types, cursor=cursor)

    def usage(
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
        """Sum up the runs of jobs: ``app.sync.usage(bucket="day", by=["org_id", "type"], since=…)``.

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
        refuse_inside_loop("app.sync.usage", "await app.usage(…)")
        return self._inner._loop.run(
            lambda: self._inner.usage(
                bucket=bucket, by=by, since=since, until=until, org_id=org_id, queue=queue, type=type
            )
        )

    def metrics(self) -> str:
        """Write metrics of queues, workers and runs in Prometheus's text format."""
        refuse_inside_loop("app.sync.metrics", "await app.metrics(…)")
        return self._inner._loop.run(self._inner.metrics)

    def work(self, **options: Unpack[WorkerOptions]) -> None:
        """Run jobs until cancelled: then outcomes of finished runs are stored, and all other jobs released."""
        refuse_inside_loop("app.sync.work", "await app.work(…)")
        self._inner._loop.run(lambda: self._inner.work(**options))

    def tick(self, limit: int = 100, *, timeout: timedelta | float | None = None) -> TickReport:
        """Do in one call what a worker does all the time (H7), for a serverless host or a plain cron.

        Fires schedules, promotes due jobs, rescues jobs of dead workers, then claims at most ``limit`` jobs, runs them
        in this process and records how they ended. After ``timeout`` it claims nothing more, cancels the handlers that
        still run, and releases their jobs; a plain ``def`` cannot be stopped, and its thread is left to end by itself.

        Raises:
            StoreMisconfigured: the server would lose jobs. Nothing was done.
        """
        refuse_inside_loop("app.sync.tick", "await app.tick(…)")
        return self._inner._loop.run(lambda: self._inner.tick(limit, timeout=timeout))
