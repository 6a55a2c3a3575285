"""Batches: named sets of jobs, and flows, which are batches whose jobs wait for each other.

A batch counts how its jobs end, and when all have ended it has finished: at that moment its callbacks are enqueued,
each once, in the transaction that found it so. It does not finish before it is sealed, so jobs may be added over time;
and while one of its jobs runs, that one may add more.

Pausing and limiting are for queues: a batch that has a queue of its own is paused with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from onward.clock import moment_of
from onward.job import NewJob

BATCH_KEPT: Final = timedelta(days=30)
"""How long a batch stays on the list when it has finished. Its jobs stay for as long as their queue keeps them."""

_job_decoder: Final = msgspec.json.Decoder(NewJob)


class Callbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are enqueued when a batch has come so far, each at most once."""

    on_success: NewJob | None = None
    """All of its jobs have completed."""
    on_failure: NewJob | None = None
    """The first of them has failed for good; the others go on."""
    on_finished: NewJob | None = None
    """All of them have ended, however they did."""


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to be, or what is to be changed of one that is there and has not finished."""

    name: str
    queue: str | None = None
    """A queue of its own, which all its jobs are put in; None: each goes where its task says."""
    callbacks: Callbacks = Callbacks()
    """Those that are None stay as they are."""
    sealed: bool = False
    """No job is to come but from jobs of its own: it finishes when all have ended."""
    stopped: bool = False
    """What has not started is cancelled, and nothing can be added."""


class BatchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it stands."""

    name: str
    queue: str | None = None
    sealed: bool = False
    total: int = 0
    completed: int = 0
    failed: int = 0
    """Dead letters too."""
    cancelled: int = 0
    """Removed before their end too."""
    created_at: datetime
    finished_at: datetime | None = None

    @property
    def ended(self) -> int:
        """How many of its jobs have come to an end."""
        return self.completed + self.failed + self.cancelled

    @property
    def progress(self) -> int:
        """The share that has ended, in whole percents: 100 only when all have (P7)."""
        return min(100, 100 * self.ended // self.total) if self.total else 100 * self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether all have ended and none is to come."""
        return self.finished_at is not None


class Dependency(msgspec.Struct, frozen=True, order=True):
    """One job of a batch waits for another: the ids of both."""

    job: str
    depends_on: str


# How stores keep them -------------------------------------------------------------------------------------------------


def texts_of(callbacks: Callbacks) -> tuple[str | None, str | None, str | None]:
    """Write the callbacks as JSON."""
    jobs = (callbacks.on_success, callbacks.on_failure, callbacks.on_finished)
    success, failure, finished = (None if job is None else msgspec.json.encode(job).decode() for job in jobs)
    return success, failure, finished


def callback_of(text: str) -> NewJob:
    """Read a callback."""
    return _job_decoder.decode(text)


def batch_of(row: Sequence[Any]) -> BatchInfo:
    """Read a batch from a row: its fields in their order, times in microseconds since 1970."""
    name, queue, sealed, total, completed, failed, cancelled, created_at, finished_at = row
    return BatchInfo(
        name=name,
        queue=queue,
        sealed=bool(sealed),
        total=total,
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        created_at=moment_of(created_at),
        finished_at=None if finished_at is None else moment_of(finished_at),
    )
