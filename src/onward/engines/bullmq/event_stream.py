"""Follows BullMQ's streams of events, one for each queue, and tells of them in Onward's words (B7).

A stream is read from a place on, by a connection that is for nothing else, so nothing is missed between two reads, nor
while the server is away. Where "now" is, is settled by one look at the server before anything is waited for: a reader
that asked for "whatever comes next" would miss what comes before its question does.

A cursor says how far each queue's stream was read. A queue that it does not name was read up to the moment at which
the reading began, by the server's clock, since an entry's id is the time at which it was written.

BullMQ writes less than we tell. A retry is a job that left its worker for the line, or for later, and has a failure on
record; who ran a job, how often, and its stack are looked up when its event is read, and are what is known then.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from redis.exceptions import RedisError

from onward.clock import moment_of
from onward.engines.bullmq import rows
from onward.engines.bullmq.commands import Asked, Plan, aexecute, script
from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.queue_registry import Names, is_pattern
from onward.engines.bullmq.server import Server
from onward.errors import InvalidJob, StoreUnavailable
from onward.events import (
    OLDEST,
    AnyEvent,
    JobActive,
    JobCompleted,
    JobFailed,
    JobProgress,
    JobRetry,
    JobStalled,
    JobWaiting,
)
from onward.job import JobRef

log = logging.getLogger("onward.engines.bullmq")

T = TypeVar("T")

_AT_ONCE: Final = 200
"""Entries of one stream that are read together."""
_TOGETHER: Final = 500
"""Queues that one script call looks at."""
_WAIT: Final = 5.0
_WAIT_FOR_NAMES: Final = 1.0
"""Seconds that the server sits on one question; fewer where queues may be made meanwhile that a pattern means."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
"""Seconds between tries to reach a server that is away."""
_LAST_OF_ITS_MILLISECOND: Final = 2**64 - 1
_ID: Final = re.compile(r"\d+-\d+")
_LOOKED_UP: Final = ("failedReason", "atm", "pb", "stacktrace")


class Ask(Protocol):
    """Drives a plan."""

    def __call__(self, plan: Plan[T]) -> Awaitable[T]:
        """Drive it."""
        ...


class Entry(NamedTuple):
    """One entry of a stream."""

    time: int
    number: int
    queue: str
    id: str
    said: Mapping[str, str]

    @property
    def about(self) -> JobRef:
        """The job that it is about."""
        return JobRef(self.queue, self.said.get("jobId", ""))


class Place:
    """How far the streams have been read."""

    def __init__(self, began: str, reached: Mapping[str, str]) -> None:
        self._began = began
        self._known: dict[str, str] = {}
        self._reached = dict(reached)

    @classmethod
    def of(cls, cursor: str) -> Place:
        """Read a cursor."""
        try:
            began, reached = _cursors.decode(cursor)
            if all(map(_ID.fullmatch, (began, *reached.values()))):
                return cls(began, reached)
        except msgspec.MsgspecError:
            pass
        raise InvalidJob("after", cursor, "must be the cursor of an event, or events.OLDEST")

    @property
    def reached(self) -> Mapping[str, str]:
        """How far the streams were read of which something has been told."""
        return self._reached

    def know(self, queue: str, last: str) -> None:
        """Note where a stream ended when the reading began: exact, where the clock is not."""
        self._known[queue] = last

    def __getitem__(self, queue: str) -> str:
        """Say after which entry of a queue to go on."""
        return self._reached.get(queue) or self._known.get(queue) or self._began

    def move(self, entry: Entry) -> None:
        """Note that an entry has been told."""
        self._reached[entry.queue] = entry.id

    @property
    def cursor(self) -> str:
        """Write it down."""
        return msgspec.json.encode((self._began, self._reached)).decode()


_cursors: msgspec.json.Decoder[tuple[str, dict[str, str]]] = msgspec.json.Decoder(tuple[str, dict[str, str]])


