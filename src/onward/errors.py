"""Every exception that Onward raises, in one tree.

::

    OnwardError
    ├── InvalidValue          a value breaks a rule: a URL, a filter, a setting; nothing was written
    │   ├── InvalidJob        an option of a job breaks a rule
    │   └── InvalidPayload    arguments do not fit the function
    │       └── PayloadTooLarge
    ├── NotFound
    │   ├── JobNotFound
    │   ├── QueueNotFound
    │   ├── ScheduleNotFound
    │   ├── BatchNotFound
    │   └── TaskNotFound
    ├── JobError              the job whose result was awaited ended without one
    │   ├── JobFailed         failed, or a dead letter
    │   ├── JobCancelled
    │   └── JobExpired        cancelled, because it had not started by ``start_by``
    ├── NotAuthenticated      the server does not know the caller: no credential, or one that is not valid
    ├── Conflict              the job or batch is not in a status for this; nothing was changed
    ├── PermissionDenied      the caller may not do this, or not here
    ├── ClaimLost             the caller no longer holds the job it wanted to finish
    ├── WrongIsolation        the caller's transaction is too strict to complete a job in it; nothing was written
    ├── EventLoopRunning      a call of the sync API was made inside a running event loop; nothing was done
    ├── Unsupported           the engine cannot do what was asked; nothing was written
    ├── EngineNotIncluded     the URL names an engine that this version does not have
    ├── SchemaTooOld          the store's tables are older than this code: run ``onward migrate``
    ├── SchemaTooNew          the store's tables are newer than this code: upgrade Onward
    ├── SchemaChanged         an applied migration differs from the one shipped
    └── StoreUnavailable      the store did not do what it was asked; try again or see the remedy
        ├── StoreBusy         another program holds the write lock
        ├── StoreFull         no space left
        ├── StoreMisconfigured  the store is set up so that it loses jobs
        ├── StoreReadOnly     the store may not be written to
        └── StoreCorrupt      the store is damaged or is no Onward store

A message says what happened, to which field or file, and what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.job import Job


class OnwardError(Exception):
    """The root of everything that Onward raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way back from another process: Python would rebuild an exception from its message alone."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class InvalidValue(OnwardError, ValueError):
    """A value breaks a rule. Raised before anything is written.

    ``field`` names what was wrong, so that a caller can point at it.
    """

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field = field
        self.value = value
        self.rule = rule
        super().__init__(f"{field} = {_shown(value)}: {rule}")


class InvalidJob(InvalidValue):
    """An option of a job breaks a rule. Raised before anything is written."""


class InvalidPayload(InvalidValue):
    """Arguments do not fit the function they are for. ``field`` names the argument (``payload.to``)."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(field, value, rule)
        # Without the value: this text is stored with the job, shown and logged, and a payload may hold secrets.
        self.args = (f"{field}: {rule}",)


class PayloadTooLarge(InvalidPayload):
    """Payload and options together exceed the size limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__("payload", size, "exceeds the limit")
        self.size = size
        self.limit = limit
        mebi = 1024 * 1024
        self.args = (f"Job payload size {size / mebi:.1f} MB exceeds limit of {limit / mebi:.1f} MB",)


class EngineNotIncluded(OnwardError):
    """The URL names an engine that this version of Onward does not have."""


class Unsupported(OnwardError):
    """The engine does not offer a feature. Raised before anything is written."""

    def __init__(self, engine: str, feature: str, note: str) -> None:
        self.engine = engine
        self.feature = feature
        self.note = note
        super().__init__(f"{engine} does not offer {feature}: {note}")


class ClaimLost(OnwardError):
    """Somebody else owns the job now, or it has ended: the outcome was not recorded."""


class WrongIsolation(OnwardError):
    """A job cannot be completed in a transaction of this isolation level. Raised before anything is written.

    Under REPEATABLE READ and SERIALIZABLE a transaction can change no row that has changed since its first statement,
    and each heartbeat and each progress report changes the job's.
    """

    def __init__(self, isolation: str) -> None:
        self.isolation = isolation
        super().__init__(
            f"a job cannot be completed in a {isolation.upper()} transaction, which cannot change a row that a "
            "heartbeat has changed since; begin it as READ COMMITTED, or return the result after the commit"
        )


