"""What can be told about a job while it lives: one vocabulary on every engine (B7)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from onward.job import JobRef


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that happened to a job."""

    ref: JobRef
    at: datetime
    attempts_made: int | None = None
    """None where the store does not say."""

    @property
    def name(self) -> str:
        """The event's word, as the stores and the webhooks write it."""
        return str(self.__struct_config__.tag)


class JobWaiting(Event, frozen=True, kw_only=True, tag="waiting"):
    """It is ready and waits for a worker."""


class JobActive(Event, frozen=True, kw_only=True, tag="active"):
    """A worker has started it."""

    worker_id: str | None = None


class JobProgress(Event, frozen=True, kw_only=True, tag="progress"):
    """Its handler says how far it is."""

    value: int
    message: str | None = None


class JobCompleted(Event, frozen=True, kw_only=True, tag="completed"):
    """Its handler returned."""

    returnvalue: Any = None


class JobFailed(Event, frozen=True, kw_only=True, tag="failed"):
    """It has ended without a result, or this attempt has."""

    failed_reason: str
    stacktrace: tuple[str, ...] = ()


class JobStalled(Event, frozen=True, kw_only=True, tag="stalled"):
    """Its worker went silent; it has been taken back."""


class JobRetry(Event, frozen=True, kw_only=True, tag="retry"):
    """It failed and will be tried again."""

    delay: float
    """Seconds."""


AnyEvent = JobWaiting | JobActive | JobProgress | JobCompleted | JobFailed | JobStalled | JobRetry
