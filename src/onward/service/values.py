"""What services take and return where the core's own values do not fit: durations in seconds, no secrets (A3)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from onward.backoff import Backoff
from onward.batches.values import BatchInfo, Dependency
from onward.cron import Cron, Interval
from onward.engine.access import AccessToken, AuditRecord
from onward.engine.capabilities import Capabilities
from onward.engine.values import JobFilter, LogLine, QueueInfo, Rate, Retention, WorkerInfo
from onward.errors import InvalidValue
from onward.explain import Reason
from onward.job import EnqueueStatus, Job
from onward.lifecycle import JobStatus
from onward.metering import Usage
from onward.schedule import Missed, Schedule
from onward.surrogates import decode_json

MAX_LISTED = 100
"""Names in one field of a filter (S7)."""


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller sends: a field that does not exist is an error, not a no-op."""


# Jobs -----------------------------------------------------------------------------------------------------------------


class JobQuery(_Request, frozen=True, kw_only=True):
    """Which jobs: every field given must hold."""

    queue: tuple[str, ...] = ()
    """Names and patterns."""
    type: tuple[str, ...] = ()
    status: tuple[JobStatus, ...] = ()
    org_id: str | None = None
    batch: str | None = None
    worker_id: str | None = None
    error_contains: str | None = None
    """Text within the last error; needs the permission reveal."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_before: datetime | None = None

    def filter(self) -> JobFilter:
        """Make the filter."""
        for field in ("queue", "type", "status"):
            if len(getattr(self, field)) > MAX_LISTED:
                raise InvalidValue(field, len(getattr(self, field)), f"must have at most {MAX_LISTED} values")
        if self.error_contains is not None and len(self.error_contains) > 200:
            raise InvalidValue("error_contains", self.error_contains, "must have at most 200 characters")
        return JobFilter(
            queues=self.queue or None,
            types=self.type or None,
            status=frozenset(self.status) or None,
            org_id=self.org_id,
            batch=self.batch,
            worker_id=self.worker_id,
            error_contains=self.error_contains,
            created_after=self.created_after,
            created_before=self.created_before,
            finished_before=self.finished_before,
        )


class EnqueueRequest(_Request, frozen=True, kw_only=True):
    """A job to be. What is not given is as its task says."""

    type: str
    payload: Any = {}
    """The task's arguments by name."""
    queue: str | UnsetType = UNSET
    org_id: str | None = None
    priority: int | UnsetType = UNSET
    delay: float | None = None
    """Seconds."""
    run_at: datetime | None = None
    start_by: datetime | None = None
    max_attempts: int | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    idempotency_key: str | None = None
    dedupe: bool | UnsetType = UNSET
    dedupe_key: str | None = None
    throttle: float | None = None
    """Seconds."""
    debounce: float | None = None
    """Seconds."""


class EnqueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Which job stands for a request."""

    id: str
    queue: str
    enqueue_status: EnqueueStatus


class EnqueuedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs stand for the requests, in their order."""

    items: tuple[EnqueuedJob, ...]


class JobEdit(_Request, frozen=True, kw_only=True):
    """What to change of a waiting job."""

    priority: int | UnsetType = UNSET
    payload: Any = UNSET
    run_at: datetime | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET


class ChangedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was changed, and the status it had before."""

    id: str
    queue: str
    before: JobStatus


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands, for a caller that waits for its end."""

    id: str
    queue: str
    status: JobStatus
    is_finished: bool
    result: Any = None
    error: str | None = None


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some jobs, and where to continue."""

    items: tuple[Job, ...]
    next_cursor: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many, by the field that was asked for."""

    by: str
    counts: Mapping[str, int]
    total: int


class Selection(_Request, frozen=True, kw_only=True):
    """Jobs that a change by filter is about."""

    filter: JobQuery | None = None
    all: bool = False
    """Every job that the caller may change. One of ``filter`` and ``all`` must be given."""
    dry_run: bool = False
    """Count them, and change nothing."""
    reason: str = "cancelled"
    """Stored with cancelled jobs."""


class BulkOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A change by filter, and how far it is."""

    id: str | None
    """None: a dry run, or nothing could match."""
    action: str
    status: JobStatus | None
    """None: a dry run."""
    matching: int
    """Jobs that matched when it was accepted."""
    changed: int = 0
    progress: int | None = None
    actor: str = ""
    error: str | None = None
    created_at: datetime | None = None
    completed_at: datetime | None = None


class BulkOperationPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some changes by filter."""

    items: tuple[BulkOperation, ...]
    next_cursor: str | None = None


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler has written about its job."""

    items: tuple[LogLine, ...]


class Reasons(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is not running."""

    items: tuple[Reason, ...]


# Queues ---------------------------------------------------------------------------------------------------------------


