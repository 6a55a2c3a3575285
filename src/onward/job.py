"""The values that people see: a job, a job to be, and what became of an enqueue. Frozen, typed, JSON-able."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, overload

import msgspec

from onward.backoff import Backoff
from onward.lifecycle import MAX_ATTEMPTS, JobStatus

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Type checkers know it on every Python: without a parameter, a job is a job of any task.
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class JobRef(msgspec.Struct, frozen=True, order=True, gc=False):
    """The name of a job: its queue and its id there.

    Native ids are UUIDv7 and unique everywhere; foreign ones ("1", a bigint) only within their queue.
    """

    queue: str
    id: str

    @classmethod
    def parse(cls, text: str) -> JobRef | None:
        """Read ``queue:id``; None: it has no colon. An id may contain colons (BullMQ's schedulers), a queue may not."""
        queue, found, id = text.partition(":")
        return cls(queue, id) if found else None

    def __str__(self) -> str:
        """Show it as people type it."""
        return f"{self.queue}:{self.id}"


class OnDependencyFailure(StrEnum):
    """What becomes of a job when one that it waits for does not complete."""

    CANCEL = "cancel"
    """Every job of its batch that has not started is cancelled."""
    SKIP = "skip"
    """It is cancelled, and so is what waits for it; the rest of the batch goes on."""
    RUN = "run"
    """It runs all the same."""


class NewJob(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A job to be enqueued, typed by what its task returns: see :func:`onward.validation.check_job`."""

    type: str
    payload: str = "{}"
    """JSON text."""
    queue: str = "default"
    org_id: str | None = None
    priority: int = 0
    """Higher is more urgent."""
    idempotency_key: str | None = None
    dedupe_key: str | None = None
    throttle: timedelta | None = None
    """No second job of this dedupe key for so long, whatever has become of the first."""
    debounce: timedelta | None = None
    """Run when no other job of this dedupe key has come for so long: of all that came, the last."""
    delay: timedelta | None = None
    """From the moment of enqueue by the store's clock. At most one of ``delay`` and ``run_at``."""
    run_at: datetime | None = None
    start_by: datetime | None = None
    """Not started by then: cancelled as expired."""
    max_attempts: int | None = None
    """None: the queue's default, else 5."""
    backoff: Backoff | None = None
    """None: the queue's default, else 1 s doubling up to 60 s."""
    batch: str | None = None
    """The batch that it belongs to, which must be there."""
    after: tuple[int | str, ...] = ()
    """The jobs of its batch that it waits for: ids, or places among those that are enqueued with it, before its own."""
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.CANCEL
    """What becomes of it when one of those does not complete."""
    trace: str | None = None
    """Who it is done for, as far as tracing knows: the headers of W3C trace context, as a JSON object. Written by
    ``onward.contrib.otel``."""


class UniformJobs(Sequence[NewJob[R_co]]):
    """Jobs of a task that differ in nothing but their payload, each of which the task itself has written as JSON.

    To whoever does not know it, a sequence of jobs like any other.
    """

    __slots__ = ("payloads", "template")

    def __init__(self, template: NewJob[R_co], payloads: Sequence[str]) -> None:
        self.template = template
        self.payloads = payloads

    def __len__(self) -> int:
        """Count the jobs."""
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> NewJob[R_co]: ...
    @overload
    def __getitem__(self, index: slice) -> UniformJobs[R_co]: ...
    def __getitem__(self, index: int | slice) -> NewJob[R_co] | UniformJobs[R_co]:
        """Make one job of them, or take some of them."""
        if isinstance(index, slice):
            return UniformJobs(self.template, self.payloads[index])
        return msgspec.structs.replace(self.template, payload=self.payloads[index])


class EnqueueStatus(StrEnum):
    """What an enqueue did."""

    INSERTED = "inserted"
    SAME_KEY = "same_key"
    """A job of this type with this idempotency key exists already; this is its name."""
    DEDUPED = "deduped"
    """A job with this dedupe key is waiting or running, or its throttle still holds; this is its name."""
    REPLACED = "replaced"
    """A job with this dedupe key was waiting for quiet; it has this payload now, and waits anew."""


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The answer to an enqueue: which job stands for it now."""

    ref: JobRef
    enqueue_status: EnqueueStatus = EnqueueStatus.INSERTED

    @property
    def id(self) -> str:
        """The job's id."""
        return self.ref.id

    @property
    def is_new(self) -> bool:
        """Whether this call made the job."""
        return self.enqueue_status is EnqueueStatus.INSERTED


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One failed run, as kept with the job."""

    attempt: int
    at: datetime
    error_type: str
    message: str
    traceback: str | None = None
    worker_id: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the store has it (O2)."""

    id: str
    type: str
    queue: str
    status: JobStatus
    org_id: str | None = None
    payload: Any = None
    priority: int = 0
    idempotency_key: str | None = None
    dedupe_key: str | None = None
    worker_id: str | None = None
    attempts: int = 0
    """Runs started and not given back."""
    max_attempts: int = MAX_ATTEMPTS
    crashes: int = 0
    """Child processes that died while the job ran alone in them."""
    is_suspect: bool = False
    """Its lease has run out in two runs in a row: it runs alone in a child process until a run has ended."""
    backoff: Backoff | None = None
    last_error: str | None = None
    errors: tuple[FailedAttempt, ...] = ()
    progress: int | None = None
    progress_message: str | None = None
    result: Any = None
    next_run_at: datetime | None = None
    start_by: datetime | None = None
    batch: str | None = None
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    """When it ended, however it ended."""
    updated_at: datetime

    @property
    def ref(self) -> JobRef:
        """The job's name."""
        return JobRef(self.queue, self.id)
