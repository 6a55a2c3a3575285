"""Onward: a durable job queue for Python."""

from typing import TYPE_CHECKING

from onward import events
from onward.alert import AlertRule
from onward.app import App, Lifespan
from onward.backoff import Backoff
from onward.batches.resources import Batch, Flow, Step
from onward.batches.values import BatchInfo, Dependency
from onward.blueprint import Tasks
from onward.connection import Connection
from onward.context import CallNext, JobContext, Middleware
from onward.control_flow import Cancel, DoNotRetry, Retry, Snooze
from onward.cron import Cron, Interval
from onward.engine.capabilities import Capabilities
from onward.engine.checked import EnqueueMiddleware
from onward.engine.values import (
    Changed,
    JobFilter,
    LogLine,
    Page,
    QueueInfo,
    QueueSettings,
    Rate,
    Retention,
    WorkerInfo,
)
from onward.errors import (
    BatchNotFound,
    ClaimLost,
    EngineNotIncluded,
    EventLoopRunning,
    InvalidJob,
    InvalidPayload,
    InvalidValue,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    NotFound,
    OnwardError,
    PayloadTooLarge,
    QueueNotFound,
    ScheduleNotFound,
    SchemaChanged,
    SchemaTooNew,
    SchemaTooOld,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreMisconfigured,
    StoreReadOnly,
    StoreUnavailable,
    TaskNotFound,
    Unsupported,
    WrongIsolation,
)
from onward.explain import Reason
from onward.handle import JobHandle
from onward.job import Enqueued, EnqueueStatus, FailedAttempt, Job, JobRef, NewJob
from onward.lifecycle import JobStatus
from onward.metering import Usage
from onward.schedule import Schedule
from onward.task import Task
from onward.webhook import Webhook
from onward.worker_options import WorkerOptions

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "AlertRule",
    "App",
    "Backoff",
    "Batch",
    "BatchInfo",
    "BatchNotFound",
    "CallNext",
    "Cancel",
    "Capabilities",
    "Changed",
    "ClaimLost",
    "Connection",
    "Cron",
    "Dependency",
    "DoNotRetry",
    "EngineNotIncluded",
    "EnqueueMiddleware",
    "EnqueueStatus",
    "Enqueued",
    "EventLoopRunning",
    "FailedAttempt",
    "Flow",
    "Interval",
    "InvalidJob",
    "InvalidPayload",
    "InvalidValue",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "JobNotFound",
    "JobRef",
    "JobStatus",
    "Lifespan",
    "LogLine",
    "Middleware",
    "NewJob",
    "NotFound",
    "OnwardError",
    "Page",
    "PayloadTooLarge",
    "QueueInfo",
    "QueueNotFound",
    "QueueSettings",
    "Rate",
    "Reason",
    "Retention",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "SchemaChanged",
    "SchemaTooNew",
    "SchemaTooOld",
    "Snooze",
    "Step",
    "StoreBusy",
    "StoreCorrupt",
    "StoreFull",
    "StoreMisconfigured",
    "StoreReadOnly",
    "StoreUnavailable",
    "Task",
    "TaskNotFound",
    "Tasks",
    "Unsupported",
    "Usage",
    "Webhook",
    "WorkerInfo",
    "WorkerOptions",
    "WrongIsolation",
    "__version__",
    "events",
]


def __getattr__(name: str) -> str:
    """Read the version when it is asked for: importing ``importlib.metadata`` takes longer than all of Onward."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("onward")
    message = f"module 'onward' has no attribute {name!r}"
    raise AttributeError(message)