class RateView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most ``count`` handler starts in any ``period``."""

    count: int
    period: float = 60.0
    """Seconds."""
    burst: int = 1


class RetentionView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long finished jobs are kept, in seconds; null: until purged."""

    completed: float | None
    completed_count: int | None
    failed: float | None
    failed_count: int | None
    cancelled: float | None
    archived: float | None


class RetentionChange(_Request, frozen=True, kw_only=True):
    """What to change of a queue's retention."""

    completed: float | UnsetType | None = UNSET
    completed_count: int | UnsetType | None = UNSET
    failed: float | UnsetType | None = UNSET
    failed_count: int | UnsetType | None = UNSET
    cancelled: float | UnsetType | None = UNSET
    archived: float | UnsetType | None = UNSET


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it stands."""

    name: str
    paused: bool
    pause_reason: str | None
    paused_by: str | None
    paused_at: datetime | None
    rate: RateView | None
    global_concurrency: int | None
    weight: int
    lease: float | None
    """Seconds."""
    max_attempts: int | None
    backoff: Backoff | None
    retention: RetentionView
    counts: dict[JobStatus, int]
    oldest_ready_at: datetime | None
    next_permit_at: datetime | None


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """Queues, by name."""

    items: tuple[QueueView, ...]


class WorkerList(msgspec.Struct, frozen=True, kw_only=True):
    """Workers."""

    items: tuple[WorkerInfo, ...]


class QueueSettingsChange(_Request, frozen=True, kw_only=True):
    """Settings to change; what is not given stays as it is."""

    rate: RateView | str | UnsetType | None = UNSET
    """``600/min``, an object, or null: no limit."""
    global_concurrency: int | UnsetType | None = UNSET
    weight: int | UnsetType = UNSET
    lease: float | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    backoff: Backoff | UnsetType | None = UNSET
    retention: RetentionChange | UnsetType = UNSET


def queue_view(queue: QueueInfo) -> QueueView:
    """Show a queue."""
    settings = queue.settings
    rate, kept = settings.rate, settings.retention
    return QueueView(
        name=queue.name,
        paused=settings.paused,
        pause_reason=settings.pause_reason,
        paused_by=settings.paused_by,
        paused_at=settings.paused_at,
        rate=None if rate is None else RateView(count=rate.count, period=rate.period.total_seconds(), burst=rate.burst),
        global_concurrency=settings.global_concurrency,
        weight=settings.weight,
        lease=_seconds(settings.lease),
        max_attempts=settings.max_attempts,
        backoff=settings.backoff,
        retention=RetentionView(
            completed=_seconds(kept.completed),
            completed_count=kept.completed_count,
            failed=_seconds(kept.failed),
            failed_count=kept.failed_count,
            cancelled=_seconds(kept.cancelled),
            archived=_seconds(kept.archived),
        ),
        counts=dict(queue.counts),
        oldest_ready_at=queue.oldest_ready_at,
        next_permit_at=queue.next_permit_at,
    )


def rate_of(rate: RateView | str | UnsetType | None) -> Rate | UnsetType | None:
    """Read a rate."""
    if isinstance(rate, str):
        return Rate.parse(rate)
    return Rate(rate.count, duration("rate.period", rate.period), rate.burst) if isinstance(rate, RateView) else rate


def retention_of(change: RetentionChange | UnsetType, now: Retention) -> Retention | UnsetType:
    """Read a change of a queue's retention."""
    if isinstance(change, UnsetType):
        return UNSET
    given: dict[str, Any] = {}
    for field in change.__struct_fields__:
        value = getattr(change, field)
        if value is not UNSET:
            is_age = value is not None and not field.endswith("_count")
            given[field] = duration(f"retention.{field}", value) if is_age else value
    return msgspec.structs.replace(now, **given)


def duration(field: str, seconds: float) -> timedelta:
    """Read a duration.

    Raises:
        InvalidValue: it is not a number of seconds that a store could keep.
    """
    if not 0 <= seconds <= 3_153_600_000:
        raise InvalidValue(field, seconds, "must be a number of seconds between 0 and a century")
    return timedelta(seconds=seconds)


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


# Schedules ------------------------------------------------------------------------------------------------------------


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands."""

    name: str
    type: str
    queue: str
    org_id: str | None
    payload: Any
    cron: str | None
    timezone: str | None
    every: float | None
    """Seconds."""
    missed: Missed
    paused: bool
    next_at: datetime | None
    last_at: datetime | None


class Schedules(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules, by name."""

    items: tuple[ScheduleView, ...]


class ScheduleRequest(_Request, frozen=True, kw_only=True):
    """A schedule to create, or to change."""

    job: EnqueueRequest
    cron: str | None = None
    timezone: str = "UTC"
    every: float | None = None
    """Seconds between two runs, instead of a cron expression."""
    missed: Missed | None = None


