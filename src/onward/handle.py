"""What an enqueue gives back: the name of the job, and a way to wait for how it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Generic, TypeVar

import msgspec

from onward.control_flow import as_duration
from onward.errors import JobCancelled, JobError, JobExpired, JobFailed, JobNotFound
from onward.job import Enqueued, EnqueueStatus, Job, JobRef
from onward.lifecycle import EXPIRED, JobStatus
from onward.results import Results

R = TypeVar("R")


class JobHandle(msgspec.Struct, Generic[R], eq=False, gc=False):
    """A job that has been enqueued, typed by what its task returns."""

    _enqueued: Enqueued
    _results: Results
    _decode: Callable[[Any], R]

    @property
    def ref(self) -> JobRef:
        """The job's name."""
        return self._enqueued.ref

    @property
    def enqueue_status(self) -> EnqueueStatus:
        """What the enqueue did: made a job, or found one with the same key."""
        return self._enqueued.enqueue_status

    def __repr__(self) -> str:
        """Name the job."""
        return f"<JobHandle {self.ref} {self.enqueue_status}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self.ref.id

    @property
    def is_new(self) -> bool:
        """Whether the enqueue made the job, and did not find one with the same key."""
        return self.enqueue_status is EnqueueStatus.INSERTED

    async def info(self) -> Job:
        """Read the job as the store has it now.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
        """
        job = await self._results.read(self.ref)
        if job is None:
            raise _gone(self.ref)
        return job

    async def watch(self) -> AsyncGenerator[Job, None]:
        """Tell how the job stands, now and whenever that has changed: its status, progress, errors; until it has ended.

        Raises:
            JobNotFound: it is gone: deleted, or no longer kept.
        """
        async with aclosing(self._results.watch(self.ref)) as told:
            async for job in told:
                if job is None:
                    raise _gone(self.ref)
                yield job

    async def result(self, *, timeout: timedelta | float | None = None) -> R:
        """Wait until the job has ended, and give what its handler returned.

        Raises:
            JobFailed: it failed for good, or its attempts are used up.
            JobCancelled: it was cancelled.
            JobExpired: it had not started by its ``start_by``.
            JobNotFound: it is gone: deleted, or no longer kept.
            TimeoutError: it has not ended in that time. The job goes on.
        """
        limit = None if timeout is None else as_duration("timeout", timeout).total_seconds()
        job = await self._results.wait(self.ref, limit)
        if job is None:
            raise _gone(self.ref)
        if job.status is not JobStatus.COMPLETED:
            raise _error_of(job)
        return self._decode(job.result)


def _gone(ref: JobRef) -> JobNotFound:
    return JobNotFound(f"job {ref} is gone: it was deleted, or its queue keeps finished jobs no longer than this")


def _error_of(job: Job) -> JobError:
    kind: type[JobError] = JobFailed
    if job.status is JobStatus.CANCELLED:
        kind = JobExpired if job.last_error == EXPIRED else JobCancelled
    return kind(f"job {job.ref} ({job.type}) ended as {job.status}: {job.last_error or 'no reason given'}")