class EventLoopRunning(OnwardError, RuntimeError):
    """A call of the sync API was made where an event loop runs, which it would block. Nothing was done."""

    def __init__(self, call: str, instead: str) -> None:
        self.call = call
        self.instead = instead
        super().__init__(
            f"{call}() would block the event loop that runs on this thread: use `{instead}`, or call it on another "
            "thread, by asyncio.to_thread"
        )


class NotFound(OnwardError, LookupError):
    """Nothing has that name."""


class JobNotFound(NotFound):
    """No job has that id."""


class QueueNotFound(NotFound):
    """No queue has that name."""


class ScheduleNotFound(NotFound):
    """No schedule has that name."""


class BatchNotFound(NotFound):
    """No batch has that name."""


class TaskNotFound(NotFound):
    """The App has no task of that name."""


class Conflict(OnwardError):
    """What was asked for cannot be done in the present status. Nothing was changed."""


class NotAuthenticated(OnwardError):
    """The server does not know the caller. The message never says which part of a credential was wrong."""


class PermissionDenied(OnwardError):
    """The caller may not do this, or not with these jobs. Nothing was done."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(message)


class JobError(OnwardError):
    """The job whose result was awaited ended without one. ``job`` is the job as it ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.ref} ({job.type}) ended as {job.status}: {job.last_error or 'no reason given'}")


class JobFailed(JobError):
    """The job failed for good, or its attempts are used up: its last error, as the store keeps it."""

    @property
    def error_type(self) -> str:
        """The class of the exception that its handler raised last, or a word of Onward's such as ``NoHandler``."""
        if self.job.errors:
            return self.job.errors[-1].error_type
        kind, found, _ = (self.job.last_error or "").partition(": ")
        return kind if found and kind.replace(".", "").isidentifier() else ""

    @property
    def message(self) -> str:
        """The message of that exception."""
        if self.job.errors:
            return self.job.errors[-1].message
        text, kind = self.job.last_error or "", self.error_type
        return text.removeprefix(f"{kind}: ") if kind else text

    @property
    def traceback(self) -> str | None:
        """The traceback of that exception as text; None: the store has none."""
        return self.job.errors[-1].traceback if self.job.errors else None

    @property
    def attempts(self) -> int:
        """How many runs of the job were started and not given back."""
        return self.job.attempts


class JobCancelled(JobError):
    """The job was cancelled."""


class JobExpired(JobError):
    """The job had not started by its ``start_by``, and was cancelled."""


class SchemaTooOld(OnwardError):
    """The store's schema is older than this version of Onward needs."""


class SchemaTooNew(OnwardError):
    """The store's schema was made by a newer version of Onward."""


class SchemaChanged(OnwardError):
    """A migration that the store has applied is not the one that this version ships."""


class StoreUnavailable(OnwardError):
    """The store could not be reached or would not answer.

    ``remedy`` says what to do about it, where more is known than that it is away; ``cause`` is the rest of the message.
    """

    is_permanent = False
    """Set where it does not help to try again before a person has changed something: a worker ends."""

    def __init__(self, cause: str = "", *, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(f"{cause}; {remedy}" if remedy else cause)


class StoreBusy(StoreUnavailable):
    """Another program held the store's write lock for too long."""


class StoreFull(StoreUnavailable):
    """The store has no space left; what was asked for was not written."""


class StoreMisconfigured(StoreUnavailable):
    """The store is set up so that it loses jobs; a worker does not start on it."""

    is_permanent = True


class StoreReadOnly(StoreUnavailable):
    """The store may not be written to: by its file system for good (SQLite), or as a replica for a while (Redis)."""


class StoreCorrupt(StoreUnavailable):
    """The store is damaged, or is not an Onward store at all."""

    is_permanent = True


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - nested too deep, too many digits, a faulty __repr__: the rule is what matters
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:197]}..."


def _rebuilt(kind: type[OnwardError], args: tuple[object, ...], state: dict[str, object]) -> OnwardError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