def schedule_view(schedule: Schedule, payload: Any) -> ScheduleView:
    """Show a schedule, with its payload redacted."""
    trigger = schedule.trigger
    return ScheduleView(
        name=schedule.name,
        type=schedule.job.type,
        queue=schedule.job.queue,
        org_id=schedule.job.org_id,
        payload=payload,
        cron=trigger.expression if isinstance(trigger, Cron) else None,
        timezone=trigger.timezone if isinstance(trigger, Cron) else None,
        every=trigger.length.total_seconds() if isinstance(trigger, Interval) else None,
        missed=schedule.missed,
        paused=schedule.paused,
        next_at=schedule.next_at,
        last_at=schedule.last_at,
    )


def payload_of(text: str) -> Any:
    """Read the JSON text of a job that is not enqueued yet."""
    return decode_json(text)


# Batches --------------------------------------------------------------------------------------------------------------


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it stands."""

    name: str
    queue: str | None
    sealed: bool
    total: int
    completed: int
    failed: int
    cancelled: int
    progress: int
    created_at: datetime
    finished_at: datetime | None


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some batches."""

    items: tuple[BatchView, ...]
    next_cursor: str | None = None


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs of a batch wait for which."""

    items: tuple[Dependency, ...]


class FlowStep(_Request, frozen=True, kw_only=True):
    """A job of a batch, after others of the same request (by their position) or of the same batch (by their id)."""

    job: EnqueueRequest
    after: tuple[int | str, ...] = ()
    on_dependency_failure: Literal["cancel", "skip", "run"] = "cancel"


class BatchRequest(_Request, frozen=True, kw_only=True):
    """A batch to create, or jobs to add to it."""

    queue: str | None = None
    """A queue of its own."""
    jobs: tuple[FlowStep, ...] = ()
    on_success: EnqueueRequest | None = None
    on_failure: EnqueueRequest | None = None
    on_finished: EnqueueRequest | None = None
    sealed: bool = False


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs were cancelled."""

    cancelled: int


def batch_view(batch: BatchInfo) -> BatchView:
    """Show a batch."""
    return BatchView(
        name=batch.name,
        queue=batch.queue,
        sealed=batch.sealed,
        total=batch.total,
        completed=batch.completed,
        failed=batch.failed,
        cancelled=batch.cancelled,
        progress=batch.progress,
        created_at=batch.created_at,
        finished_at=batch.finished_at,
    )


# Access ---------------------------------------------------------------------------------------------------------------


class TokenRequest(_Request, frozen=True, kw_only=True):
    """A token to create."""

    name: str
    role: Literal["viewer", "operator", "admin"] = "viewer"
    permissions: tuple[str, ...] = ()
    """On top of the role: reveal, edit, enqueue, delete."""
    queues: tuple[str, ...] | None = None
    orgs: tuple[str, ...] | None = None
    expires_in: float | None = 90 * 86_400.0
    """Seconds; null: never."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    id: str
    name: str
    role: str
    permissions: tuple[str, ...]
    queues: tuple[str, ...] | None
    orgs: tuple[str, ...] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, the newest first."""

    items: tuple[TokenView, ...]


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some audit records, the newest first."""

    items: tuple[AuditRecord, ...]
    next_cursor: str | None = None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token just created. The secret is shown once and stored nowhere."""

    token: TokenView
    secret: str

    def __repr__(self) -> str:
        """Leave the secret out of logs and tracebacks."""
        return f"NewToken(token={self.token!r}, secret='…')"


def token_view(token: AccessToken) -> TokenView:
    """Show a token."""
    return TokenView(
        id=token.id,
        name=token.name,
        role=token.role,
        permissions=token.permissions,
        queues=token.queues,
        orgs=token.orgs,
        created_at=token.created_at,
        created_by=token.created_by,
        expires_at=token.expires_at,
        last_used_at=token.last_used_at,
        revoked_at=token.revoked_at,
    )


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, as the server knows it."""

    actor: str
    role: str
    permissions: tuple[str, ...]
    queues: tuple[str, ...] | None
    orgs: tuple[str, ...] | None


# Store ----------------------------------------------------------------------------------------------------------------


class FeatureView(msgspec.Struct, frozen=True, kw_only=True):
    """How a feature is offered."""

    level: str
    note: str


class UsageRows(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, summed up."""

    items: tuple[Usage, ...]


class CapabilitiesView(msgspec.Struct, frozen=True, kw_only=True):
    """What the store can do."""

    engine: str
    features: dict[str, FeatureView]
    status_aliases: dict[JobStatus, JobStatus]
    has_global_ids: bool
    is_shared: bool


def capabilities_view(capabilities: Capabilities) -> CapabilitiesView:
    """Show what a store can do."""
    return CapabilitiesView(
        engine=capabilities.engine,
        features={
            feature.value: FeatureView(level=support.level, note=support.note)
            for feature, support in capabilities.features.items()
        },
        status_aliases=dict(capabilities.status_aliases),
        has_global_ids=capabilities.has_global_ids,
        is_shared=capabilities.is_shared,
    )
