"""Batches and flows as people use them: ``app.batch``, ``app.flow``, ``app.batches``.

A :class:`Batch` is a name, and everything asked of it is asked of the store. A :class:`Flow` is a plan: jobs with what
each comes after, written to the store by one transaction when it is started.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar

import msgspec

from onward.arguments import nearest
from onward.batches.values import BatchInfo, Dependency, NewBatch
from onward.connection import Connection
from onward.control_flow import as_duration
from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter, Page, QueueChange
from onward.errors import BatchNotFound, InvalidValue
from onward.handle import JobHandle
from onward.job import Enqueued, Job, JobRef, NewJob, OnDependencyFailure, R_co, UniformJobs
from onward.loop_thread import LoopThread, complete_now
from onward.sync import SyncBatch, SyncBatches, SyncFlow, SyncJobHandle
from onward.validation import one_of
from onward.watch import watch

R = TypeVar("R")

Opened = Callable[[], Awaitable[CheckedEngine]]
"""Gives the engine, open."""
Handles = Callable[[Sequence[NewJob], list[Enqueued]], list[JobHandle[Any]]]
"""Makes handles of enqueued jobs."""
_AT_ONCE: Final = 10_000
"""Jobs that are added by one transaction."""


class Batch:
    """A named set of jobs: ``app.batch("import-42", on_finished=report.job())``."""

    def __init__(self, new: NewBatch, opened: Opened, handles: Handles, *, loop: LoopThread | None = None) -> None:
        self._new = new
        self._opened = opened
        self._handles = handles
        self._loop = loop or LoopThread()

    def __repr__(self) -> str:
        """Name it."""
        return f"<Batch {self.name}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._new.name

    @property
    def sync(self) -> SyncBatch:
        """The same for code without an event loop: ``app.batch("import-42").sync.add(jobs)``."""
        return SyncBatch(self)

    async def __aenter__(self) -> Self:
        """Make it in the store."""
        await self.add(())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Seal it; after an exception it stays open, for whoever goes on with it or cancels it."""
        if kind is None:
            await self.seal()

    async def add(self, jobs: Iterable[NewJob[R]], *, connection: Connection | None = None) -> list[JobHandle[R]]:
        """Add jobs: ``await batch.add([resize.job(path=…), …])``, or ``batch.add(resize.jobs(calls))`` for many alike.

        Makes the batch where there is none. More than 10 000 come by several transactions, unless they come by
        ``connection`` in one of yours.

        Raises:
            InvalidValue: the batch has finished or was stopped, or a job breaks a rule.
        """
        joined = self._joined(jobs)
        engine = await self._opened()
        added: list[Enqueued] = []
        step = _AT_ONCE if connection is None else max(1, len(joined))
        for first in range(0, max(1, len(joined)), step):
            added += await engine.save_batch(self._new, joined[first : first + step], connection=connection)
        return self._handles(joined, added)

    def _add_sync(self, jobs: Iterable[NewJob[R]], *, connection: Connection | None = None) -> list[JobHandle[R]]:
        if connection is None:
            return self._loop.run(lambda: self.add(jobs))
        self._loop.run(self._open)
        return complete_now(self.add(jobs, connection=connection))

    async def _open(self) -> None:
        await self._opened()

    def _joined(self, jobs: Iterable[NewJob]) -> Sequence[NewJob]:
        if isinstance(jobs, UniformJobs):
            return UniformJobs(self._join(jobs.template), jobs.payloads)
        return [self._join(job) for job in jobs]

    def _join(self, job: NewJob) -> NewJob:
        return msgspec.structs.replace(job, batch=self.name, queue=self._new.queue or job.queue)

    async def seal(self) -> None:
        """Say that no job is to come but from its own: it finishes when all have ended."""
        await (await self._opened()).save_batch(NewBatch(name=self.name, sealed=True))

    async def info(self) -> BatchInfo:
        """Read how it stands.

        Raises:
            BatchNotFound: there is none of that name.
        """
        found = (await (await self._opened()).batches(names=[self.name])).items
        if not found:
            raise BatchNotFound(f"there is no batch {self.name!r}: add jobs to it first")
        return found[0]

    async def watch(self) -> AsyncGenerator[BatchInfo, None]:
        """Tell how it stands, now and whenever that has changed, until it has finished."""
        engine = await self._opened()
        async with contextlib.aclosing(watch(engine, ("*",), self.info, lambda info: info.is_finished)) as told:
            async for info in told:
                yield info

    async def wait(self, *, timeout: timedelta | float | None = None) -> BatchInfo:
        """Wait until it has finished.

        Raises:
            TimeoutError: it has not finished in that time. It goes on.
        """
        seconds = None if timeout is None else as_duration("timeout", timeout).total_seconds()
        async with asyncio.timeout(seconds), contextlib.aclosing(self.watch()) as told:
            *_, last = [info async for info in told]
        return last

    async def cancel(self, *, reason: str = "cancelled with its batch") -> int:
        """Stop it: cancel what waits and what runs, and let nothing be added. Answers how many jobs that were."""
        engine = await self._opened()
        before = await self.info()
        if before.is_finished:
            return 0
        while await engine.cancel(JobFilter(batch=self.name), reason=reason):
            pass
        with contextlib.suppress(InvalidValue):  # by that it has finished already
            await engine.save_batch(NewBatch(name=self.name, sealed=True, stopped=True))
        return (await self.info()).cancelled - before.cancelled

    async def pause(self) -> None:
        """Start none of its jobs until it is resumed; what runs goes on.

        Raises:
            InvalidValue: it has no queue of its own, and pausing a shared one would pause others' jobs.
        """
        await self._set_paused(paused=True)

    async def resume(self) -> None:
        """Go on."""
        await self._set_paused(paused=False)

    async def _set_paused(self, *, paused: bool) -> None:
        queue = (await self.info()).queue
        if queue is None:
            raise InvalidValue(
                "batch", self.name, "has no queue of its own to pause: make it with app.batch(…, queue=…)"
            )
        await (await self._opened()).configure(queue, QueueChange(paused=paused))

    async def dependencies(self) -> list[Dependency]:
        """List which of its jobs wait for which."""
        return await (await self._opened()).dependencies(self.name)

    async def jobs(self, *, cursor: str | None = None, limit: int = 100) -> Page[Job]:
        """List its jobs, the oldest first; those still kept."""
        engine = await self._opened()
        return await engine.find(JobFilter(batch=self.name), cursor=cursor, limit=limit, newest_first=False)

    def flow(self) -> Flow:
        """Plan further jobs that wait for each other, or for jobs that are there."""
        return Flow(self)


