"""The faces by which people look at an App's jobs, queues and workers, and press its buttons.

Each is thin: a verb of the engine, a name for it, and an error that helps. ``which`` says which jobs: the name of one
(its id, its :class:`JobRef`, the handle that its enqueue gave), or a :class:`JobFilter` for many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from onward.arguments import nearest, to_json
from onward.backoff import Backoff
from onward.cron import rhythm_of
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
    WorkerInfo,
)
from onward.errors import InvalidJob, JobNotFound
from onward.explain import Reason, explain
from onward.handle import JobHandle
from onward.job import Job, JobRef, NewJob
from onward.lifecycle import HELD, State
from onward.schedule import Missed, Schedule
from onward.validation import one_of

One = str | JobRef | Job | JobHandle[Any]
"""One job, by any of its names."""
Which = One | JobFilter
"""Some jobs."""
_NAMED: Final = 5
"""Jobs that are told by name where there may be many."""
Opened = Callable[[], Awaitable[CheckedEngine]]
"""Gives the engine, open."""


class Jobs:
    """All jobs: ``app.jobs``."""

    def __init__(self, opened: Opened, *, timeout: timedelta) -> None:
        self._opened = opened
        self._timeout = timeout
        """How long a worker may be silent before it counts as dead."""

    async def get(self, job: One) -> Job:
        """Read a job.

        Raises:
            JobNotFound: there is none of that name.
        """
        found = await (await self._opened()).get(_name_of(job))
        if found is None:
            raise JobNotFound(f"there is no job {_name_of(job)}: it never was, was deleted, or is kept no longer")
        return found

    async def explain(self, job: One) -> list[Reason]:
        """Tell why a job is not running: everything that stands in its way.

        Raises:
            JobNotFound: there is none of that name.
        """
        engine = await self._opened()
        found = await self.get(job)
        held = JobFilter(queues=(found.queue,), states=frozenset(engine.capabilities.shown(state) for state in HELD))
        known, workers, holding, info = await asyncio.gather(
            engine.queues(found.queue), engine.workers(), engine.find(held, limit=_NAMED), engine.check()
        )
        parents = await engine.parents(found.ref) if found.status is State.BLOCKED and found.batch else ()
        return explain(
            found,
            queue=next((queue for queue in known if queue.name == found.queue), QueueInfo(name=found.queue)),
            workers=workers,
            holding=holding.items,
            now=info.now or datetime.now(UTC),
            timeout=self._timeout,
            parents=parents,
        )

    async def find(
        self,
        which: JobFilter | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        newest_first: bool = True,
    ) -> Page[Job]:
        """List jobs by when they were created; hand ``page.after`` in as ``after`` for more."""
        engine = await self._opened()
        return await engine.find(which or JobFilter(), after=after, limit=limit, newest_first=newest_first)

    async def count(self, which: JobFilter | None = None, *, by: GroupBy | str = GroupBy.STATE) -> Mapping[str, int]:
        """Count jobs by ``state``, ``queue``, ``type`` or ``org_id``."""
        return await (await self._opened()).count(which or JobFilter(), by=one_of("by", GroupBy, by))

    async def cancel(self, which: Which, *, reason: str = "cancelled", limit: int = 1000) -> list[Changed]:
        """Take jobs back. The handler of a running one is stopped, as far as it can be."""
        return await (await self._opened()).cancel(_filter_of(which), reason=reason, limit=limit)

    async def replay(self, which: Which, *, limit: int = 1000) -> list[Changed]:
        """Give failed, buried and cancelled jobs a new life: ready now, with all their attempts."""
        return await (await self._opened()).replay(_filter_of(which), limit=limit)

    async def delete(self, which: Which, *, limit: int = 1000) -> list[Changed]:
        """Remove jobs and their keys. One that is being run stays."""
        return await (await self._opened()).delete(_filter_of(which), limit=limit)

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
            raise JobNotFound(f"there is no job {ref} that waits: one that runs or has ended cannot be changed")
        return edited

    async def log_lines(self, job: One) -> list[LogLine]:
        """Read what a job's handler has written."""
        ref = await self._ref_of(job)
        return await (await self._opened()).log_lines(ref)

    async def _ref_of(self, job: One) -> JobRef:
        return (await self.get(job)).ref if isinstance(job, str) else job if isinstance(job, JobRef) else job.ref