class Follower:
    """Reads the streams of one engine's queues."""

    def __init__(self, server: Server, layout: Layout, names: Names, ask: Ask) -> None:
        self._server = server
        self._layout = layout
        self._names = names
        self._ask = ask

    async def begin(
        self, patterns: tuple[str, ...], after: str | None, types: frozenset[str] | None
    ) -> AsyncGenerator[AnyEvent, None]:
        """Find the place to begin at, and give what comes after it."""
        queues = await self._ask(self._queues(patterns))
        now, ends = await self._ask(self._ends(queues))
        if after is None:
            place = Place(f"{now - 1}-{_LAST_OF_ITS_MILLISECOND}", {})
            for queue, (_, last) in ends.items():
                if last:
                    place.know(queue, last)
        elif after == OLDEST:
            place = Place("0-0", {})
        else:
            place = Place.of(after)
            for queue, (first, _) in ends.items():
                if queue in place.reached and first and _order(place[queue]) < _order(first):
                    raise InvalidJob("after", after, _TOO_OLD.format(queue=queue))
        return self._events(patterns, place, types)

    async def _events(
        self, patterns: tuple[str, ...], place: Place, types: frozenset[str] | None
    ) -> AsyncGenerator[AnyEvent, None]:
        before: dict[str, Entry] = {}
        async for entries in self._entries(patterns, place):
            facts = await self._ask(self._facts(entries, types))
            for entry, after in zip(entries, _following(entries), strict=True):
                events = list(_told(entry, before.get(entry.queue), after, facts.get(entry.about, {})))
                wanted = [event for event in events if types is None or event.name in types]
                for event in wanted[:-1]:  # whoever goes on from here hears both again
                    yield msgspec.structs.replace(event, cursor=place.cursor)
                place.move(entry)
                for event in wanted[-1:]:
                    yield msgspec.structs.replace(event, cursor=place.cursor)
                before[entry.queue] = entry

    async def _entries(self, patterns: tuple[str, ...], place: Place) -> AsyncGenerator[list[Entry], None]:
        """Read what comes, in order, through all troubles of the server."""
        pause = _FIRST_PAUSE
        while True:
            asked = self._server.asked(most=1, waits=_WAIT)
            try:
                while True:
                    entries = await self._read(asked, patterns, place)
                    pause = _FIRST_PAUSE
                    if entries:
                        yield entries
            except (RedisError, OSError, StoreUnavailable) as error:
                log.warning("cannot follow events of %s, tries again: %s", self._server, error)
            finally:
                with suppress(RedisError, OSError):
                    await asked.close()
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - jitter
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _read(self, asked: Asked, patterns: tuple[str, ...], place: Place) -> list[Entry]:
        queues = await self._ask(self._queues(patterns))
        wait = _WAIT_FOR_NAMES if any(map(is_pattern, patterns)) else _WAIT
        if not queues:
            await asyncio.sleep(wait)
            return []
        where = (*map(self._stream, queues), *map(place.__getitem__, queues))
        asking = ("XREAD", "COUNT", _AT_ONCE, "BLOCK", int(wait * 1000), "STREAMS", *where)
        (answers,) = await aexecute(asked, [asking])
        found: list[Entry] = []
        for stream, entries in answers or ():
            queue = stream[len(self._layout.root) : -len(":events")]
            if len(entries) == _AT_ONCE:
                await self._check_none_lost(queue, place)
            found += [Entry(*_order(id), queue, id, said) for id, said in entries]
        found.sort(key=lambda entry: entry[:3])
        return found

    async def _check_none_lost(self, queue: str, place: Place) -> None:
        """Say so if we are so far behind that what we had read last is no longer kept."""
        _, ends = await self._ask(self._ends([queue]))
        if queue in place.reached and _order(place[queue]) < _order(ends[queue][0]):
            raise InvalidJob("after", place[queue], _TOO_OLD.format(queue=queue))

    def _stream(self, queue: str) -> str:
        return f"{self._layout.base(queue)}events"

    def _queues(self, patterns: tuple[str, ...]) -> Plan[list[str]]:
        if any(map(is_pattern, patterns)):
            yield from self._names.read()
        return (yield from self._names.matching(patterns))

    def _ends(self, queues: Sequence[str]) -> Plan[tuple[int, dict[str, tuple[str, str]]]]:
        """Say what the server's time is, and where streams begin and end."""
        now = 0
        ends: dict[str, tuple[str, str]] = {}
        for first in range(0, max(len(queues), 1), _TOGETHER):
            some = queues[first : first + _TOGETHER]
            keys = [self._layout.meta(queue) for queue in some] or [self._layout.queues]
            (answer,) = yield [script("ends", self._layout, keys)]
            now = now or int(answer[0])
            ends.update(zip(some, zip(answer[1::2], answer[2::2], strict=True), strict=False))
        return now, ends

    def _facts(
        self, entries: Sequence[Entry], types: frozenset[str] | None
    ) -> Plan[dict[JobRef, Mapping[str, str | None]]]:
        """Look up what the store knows of jobs beside their events."""
        jobs = list(dict.fromkeys(entry.about for entry in entries if _is_looked_up(entry, types)))
        answers = yield [("HMGET", self._layout.base(job.queue) + job.id, *_LOOKED_UP) for job in jobs]
        return {job: dict(zip(_LOOKED_UP, answer, strict=True)) for job, answer in zip(jobs, answers, strict=True)}


