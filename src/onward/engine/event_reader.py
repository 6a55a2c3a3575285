"""Tells of what a store has recorded: the part that is the same wherever an engine keeps a record of its own (B7).

A record is kept only while somebody listens, or where it was asked for once and for all: whoever listens says so to the
store again and again (:meth:`Record.listen`), and it is believed for a while after the last time. So who goes away and
comes back soon has missed nothing, and nobody has to say goodbye.

A :class:`Record` is read from a place on. Where the place is in a time of which nothing was recorded, it gives what the
history of finished jobs knows instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec

from onward.clock import moment_of
from onward.errors import InvalidValue, StoreUnavailable
from onward.events import (
    Active,
    AnyEvent,
    Completed,
    EventPage,
    Failed,
    Progress,
    Retry,
    Stalled,
    Waiting,
)
from onward.job import JobRef
from onward.validation import check_at_least, matches

log = logging.getLogger("onward.events")

P = TypeVar("P")

Events = Literal["all", "on_demand"]
"""When events are recorded: always, or while somebody listens."""

LEASE: Final = timedelta(seconds=30)
"""How long somebody who listens is believed to."""
_RENEW: Final = LEASE.total_seconds() / 3
_AT_ONCE: Final = 500
"""Events that are read together."""
_FIRST_LOOK: Final = 0.02
_LAST_LOOK: Final = 1.0
"""Seconds between looks where nothing is heard: a signal is only a hint."""
_BREATH: Final = 0.005
"""Seconds between looks however much is heard: a busy store signals thousands of times a second."""

NO_CURSOR: Final = "must be the cursor of an event, or events.OLDEST"
TOO_OLD: Final = "is too old: some events after it are no longer kept (events.OLDEST has what is left)"


def check_settings(events: str | None, kept: int | None) -> None:
    """Refuse what a record cannot keep to."""
    if events is not None and events not in get_args(Events):
        raise InvalidValue("events", events, "must be 'all' or 'listened'")
    if kept is not None:
        check_at_least("max_events", kept, 1)


class LogEntry(NamedTuple):
    """One entry of a record."""

    cursor: str
    at: int
    event: str
    """Its word; a job that was taken back has ``cancelled``."""
    queue: str
    id: str
    type: str
    org_id: str | None
    attempts: int
    number: int | None
    """Of progress, how much; of a retry, in how many microseconds."""
    said: str | None
    """Who runs it, what it said, its result as JSON, or why it failed."""
    stack: str | None


class LogPage(NamedTuple, Generic[P]):
    """What a look at a record gave."""

    entries: Sequence[LogEntry]
    place: P
    more: bool
    """There is more already: look again at once."""


class EventLog(Protocol[P]):
    """What a store has to do."""

    async def listen(self) -> None:
        """See to it that events are recorded for a :data:`LEASE` from now on."""
        ...

    def place(self, cursor: str) -> P:
        """Read a cursor.

        Raises:
            InvalidValue: it is none.
        """
        ...

    async def begin(self, cursor: str | None) -> P:
        """Do the same, and find the place to begin at; when it returns, whatever is committed comes after it.

        Raises:
            InvalidValue: ``after`` is no cursor, or one of so long ago that what came after it is no longer kept.
        """
        ...

    async def read(self, place: P, event_types: frozenset[str] | None, limit: int) -> LogPage[P]:
        """Read what came after a place, in the order of commit.

        Raises:
            InvalidValue: it is no longer kept.
        """
        ...


class EventReader(Generic[P]):
    """Tells everyone who asks what a record has."""

    def __init__(self, record: EventLog[P], signals: Callable[[], AsyncIterator[Any]]) -> None:
        self._record = record
        self._signals = signals

    async def begin(
        self, queues: Sequence[str], cursor: str | None, types: frozenset[str] | None
    ) -> AsyncGenerator[AnyEvent, None]:
        """See the contract."""
        place = await self._record.begin(cursor)
        return self._events(tuple(queues), place, types)

    async def read(self, queues: Sequence[str], cursor: str, types: frozenset[str] | None, limit: int) -> EventPage:
        """See the contract's ``read_events``."""
        read = await self._record.read(self._record.place(cursor), _recorded(types), limit)
        events = [event_of(one) for one in read.entries if any(matches(pattern, one.queue) for pattern in queues)]
        return EventPage(events=tuple(events), cursor=str(read.place), more=read.more)

    async def _events(
        self, queues: tuple[str, ...], place: P, types: frozenset[str] | None
    ) -> AsyncGenerator[AnyEvent, None]:
        bell = asyncio.Event()
        # Beside the reading, so that it goes on while whoever listens is busy with an event.
        tasks = [
            asyncio.create_task(self._stay(), name="onward-events-lease"),
            asyncio.create_task(self._hear(bell), name="onward-events-signals"),
        ]
        wanted: dict[str, bool] = {}
        event_types = _recorded(types)
        pause = _FIRST_LOOK
        try:
            while True:
                bell.clear()
                try:
                    read = await self._record.read(place, event_types, _AT_ONCE)
                except StoreUnavailable as error:
                    log.warning("store unavailable, events are waited for: %s", error)
                    await asyncio.sleep(_LAST_LOOK)
                    continue
                place = read.place
                for entry in read.entries:
                    if (is_wanted := wanted.get(entry.queue)) is None:
                        is_wanted = wanted[entry.queue] = any(matches(pattern, entry.queue) for pattern in queues)
                    if is_wanted:
                        yield event_of(entry)
                if read.more:
                    continue
                pause = _FIRST_LOOK if read.entries else min(pause * 2, _LAST_LOOK)
                await asyncio.sleep(_BREATH)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await bell.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stay(self) -> None:
        while True:
            await asyncio.sleep(_RENEW)
            try:
                await self._record.listen()
            except StoreUnavailable as error:
                log.warning("store unavailable, events may not be recorded meanwhile: %s", error)

    async def _hear(self, bell: asyncio.Event) -> None:
        async with contextlib.aclosing(self._signals()) as signals:  # type: ignore[type-var]
            async for _ in signals:
                bell.set()


def _recorded(types: frozenset[str] | None) -> frozenset[str] | None:
    """Say by which words of a record the kinds of events are found."""
    return types | {"cancelled"} if types and "failed" in types else types


def event_of(entry: LogEntry) -> AnyEvent:
    """Say what an entry says, in our words."""
    about: dict[str, Any] = {
        "ref": JobRef(entry.queue, entry.id),
        "at": moment_of(entry.at),
        "type": entry.type,
        "org_id": entry.org_id,
        "attempts": entry.attempts,
        "cursor": entry.cursor,
    }
    match entry.event:
        case "waiting":
            return Waiting(**about)
        case "active":
            return Active(**about, worker_id=entry.said)
        case "progress":
            return Progress(**about, progress=entry.number, message=entry.said)
        case "completed":
            return Completed(**about, result=None if entry.said is None else msgspec.json.decode(entry.said))
        case "failed" | "cancelled":
            stack = () if entry.stack is None else (entry.stack,)
            is_cancelled = entry.event == "cancelled"
            return Failed(**about, error=entry.said or "", traceback=stack, is_cancelled=is_cancelled)
        case "stalled":
            return Stalled(**about)
        case "retry":
            return Retry(**about, delay=(entry.number or 0) / 1e6)
        case word:
            message = f"the record has an event of a newer version: {word}"
            raise InvalidValue("event", word, message)
