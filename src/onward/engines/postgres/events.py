"""Records what happens to jobs, while somebody listens, and reads it again.

The record is written by triggers, so whoever moves a job is told of, by hand too.

Transactions become visible in another order than that in which they wrote, so a number says nothing about what has been
read. A place is what could be seen at a look, as the database itself writes it down (``pg_snapshot``): the next look
gives what can be seen now and could not be seen then. So a transaction that commits late is neither missed nor waited
for. Events that are seen together come in the order in which they were written: what happened to one job happened in
that order, for its row was locked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, NamedTuple

from onward.clock import MICROSECOND
from onward.engine.event_reader import LEASE, NO_CURSOR, TOO_OLD, Events, LogEntry, LogPage
from onward.engines.postgres.schema import Schema
from onward.errors import InvalidJob
from onward.events import OLDEST
from onward.pg.plans import Plan, Statement

log = logging.getLogger("onward.engines.postgres")

Ask = Callable[[Callable[[], Plan[Any]]], Coroutine[Any, Any, Any]]

_TRIMMED_AT_ONCE: Final = 5_000
_LONGEST_SETTLEMENT: Final = 3_600_000_000
"""Microseconds that a transaction may stay open in which a job ended, for that to be found if it was not recorded."""
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5
_PATIENCE: Final = 5.0
"""Seconds of waiting for an open transaction after which it is said in the log."""
_PATIENCE_AT_OPENING: Final = 1.0
_SNAPSHOT: Final = r"\d{1,19}:\d{1,19}:(?:\d{1,19}(?:,\d{1,19})*)?"
_CURSOR: Final = re.compile(
    rf"(\d{{1,18}})/({_SNAPSHOT})(?:/({_SNAPSHOT})/(\d{{1,18}})|/(\d{{1,18}})-([01])-(\d{{1,18}}))?"
)


class Place(NamedTuple):
    """How far the record has been read."""

    at: int
    seen: str
    """What could be seen at the last look of which all has been told."""
    until: str = ""
    no: int = 0
    """Of what the next look saw, how much has been told."""
    caught: tuple[int, int, int] = (-1, 0, 0)
    """While catching up: the time, the source and the number of the last entry."""

    @classmethod
    def of(cls, cursor: str) -> Place:
        """Read a cursor."""
        if cursor == OLDEST:
            return _BEGINNING
        found = _CURSOR.fullmatch(cursor)
        if found is None or any(
            _bounds(snapshot)[0] > _bounds(snapshot)[1] for snapshot in found.group(2, 3) if snapshot
        ):
            raise InvalidJob("after", cursor, NO_CURSOR)
        at, seen, until, no, *caught = found.groups()
        place = cls(int(at), seen, until or "", int(no or 0))
        return place if caught[0] is None else place._replace(caught=(int(caught[0]), int(caught[1]), int(caught[2])))

    def __str__(self) -> str:
        """Write it down."""
        if self.caught[0] >= 0:
            return f"{self.at}/{self.seen}/{'-'.join(map(str, self.caught))}"
        return f"{self.at}/{self.seen}/{self.until}/{self.no}" if self.until else f"{self.at}/{self.seen}"


_BEGINNING: Final = Place(0, "1:1:")


class _Log(NamedTuple):
    seen: str
    now: int
    whole_since: str
    trimmed: int
    pruned_at: int

    def caught_up(self, place: Place) -> Place | None:
        """Say from where on the record is whole, if a place lies before that.

        Raises:
            InvalidJob: what came after the place is no longer kept.
        """
        first, last = _bounds(place.seen)
        whole = Place(self.now, self.whole_since)
        if place[:2] == _BEGINNING[:2]:
            kept = self.trimmed + 1
            return Place(self.now, f"{kept}:{kept}:") if kept > _bounds(whole.seen)[1] else whole
        if first <= self.trimmed:
            raise InvalidJob("after", str(place), TOO_OLD)
        if last >= _bounds(whole.seen)[1]:
            return None
        if self.pruned_at >= max(place.at, place.caught[0]):
            raise InvalidJob("after", str(place), TOO_OLD)
        return whole


def read(schema: Schema, place: Place, words: frozenset[str] | None, limit: int) -> Plan[LogPage[Place]]:
    """Read what came after a place."""
    log = yield from _log(schema)
    wanted = None if words is None else sorted(words)
    whole = log.caught_up(place)
    if whole is not None:
        return (yield from _catch_up(schema, place, whole, wanted, limit))
    until = place.until or log.seen
    if until == place.seen:
        return LogPage((), place, more=False)
    rows = yield Statement(schema.event_read, [place.seen, until, place.no, wanted, limit])
    entries = [LogEntry(str(Place(row[1], place.seen, until, row[0])), *row[1:]) for row in rows]
    if len(rows) == limit:
        return LogPage(entries, place._replace(until=until, no=rows[-1][0]), more=True)
    return LogPage(entries, Place(log.now, until), more=bool(place.until))


def _catch_up(schema: Schema, place: Place, whole: Place, words: list[str] | None, limit: int) -> Plan[LogPage[Place]]:
    since = max(0, place.at - _LONGEST_SETTLEMENT)
    rows = yield Statement(schema.event_catch_up, [place.seen, whole.seen, since, *place.caught, words, limit])
    places = [place._replace(until="", no=0, caught=(row[0], row[1], row[2])) for row in rows]
    entries = [LogEntry(str(at), row[0], *row[3:]) for at, row in zip(places, rows, strict=True)]
    return LogPage(entries, places[-1] if len(rows) == limit else whole, more=True)


def hold(schema: Schema, name: str, holder: str, cursor: str, lease: timedelta, *, anew: bool) -> Plan[str | None]:
    """Hold a bookmark; one that is new stands at the cursor."""
    values = [schema.now, name, holder, cursor, anew, lease // MICROSECOND]
    rows = yield Statement(schema.event_cursor_acquire, values)
    return str(rows[0][0]) if rows else None


def move(schema: Schema, name: str, holder: str, cursor: str) -> Plan[bool]:
    """Put a bookmark further on."""
    return bool((yield Statement(schema.event_cursor_commit, [name, holder, cursor])))


def tend(schema: Schema) -> Plan[bool]:
    """Stop recording where nobody listens any longer, and let go of old events; say whether there are more of them."""
    ((more,),) = yield Statement(schema.event_trim, [schema.now, _TRIMMED_AT_ONCE])
    return bool(more)


class EventLog:
    """The record of one store: see :class:`onward.engine.event_reader.Record`."""

    def __init__(self, schema: Schema, ask: Ask) -> None:
        self._schema = schema
        self._ask = ask

    async def open(self, events: Events | None, kept: int | None) -> None:
        """Note when events are to be recorded, and how many kept; None: as it was."""
        await self._ask(lambda: self._settings(events, kept))
        if events == "all" and await self._ask(lambda: self._listen(0)):
            await self.settle(_PATIENCE_AT_OPENING)  # if that is not enough, whoever first listens waits

    async def listen(self) -> None:
        """See the protocol. Who listens also lets go of old events: there may be no leader."""
        if await self._ask(self._listen):
            await self.settle()
        await self.tend()

    def place(self, cursor: str) -> Place:
        """See the protocol."""
        return Place.of(cursor)

    async def begin(self, after: str | None) -> Place:
        """See the protocol."""
        place = None if after is None else Place.of(after)
        if await self._ask(self._listen):
            await self.settle()
        log = await self._ask(lambda: _log(self._schema))
        if place is None:
            return Place(log.now, log.seen)
        if _bounds(place.until or place.seen)[1] > _bounds(log.seen)[1]:
            raise InvalidJob("after", after, NO_CURSOR)
        log.caught_up(place)
        return place

    async def read(self, place: Place, words: frozenset[str] | None, limit: int) -> LogPage[Place]:
        """See the protocol."""
        answer: LogPage[Place] = await self._ask(lambda: read(self._schema, place, words, limit))
        return answer

    async def tend(self) -> None:
        """Keep the record as short as it should be."""
        while await self._ask(lambda: tend(self._schema)):
            pass

    async def settle(self, query_timeout: float | None = None) -> None:
        """Wait until nobody writes any longer who began before events were recorded, or for so many seconds."""
        began, pause, is_said = time.monotonic(), _FIRST_PAUSE, False
        writers = await self._writers(None)
        while writers:
            waited = time.monotonic() - began
            if query_timeout is not None and waited >= query_timeout:
                return
            if waited >= _PATIENCE and not is_said:
                is_said = True
                log.warning("events begin when %d open transactions have ended that have written jobs", len(writers))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            writers = await self._writers(writers)
        await self._ask(self._settled)

    def _settings(self, events: Events | None, kept: int | None) -> Plan[None]:
        yield Statement(self._schema.event_settings, [None if events is None else events == "all", kept])

    def _listen(self, lease: int = LEASE // MICROSECOND) -> Plan[bool]:
        ((must_wait,),) = yield Statement(self._schema.event_listen, [self._schema.now, lease])
        return bool(must_wait)

    async def _writers(self, of: list[str] | None) -> list[str]:
        """List open transactions that have written jobs, or those that are left of some."""

        def ask() -> Plan[list[str]]:
            return [row[0] for row in (yield Statement(self._schema.event_writers, [of]))]

        writers: list[str] = await self._ask(ask)
        return writers

    def _settled(self) -> Plan[None]:
        yield Statement(self._schema.event_mark_complete)


def _log(schema: Schema) -> Plan[_Log]:
    (row,) = yield Statement(schema.event_log, [schema.now])
    return _Log(*row)


def _bounds(snapshot: str) -> tuple[int, int]:
    """Say which transactions a look could see all of, and from which on none."""
    first, last, _ = snapshot.split(":")
    return int(first), int(last)
