"""A handle: the name of a job, and a way to wait for how it ends. An enqueue returns one; an id makes one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Generic

import msgspec

from onward.control_flow import as_duration
from onward.errors import JobCancelled, JobError, JobExpired, JobFailed, JobNotFound
from onward.job import Enqueued, EnqueueStatus, Job, JobRef, R_co
from onward.lifecycle import EXPIRED, JobStatus
from onward.loop_thread import LoopThread
from onward.results import Results
from onward.sync import SyncJobHandle


class JobHandle(msgspec.Struct, Generic[R_co], eq=False, gc=False):
    """A job, typed by what its task returns: what ``enqueue`` returns, or ``task.handle(id)``, ``app.jobs.handle(id)``.

    It is only a name: making one reads nothing, and the job need not exist.
    """

    _enqueued: Enqueued
    _results: Results
    _decode: Callable[[Any], R_co] | None = None
    """None: as the task of the job's type returns it."""
    _is_from_id: bool = False

    @property
    def ref(self) -> JobRef:
        """The job's name. The queue of a handle that was made from an id alone is empty until the job has been read."""
        return self._enqueued.ref

    @property
    def enqueue_status(self) -> EnqueueStatus | None:
        """What the enqueue did: made a job, or found one with the same key. None: the handle was made from an id."""
        return None if self._is_from_id else self._enqueued.enqueue_status

    def __repr__(self) -> str:
        """Name the job."""
        return f"<JobHandle {self._name}{'' if self._is_from_id else f' {self.enqueue_status}'}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self.ref.id

    @property
    def is_new(self) -> bool:
        """Whether the enqueue made the job, and did not find one with the same key."""
        return self.enqueue_status is EnqueueStatus.INSERTED

    @property
    def sync(self) -> SyncJobHandle[R_co]:
        """The same for code without an event loop: ``handle.sync.result(timeout=10)``."""
        return SyncJobHandle(self)

    async def info(self) -> Job:
        """Read the job as the store has it now.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
        """
        return self._found(await self._results.read(self._name))

    async def watch(self) -> AsyncGenerator[Job, None]:
        """Yield the job now and whenever it has changed (its status, progress, errors), until it has ended.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
        """
        ref = await self._resolved()
        async with aclosing(self._results.watch(ref)) as told:
            async for job in told:
                yield self._found(job)

    async def wait(self, *, timeout: timedelta | float | None = None) -> Job:
        """Wait until the job has ended, however it ended, and read it.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
            TimeoutError: it has not ended in that time. The job goes on.
        """
        limit = None if timeout is None else as_duration("timeout", timeout).total_seconds()
        return self._found(await self._results.wait(self._name, limit))

    async def result(self, *, timeout: timedelta | float | None = None) -> R_co:
        """Wait until the job has ended, and give what its handler returned.

        Raises:
            JobFailed: it failed for good, or its attempts are used up.
            JobCancelled: it was cancelled.
            JobExpired: it had not started by its ``start_by``.
            JobNotFound: it is gone: deleted, or no longer kept.
            TimeoutError: it has not ended in that time. The job goes on.
        """
        job = await self.wait(timeout=timeout)
        if job.status is not JobStatus.COMPLETED:
            raise _error_of(job)
        value: R_co = self._results.decode(job) if self._decode is None else self._decode(job.result)
        return value

    async def cancel(self, *, reason: str = "cancelled by its handle") -> bool:
        """Cancel the job, as :meth:`app.jobs.cancel` does. Answers whether it was cancelled: False, if it had ended."""
        return await self._results.cancel(self._name, reason)

    @property
    def _name(self) -> JobRef | str:
        return self.ref if self.ref.queue else self.ref.id

    @property
    def _loop(self) -> LoopThread:
        return self._results.loop

    async def _resolved(self) -> JobRef:
        return self.ref if self.ref.queue else (await self.info()).ref

    def _found(self, job: Job | None) -> Job:
        if job is None:
            raise JobNotFound(
                f"job {self._name} is gone: it was deleted, or its queue keeps finished jobs no longer than this"
            )
        if not self.ref.queue:
            self._enqueued = Enqueued(job.ref)
        return job


def handle_of(name: JobRef | str, results: Results, decode: Callable[[Any], R_co] | None = None) -> JobHandle[R_co]:
    """Make a handle from the name of a job; an id alone where ids are global."""
    ref = JobRef("", name) if isinstance(name, str) else name
    return JobHandle(Enqueued(ref), results, decode, _is_from_id=True)


def _error_of(job: Job) -> JobError:
    kind: type[JobError] = JobFailed
    if job.status is JobStatus.CANCELLED:
        kind = JobExpired if job.last_error == EXPIRED else JobCancelled
    return kind(job)
