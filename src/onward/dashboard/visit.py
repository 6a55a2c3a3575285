"""A request to a page, and the kinds of answers that a view gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import msgspec
from starlette.requests import Request

from onward.dashboard.callers import is_permitted, scope_key
from onward.dashboard.pulse import Pulse
from onward.dashboard.reads import Reads
from onward.dashboard.wording import Moment, moment
from onward.engine.capabilities import Capabilities, Feature
from onward.errors import InvalidValue
from onward.http.names import encode_name
from onward.job import Job, JobRef
from onward.service.identity import Identity
from onward.service.jobs import Name
from onward.service.services import Services

PAGE_SIZE: Final = 50


class Form:
    """The fields of a submitted form."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pairs = tuple(pairs)

    def text(self, name: str, default: str = "") -> str:
        """Return a field without surrounding space."""
        return next((value.strip() for each, value in self.pairs if each == name), default)

    def all(self, name: str) -> tuple[str, ...]:
        """Return every value of a field."""
        return tuple(value for each, value in self.pairs if each == name)

    def has(self, name: str) -> bool:
        """Whether a field was sent, as a checked box is."""
        return any(each == name for each, _ in self.pairs)

    def optional(self, name: str) -> str | None:
        """Return a field, or None where it is empty."""
        return self.text(name) or None

    def whole(self, name: str) -> int | None:
        """Return a whole number, or None where the field is empty.

        Raises:
            InvalidValue: it is none.
        """
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise InvalidValue(name, text, "must be a whole number") from None

    def json(self, name: str) -> Any:
        """Return a field that is written in JSON.

        Raises:
            InvalidValue: it is none.
        """
        try:
            return msgspec.json.decode(self.text(name) or "null")
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidValue(name, "…", f"must be JSON: {error}") from None


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is asked before an action that cannot be undone."""

    title: str
    text: str
    verb: str
    """On the button."""
    is_dangerous: bool = True


class NeedsConfirmation(Exception):
    """The action has not been confirmed."""

    def __init__(self, question: Confirmation) -> None:
        super().__init__(question.title)
        self.question = question


@dataclass(frozen=True, kw_only=True)
class Screen:
    """A page to be rendered."""

    template: str
    title: str
    section: str
    """The entry of the navigation that it belongs to."""
    page: Any
    """The value that the template shows."""
    status: int = 200
    watch: tuple[JobRef, ...] = ()
    """Jobs whose events update the page."""
    is_live: bool = True


@dataclass(frozen=True, kw_only=True)
class Redirect:
    """Another page to go to, after a change."""

    path: str
    note: str = ""
    """A key of :data:`NOTES`."""
    cookies: tuple[str, ...] = ()


NOTES: Final[Mapping[str, str]] = {
    "cancelled": "The job was cancelled.",
    "replayed": "The job was replayed: it runs again with fresh attempts.",
    "deleted": "The job was deleted.",
    "edited": "The job was changed.",
    "due": "The job is ready to run now.",
    "copied": "A copy was enqueued. This is it.",
    "exists": "A job with that key exists already. This is it.",
    "paused": "The queue is paused. Running jobs go on.",
    "resumed": "The queue is resumed.",
    "configured": "The settings were saved.",
    "quiet": "The worker claims no more jobs. It obeys with its next heartbeat.",
    "worker-resumed": "The worker claims jobs again, from its next heartbeat on.",
    "stopping": "The worker stops after its running jobs. It obeys with its next heartbeat.",
    "schedule-saved": "The schedule was saved.",
    "schedule-paused": "The schedule is paused.",
    "schedule-resumed": "The schedule is resumed.",
    "schedule-run": "The schedule's job was enqueued. This is it.",
    "schedule-deleted": "The schedule was deleted. The jobs that it enqueued stay.",
    "batch-paused": "The batch's queue is paused.",
    "batch-resumed": "The batch's queue is resumed.",
    "batch-cancelled": "The batch was cancelled.",
    "batch-deleted": "The batch was deleted.",
    "revoked": "The token was revoked. Its sessions have ended.",
    "operation-cancelled": "The operation was stopped. What it changed stays changed.",
    "operation-empty": "No job matched. Nothing was changed.",
    "some": "The selected jobs were changed.",
    "partly": "Some of the selected jobs were changed. The others were in a state that does not allow it.",
    "none": "Nothing was changed: no selected job was in a state that allows it.",
    "logged-out": "You are logged out.",
}
"""What pages say after a change. Fixed texts: a link cannot make a page say anything else."""


@dataclass(kw_only=True)
class Visit:
    """A request to a page, with the caller and the services."""

    request: Request
    services: Services
    identity: Identity
    reads: Reads
    pulse: Pulse
    """The state of the store, as the caller sees it."""
    path: Mapping[str, str] = field(default_factory=dict)
    """The names in the path, decoded."""
    query: Mapping[str, str] = field(default_factory=dict)
    form: Form = field(default_factory=lambda: Form(()))
    is_live: bool = False
    """Whether a page asks for its own update: then answers may be shared among viewers."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self.services.store.core.capabilities

    def has(self, feature: Feature) -> bool:
        """Whether the store has a feature (A7)."""
        return self.capabilities.has(feature)

    @property
    def scope(self) -> tuple[Any, ...]:
        """What decides what the caller sees: part of the key of a shared read."""
        return scope_key(self.identity)

    def may(self, operation: str) -> bool:
        """Whether the caller may ask for an operation. The service checks again; this decides what is offered."""
        return is_permitted(self.identity, operation)

    @property
    def job(self) -> Name:
        """The job that the path names."""
        queue = self.path.get("queue")
        return self.path["id"] if queue is None else JobRef(queue, self.path["id"])

    @property
    def cursor(self) -> str | None:
        """Where the page begins."""
        return self.query.get("cursor") or None

    def moment(self, at: datetime | None) -> Moment | None:
        """Write a time relative to that of the visit."""
        return moment(at, self.now)

    def confirm(self, question: Confirmation) -> None:
        """Go on only when the person has confirmed.

        Raises:
            NeedsConfirmation: not yet.
        """
        if not self.form.has("confirmed"):
            raise NeedsConfirmation(question)

    def job_path(self, job: Job | JobRef) -> str:
        """Return the path of a job's page."""
        ref = job.ref if isinstance(job, Job) else job
        if self.capabilities.has_global_ids:
            return f"/jobs/{encode_name(ref.id)}"
        return f"/queues/{encode_name(ref.queue)}/jobs/{encode_name(ref.id)}"


class FormKind(Enum):
    """What a form has. It bounds the size of the form."""

    SMALL = "small"
    """A few settings."""
    SELECTION = "selection"
    """Jobs of a list."""
    PAYLOAD = "payload"
    """A job's payload."""


View = Callable[[Visit], Awaitable[Screen | Redirect]]


@dataclass(frozen=True, kw_only=True)
class PageRoute:
    """A path and its views."""

    path: str
    show: View | None = None
    """GET."""
    change: View | None = None
    """POST."""
    form: FormKind = FormKind.SMALL
    """How much the form of ``change`` may be."""
    operation: str = ""
    """What the caller needs the permission for before the form is read. A form with a payload has one."""