_TOO_OLD: Final = (
    "is too old: of queue {queue}, some events after it are no longer kept (events.OLDEST has what is left)"
)
_WORDS: Final = {
    "active": {"active"},
    "completed": {"completed"},
    "failed": {"failed"},
    "delayed": {"retry"},
}


def _order(id: str) -> tuple[int, int]:
    time, _, number = id.partition("-")
    return int(time), int(number or 0)


def _is_looked_up(entry: Entry, types: frozenset[str] | None) -> bool:
    event = entry.said.get("event", "")
    words = {"retry"} if event == "waiting" and entry.said.get("prev") == "active" else _WORDS.get(event, set())
    return bool(words) and (types is None or bool(words & types))


def _following(entries: Sequence[Entry]) -> list[Entry | None]:
    """Give for each entry the one that follows in the same stream."""
    seen: dict[str, Entry] = {}
    found: list[Entry | None] = []
    for entry in reversed(entries):
        found.append(seen.get(entry.queue))
        seen[entry.queue] = entry
    return found[::-1]


def _told(
    entry: Entry, before: Entry | None, after: Entry | None, facts: Mapping[str, str | None]
) -> Iterator[AnyEvent]:
    """Say what an entry tells, in our words: nothing, one event, or a retry and that the job waits."""
    said = entry.said
    about: dict[str, Any] = {"ref": entry.about, "at": moment_of(entry.time * 1000)}
    made = int(facts.get("atm") or 0) or None
    has_failed = bool(facts.get("failedReason")) and made is not None
    match said.get("event"):
        case "waiting":
            if has_failed and said.get("prev") == "active" and not _is_of(after, entry, "stalled"):
                yield JobRetry(**about, attempts_made=made, delay=0.0)
            yield JobWaiting(**about)
        case "active":
            yield JobActive(**about, worker_id=facts.get("pb"))
        case "progress":
            value, message = rows.progress_of(said.get("data"))
            yield JobProgress(**about, value=value, message=said.get("data") if value is None else message)
        case "completed":
            yield JobCompleted(**about, attempts_made=made, returnvalue=rows.value_of(said.get("returnvalue")))
        case "failed":
            stack = rows.value_of(facts.get("stacktrace"))
            lines = tuple(map(str, stack)) if isinstance(stack, list) else ()
            yield JobFailed(**about, attempts_made=made, failed_reason=said.get("failedReason", ""), stacktrace=lines)
        case "stalled":
            yield JobStalled(**about)
        case "delayed" if has_failed and not _is_of(before, entry, "added"):
            delay = max(0.0, float(said.get("delay") or 0) - entry.time) / 1000
            yield JobRetry(**about, attempts_made=made, delay=delay)


def _is_of(beside: Entry | None, entry: Entry, event: str) -> bool:
    """Say whether the entry beside another is about the same job, and of an event."""
    return beside is not None and beside.about == entry.about and beside.said.get("event") == event