class Step(Generic[R_co]):
    """A job in the plan of a flow, typed by what its task returns. :meth:`Flow.handle` gives the job that it became."""

    __slots__ = ("flow", "place")

    def __init__(self, flow: Flow, place: int) -> None:
        self.flow = flow
        self.place = place


Parent = Step[Any] | JobHandle[Any] | SyncJobHandle[Any] | JobRef | Job | str
"""What a job can come after: a step of the same plan, or a job of the same batch by any of its names."""


class Flow:
    """Jobs that wait for each other: ``app.flow("nightly")``. Nothing is written before :meth:`start`."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._jobs: list[NewJob] = []
        self._started: list[JobHandle[Any]] | None = None
        self._loop = batch._loop  # noqa: SLF001 - a flow is its batch's plan

    @property
    def sync(self) -> SyncFlow:
        """The same for code without an event loop: ``flow.sync.start()``."""
        return SyncFlow(self)

    def __len__(self) -> int:
        """Count its jobs."""
        return len(self._jobs)

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
        policy = one_of("on_dependency_failure", OnDependencyFailure, on_dependency_failure)
        parents = (after,) if isinstance(after, str) or not isinstance(after, Iterable) else tuple(after)
        named = tuple(self._named(parent) for parent in parents)
        self._jobs.append(msgspec.structs.replace(job, after=named, on_dependency_failure=policy))
        return Step(self, len(self._jobs) - 1)

    def _named(self, parent: Parent) -> int | str:
        if isinstance(parent, Step):
            if parent.flow is not self:
                raise InvalidValue("after", parent, "is a step of another flow: give the job that it has become")
            return parent.place
        if isinstance(parent, str):
            return parent
        if isinstance(parent, JobHandle | SyncJobHandle | JobRef | Job):
            return parent.id
        raise InvalidValue("after", parent, "must be a step of this flow, or a job of its batch")

    def chain(self, *jobs: NewJob, after: Parent | Iterable[Parent] = ()) -> Step[Any]:
        """Plan jobs one after the other, and give the last."""
        if not jobs:
            raise InvalidValue("chain", (), "must have at least one job")
        step: Step[Any] = self.add(jobs[0], after=after)
        for job in jobs[1:]:
            step = self.add(job, after=step)
        return step

    async def start(self, *, connection: Connection | None = None) -> Batch:
        """Write all of it to the store, in one transaction, and begin.

        Raises:
            InvalidValue: the batch has finished or was stopped, or a job breaks a rule; nothing is written.
        """
        batch = self.batch
        engine = await batch._opened()  # noqa: SLF001 - a flow is its batch's plan
        sealed = msgspec.structs.replace(batch._new, sealed=True)  # noqa: SLF001
        jobs = batch._joined(self._jobs)  # noqa: SLF001
        added = await engine.save_batch(sealed, jobs, connection=connection)
        self._started = batch._handles(jobs, added)  # noqa: SLF001
        return batch

    def _start_sync(self, *, connection: Connection | None = None) -> Batch:
        if connection is None:
            return self._loop.run(self.start)
        self._loop.run(self.batch._open)  # noqa: SLF001
        return complete_now(self.start(connection=connection))

    def handle(self, step: Step[R]) -> JobHandle[R]:
        """Give the job that a step has become: ``await flow.handle(total).result()``.

        Raises:
            InvalidValue: the flow has not been started, or the step is of another flow.
        """
        if step.flow is not self:
            raise InvalidValue("step", step, "is a step of another flow: ask that one")
        if self._started is None:
            raise InvalidValue("step", step, "is no job before the flow has started: call start() first")
        return self._started[step.place]


class Batches:
    """All batches: ``app.batches``."""

    def __init__(self, opened: Opened, handles: Handles, *, loop: LoopThread | None = None) -> None:
        self._opened = opened
        self._handles = handles
        self._loop = loop or LoopThread()

    @property
    def sync(self) -> SyncBatches:
        """The same for code without an event loop: ``app.sync.batches``."""
        return SyncBatches(self)

    async def list(self, *, cursor: str | None = None, limit: int = 50) -> Page[BatchInfo]:
        """List batches, the newest first."""
        return await (await self._opened()).batches(cursor=cursor, limit=limit)

    async def get(self, name: str) -> Batch:
        """Find a batch that is there.

        Raises:
            BatchNotFound: there is none of that name; the message has the nearest.
        """
        engine = await self._opened()
        found = (await engine.batches(names=[name])).items
        if not found:
            known = [one.name for one in (await engine.batches(limit=500)).items]
            raise BatchNotFound(f"there is no batch {name!r}{nearest(name, known)}")
        return Batch(NewBatch(name=name, queue=found[0].queue), self._opened, self._handles, loop=self._loop)

    async def delete(self, name: str) -> None:
        """Forget a batch that has finished; its jobs stay for as long as their queue keeps them.

        Raises:
            BatchNotFound: there is none of that name.
            InvalidValue: it has not finished.
        """
        if not await (await self._opened()).delete_batch(name):
            await self.get(name)
            raise InvalidValue("batch", name, "has not finished: cancel it first")