class DeadLetters:
    """Jobs whose attempts are used up, kept until replayed or purged (O8): ``app.dead``."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    async def find(self, which: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page[Job]:
        """List them, the newest first."""
        engine = await self._opened()
        return await engine.find(_dead(engine, which or JobFilter()), after=after, limit=limit)

    async def count(self, which: JobFilter | None = None) -> int:
        """Count them."""
        engine = await self._opened()
        return sum((await engine.count(_dead(engine, which or JobFilter()), by=GroupBy.STATE)).values())

    async def replay(self, which: Which | None = None, *, limit: int = 1000) -> list[Changed]:
        """Give one, some, or (without ``which``) all of them a new life, at most ``limit`` at once."""
        engine = await self._opened()
        return await engine.replay(_dead(engine, which or JobFilter()), limit=limit)

    async def purge(self, which: Which | None = None, *, limit: int = 1000) -> list[Changed]:
        """Remove one, some, or (without ``which``) all of them, at most ``limit`` at once."""
        engine = await self._opened()
        return await engine.delete(_dead(engine, which or JobFilter()), limit=limit)


class Archive:
    """Ended jobs that their queue no longer keeps, for a while longer: ``app.archive``. See :class:`Retention`."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    async def get(self, job: One) -> Job:
        """Read an archived job.

        Raises:
            JobNotFound: there is none of that name.
        """
        found = await (await self._opened()).archived(_filter_of(job), limit=1)
        if not found.items:
            raise JobNotFound(
                f"there is no job {_name_of(job)} in the archive: it is kept still, or was there too long"
            )
        return found.items[0]

    async def find(self, which: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page[Job]:
        """List them, the last one first; hand ``page.after`` in as ``after`` for more."""
        return await (await self._opened()).archived(which or JobFilter(), after=after, limit=limit)

    async def count(self, which: JobFilter | None = None, *, by: GroupBy | str = GroupBy.STATE) -> Mapping[str, int]:
        """Count them by ``state``, ``queue``, ``type`` or ``org_id``."""
        return await (await self._opened()).count_archived(which or JobFilter(), by=one_of("by", GroupBy, by))

    async def purge(self, which: Which | None = None, *, limit: int = 1000) -> list[Changed]:
        """Remove one, some, or (without ``which``) all of them before their time, at most ``limit`` at once."""
        return await (await self._opened()).purge_archived(_filter_of(which or JobFilter()), limit=limit)


class Queues:
    """The lanes that jobs wait in: ``app.queues``."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    async def list(self, pattern: str = "*") -> list[QueueInfo]:
        """List queues with their settings and depth: all of them, or those of a pattern (``mail/*``)."""
        return await (await self._opened()).queues(pattern)

    async def get(self, name: str) -> QueueInfo:
        """Read one queue.

        Raises:
            InvalidJob: there is none of that name.
        """
        engine = await self._opened()
        if found := await engine.queues(name):
            return found[0]
        known = [queue.name for queue in await engine.queues()]
        raise InvalidJob("queue", name, f"there is no such queue{nearest(name, known)}")

    async def pause(self, name: str) -> QueueInfo:
        """Have no job of the queue started until it is resumed. Those that run go on."""
        return await (await self._opened()).configure(name, QueueChange(paused=True))

    async def resume(self, name: str) -> QueueInfo:
        """Go on with a paused queue."""
        return await (await self._opened()).configure(name, QueueChange(paused=False))

    async def limit(
        self,
        name: str,
        *,
        rate: Rate | UnsetType | None = UNSET,
        concurrency: int | UnsetType | None = UNSET,
    ) -> QueueInfo:
        """Limit how often jobs of the queue start, or how many run at once, by all workers together; None: no limit."""
        if rate is UNSET and concurrency is UNSET:
            raise InvalidJob("limit", name, "give rate=Rate(600), concurrency=10, or both")
        return await (await self._opened()).configure(name, QueueChange(rate=rate, concurrency=concurrency))

    async def configure(
        self,
        name: str,
        *,
        paused: bool | UnsetType = UNSET,
        rate: Rate | UnsetType | None = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        weight: int | UnsetType = UNSET,
        lease: timedelta | UnsetType | None = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        backoff: Backoff | UnsetType | None = UNSET,
        retention: Retention | UnsetType = UNSET,
    ) -> QueueInfo:
        """Change what a queue is told to do; makes the queue if there is none. What is not given stays as it is."""
        change = QueueChange(
            paused=paused,
            rate=rate,
            concurrency=concurrency,
            weight=weight,
            lease=lease,
            max_attempts=max_attempts,
            backoff=backoff,
            retention=retention,
        )
        return await (await self._opened()).configure(name, change)


class Workers:
    """The processes that run jobs: ``app.workers``."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    async def list(self) -> list[WorkerInfo]:
        """List the workers that have registered and not gone."""
        return await (await self._opened()).workers()


def _name_of(job: One) -> JobRef | str:
    return job if isinstance(job, str | JobRef) else job.ref


def _filter_of(which: Which) -> JobFilter:
    match which:
        case JobFilter():
            return which
        case str():
            return JobFilter(ids=(which,))
        case JobRef():
            return JobFilter(refs=(which,))
        case _:
            return JobFilter(refs=(which.ref,))


def _dead(engine: CheckedEngine, which: Which) -> JobFilter:
    # An engine that cannot tell dead letters from other failures shows those too (O1).
    states = frozenset({engine.capabilities.shown(State.DEAD_LETTER)})
    return msgspec.structs.replace(_filter_of(which), states=states)


class Schedules:
    """What is enqueued again and again: ``app.schedules``. Those in the code are declared by ``@app.every``."""

    def __init__(self, opened: Opened, enqueue_many: Callable[[list[NewJob]], Awaitable[list[JobHandle[Any]]]]) -> None:
        self._opened = opened
        self._enqueue_many = enqueue_many

    async def list(self) -> list[Schedule]:
        """List all, by name."""
        return await (await self._opened()).schedules()

    async def get(self, name: str) -> Schedule:
        """Read one.

        Raises:
            InvalidJob: there is none of that name; the message has the nearest.
        """
        known = {schedule.name: schedule for schedule in await self.list()}
        if name not in known:
            raise InvalidJob("schedule", name, f"there is no such schedule{nearest(name, known)}")
        return known[name]

    async def set(
        self,
        name: str,
        job: NewJob,
        every: str | timedelta,
        *,
        timezone: str = "UTC",
        missed: Missed | str = Missed.ONCE,
    ) -> Schedule:
        """Make a schedule, or change the one of that name: ``set("digest/42", digest.job(user=42), "0 7 * * *")``.

        Raises:
            InvalidJob: the expression, the time zone or the job cannot be kept.
        """
        rhythm = rhythm_of(every, timezone=timezone)
        schedule = Schedule(name=name, job=job, rhythm=rhythm, missed=one_of("missed", Missed, missed))
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
            InvalidJob: there is none of that name.
        """
        if not await (await self._opened()).delete_schedule(name):
            await self.get(name)

    async def run(self, name: str) -> JobHandle[Any]:
        """Enqueue its job now, besides its turns."""
        return (await self._enqueue_many([(await self.get(name)).job]))[0]

    async def _go_on(self, schedule: Schedule) -> Schedule:
        engine = await self._opened()
        return await engine.save_schedule(schedule.going_on((await engine.due_schedules(limit=1)).now))
