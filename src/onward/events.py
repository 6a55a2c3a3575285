"""What can be told about a job while it lives: one vocabulary on every engine (B7).

Events come in the order in which the store committed them, and each says where it stands: whoever keeps an event's
``cursor`` can go on after it, in another process too, and misses nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from onward.job import JobRef

OLDEST: Final = "oldest"
"""The cursor before all events that the store still keeps."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that happened to a job."""

    ref: JobRef
    at: datetime
    type: str | None = None
    """The job's task; None where the store no longer has the job."""
    org_id: str | None = None
    """The job's organisation."""
    attempts: int | None = None
    """None where the store does not say."""
    cursor: str = ""
    """Where it stands among all events that were asked for: pass it as ``cursor`` to continue after it."""

    @property
    def name(self) -> str:
        """The event's word, as the stores and the webhooks write it."""
        return str(self.__struct_config__.tag)


class Waiting(Event, frozen=True, kw_only=True, tag="waiting"):
    """It is ready and waits for a worker."""


class Active(Event, frozen=True, kw_only=True, tag="active"):
    """A worker has started it."""

    worker_id: str | None = None


class Progress(Event, frozen=True, kw_only=True, tag="progress"):
    """Its handler says how far it is."""

    progress: int | None
    """None where a worker in another language has said it otherwise: then ``message`` is what it said, as JSON."""
    message: str | None = None


class Completed(Event, frozen=True, kw_only=True, tag="completed"):
    """Its handler returned."""

    result: Any = None


class Failed(Event, frozen=True, kw_only=True, tag="failed"):
    """It has ended without a result, or this attempt has."""

    error: str
    traceback: tuple[str, ...] = ()
    is_cancelled: bool = False
    """It was taken back, by somebody or by its own handler, or had not started in time: no run of it went wrong."""


class Stalled(Event, frozen=True, kw_only=True, tag="stalled"):
    """Its worker went silent; it has been taken back."""


class Retry(Event, frozen=True, kw_only=True, tag="retry"):
    """It failed and will be tried again."""

    delay: float
    """Seconds."""


AnyEvent = Waiting | Active | Progress | Completed | Failed | Stalled | Retry


def tags_of(types: Iterable[type[Event]]) -> frozenset[str] | None:
    """Return the words of some classes of events; None for none given: all."""
    return frozenset(str(kind.__struct_config__.tag) for kind in types) or None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """What came after a cursor, and how far that was looked for."""

    events: tuple[AnyEvent, ...] = ()
    cursor: str
    """After all that was looked at, whether or not it was asked for."""
    more: bool = False
    """There is more already."""


class EventStream:
    """Events as they come: ``async for event in app.events("mail/*")``.

    Without a cursor it begins when the first event is asked for; as ``async with app.events() as events`` it begins
    with the block, and what is enqueued within that is told of for certain.
    """

    def __init__(self, begin: Callable[[], Awaitable[AsyncGenerator[AnyEvent, None]]]) -> None:
        self._begin = begin
        self._told: AsyncGenerator[AnyEvent, None] | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        if self._told is None:
            self._told = await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the store."""
        if self._told is not None:
            told, self._told = self._told, None
            await told.aclose()

    def __aiter__(self) -> Self:
        """Go on from where it stands."""
        return self

    async def __anext__(self) -> AnyEvent:
        """Wait for the next event."""
        if self._told is None:
            self._told = await self._begin()
        return await anext(self._told)
