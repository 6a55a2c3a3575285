"""Onward: a durable job queue for Python."""

from onward.app import App
from onward.arguments import BadPayload
from onward.backoff import Backoff
from onward.context import CallNext, JobContext, Middleware
from onward.contrib.harmonyk import JobsRepository, harmonyk_status
from onward.control_flow import Cancel, DoNotRetry, Snooze
from onward.engine.values import JobFilter, Page, QueueInfo, Rate, Retention, WorkerInfo
from onward.errors import (
    ClaimLost,
    InvalidJob,
    JobFailed,
    JobNotFound,
    OnwardError,
    PayloadTooLarge,
    StoreUnavailable,
    Unsupported,
)
from onward.handle import JobHandle
from onward.job import Job, JobRef, NewJob
from onward.lifecycle import State
from onward.task import Task

__all__ = [
    "App",
    "Backoff",
    "BadPayload",
    "CallNext",
    "Cancel",
    "ClaimLost",
    "DoNotRetry",
    "InvalidJob",
    "Job",
    "JobContext",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "JobNotFound",
    "JobRef",
    "JobsRepository",
    "Middleware",
    "NewJob",
    "OnwardError",
    "Page",
    "PayloadTooLarge",
    "QueueInfo",
    "Rate",
    "Retention",
    "Snooze",
    "State",
    "StoreUnavailable",
    "Task",
    "Unsupported",
    "WorkerInfo",
    "harmonyk_status",
]
