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
from onward.engines.postgres.statements import Schema
from onward.errors import InvalidValue
from onward.events import OLDEST
from onward.pg.plan_runner import Plan, Statement

log = logging.getLogger("onward.engines.postgres")

Run = Callable[[Callable[[], Plan[Any]]], Coroutine[Any, Any, Any]]

_TRIM_BATCH: Final = 5_000
_MAX_TRANSACTION: Final = 3_600_000_000
"""Microseconds that a transaction may stay open in which a job ended, for that to be found if it was not recorded."""
_FIRST_PAUSE: Final = 0.005
_MAX_PAUSE: Final = 0.5
_WARN_AFTER: Final = 5.0
"""Seconds of waiting for an open transaction after which it is said in the log."""
_OPEN_TIMEOUT: Final = 1.0
_SNAPSHOT: Final = r"\d{1,19}:\d{1,19}:(?:\d{1,19}(?:,\d{1,19})*)?"
_CURSOR: Final = re.compile(
    rf"(\d{{1,18}})/({_SNAPSHOT})(?:/({_SNAPSHOT})/(\d{{1,18}})|/(\d{{1,18}})-([01])-(\d{{1,18}}))?"
)


class EventPosition(NamedTuple):
    """How far the record has been read."""

    at: int
    snapshot: str
    """What could be seen at the last look of which all has been told."""
    next_snapshot: str = ""
    no: int = 0
    """Of what the next look saw, how much has been told."""
    caught_up_to: tuple[int, int, int] = (-1, 0, 0)
    """While catching up: the time, the source and the number of the last entry."""

    @classmethod
    def of(cls, cursor: str) -> EventPosition:
        """Read a cursor."""
        if cursor == OLDEST:
            return _OLDEST_POSITION
        found = _CURSOR.fullmatch(cursor)
        if found is None or any(
            _snapshot_bounds(snapshot)[0] > _snapshot_bounds(snapshot)[1] for snapshot in found.group(2, 3) if snapshot
        ):
            raise InvalidValue("cursor", cursor, NO_CURSOR)
        at, snapshot, next_snapshot, no, *caught_up_to = found.groups()
        position = cls(int(at), snapshot, next_snapshot or "", int(no or 0))
        return (
            position
            if caught_up_to[0] is None
            else position._replace(caught_up_to=(int(caught_up_to[0]), int(caught_up_to[1]), int(caught_up_to[2])))
        )

    def __str__(self) -> str:
        """Write it down."""
        if self.caught_up_to[0] >= 0:
            return f"{self.at}/{self.snapshot}/{'-'.join(map(str, self.caught_up_to))}"
        return (
            f"{self.at}/{self.snapshot}/{self.next_snapshot}/{self.no}"
            if self.next_snapshot
            else f"{self.at}/{self.snapshot}"
        )


_OLDEST_POSITION: Final = EventPosition(0, "1:1:")


class _Log(NamedTuple):
    snapshot: str
    now: int
    complete_since: str
    trimmed_xid: int
    pruned_at: int

    def caught_up(self, position: EventPosition) -> EventPosition | None:
        """Say from where on the record is whole, if a place lies before that.

        Raises:
            InvalidValue: what came after the place is no longer kept.
        """
        first, last = _snapshot_bounds(position.snapshot)
        complete = EventPosition(self.now, self.complete_since)
        if position[:2] == _OLDEST_POSITION[:2]:
            first_kept = self.trimmed_xid + 1
            return (
                EventPosition(self.now, f"{first_kept}:{first_kept}:")
                if first_kept > _snapshot_bounds(complete.snapshot)[1]
                else complete
            )
        if first <= self.trimmed_xid:
            raise InvalidValue("cursor", str(position), TOO_OLD)
        if last >= _snapshot_bounds(complete.snapshot)[1]:
            return None
        if self.pruned_at >= max(position.at, position.caught_up_to[0]):
            raise InvalidValue("cursor", str(position), TOO_OLD)
        return complete


def read(
    schema: Schema, position: EventPosition, event_types: frozenset[str] | None, limit: int
) -> Plan[LogPage[EventPosition]]:
    """Read what came after a place."""
    log = yield from _log(schema)
    wanted = None if event_types is None else sorted(event_types)
    complete = log.caught_up(position)
    if complete is not None:
        return (yield from _catch_up(schema, position, complete, wanted, limit))
    next_snapshot = position.next_snapshot or log.snapshot
    if next_snapshot == position.snapshot:
        return LogPage((), position, more=False)
    rows = yield Statement(schema.event_read, [position.snapshot, next_snapshot, position.no, wanted, limit])
    entries = [LogEntry(str(EventPosition(row[1], position.snapshot, next_snapshot, row[0])), *row[1:]) for row in rows]
    if len(rows) == limit:
        return LogPage(entries, position._replace(next_snapshot=next_snapshot, no=rows[-1][0]), more=True)
    return LogPage(entries, EventPosition(log.now, next_snapshot), more=bool(position.next_snapshot))


def _catch_up(
    schema: Schema, position: EventPosition, complete: EventPosition, event_types: list[str] | None, limit: int
) -> Plan[LogPage[EventPosition]]:
    since = max(0, position.at - _MAX_TRANSACTION)
    rows = yield Statement(
        schema.event_catch_up, [position.snapshot, complete.snapshot, since, *position.caught_up_to, event_types, limit]
    )
    positions = [position._replace(next_snapshot="", no=0, caught_up_to=(row[0], row[1], row[2])) for row in rows]
    entries = [LogEntry(str(at), row[0], *row[3:]) for at, row in zip(positions, rows, strict=True)]
    return LogPage(entries, positions[-1] if len(rows) == limit else complete, more=True)


def acquire_cursor(
    schema: Schema, name: str, holder: str, cursor: str, lease: timedelta, *, reset: bool
) -> Plan[str | None]:
    """Hold an event cursor; one that is new stands at the cursor given."""
    values = [schema.now, name, holder, cursor, reset, lease // MICROSECOND]
    rows = yield Statement(schema.event_cursor_acquire, values)
    return str(rows[0][0]) if rows else None


def commit_cursor(schema: Schema, name: str, holder: str, cursor: str) -> Plan[bool]:
    """Move an event cursor on."""
    return bool((yield Statement(schema.event_cursor_commit, [name, holder, cursor])))


def trim(schema: Schema) -> Plan[bool]:
    """Stop recording where nobody listens any longer, and let go of old events; say whether there are more of them."""
    ((more,),) = yield Statement(schema.event_trim, [schema.now, _TRIM_BATCH])
    return bool(more)


class EventLog:
    """The record of one store: see :class:`onward.engine.event_reader.EventLog`."""

    def __init__(self, schema: Schema, run: Run) -> None:
        self._schema = schema
        self._run = run

    async def open(self, events: Events | None, max_events: int | None) -> None:
        """Note when events are to be recorded, and how many kept; None: as it was."""
        await self._run(lambda: self._settings(events, max_events))
        if events == "all" and await self._run(lambda: self._listen(0)):
            await self.wait_for_writers(_OPEN_TIMEOUT)  # if that is not enough, whoever first listens waits

    async def listen(self) -> None:
        """See the protocol. Who listens also lets go of old events: there may be no leader."""
        if await self._run(self._listen):
            await self.wait_for_writers()
        await self.trim()

    def place(self, cursor: str) -> EventPosition:
        """See the protocol."""
        return EventPosition.of(cursor)

    async def begin(self, cursor: str | None) -> EventPosition:
        """See the protocol."""
        position = None if cursor is None else EventPosition.of(cursor)
        if await self._run(self._listen):
            await self.wait_for_writers()
        log = await self._run(lambda: _log(self._schema))
        if position is None:
            return EventPosition(log.now, log.snapshot)
        if _snapshot_bounds(position.next_snapshot or position.snapshot)[1] > _snapshot_bounds(log.snapshot)[1]:
            raise InvalidValue("cursor", cursor, NO_CURSOR)
        log.caught_up(position)
        return position

    async def read(
        self, position: EventPosition, event_types: frozenset[str] | None, limit: int
    ) -> LogPage[EventPosition]:
        """See the protocol."""
        answer: LogPage[EventPosition] = await self._run(lambda: read(self._schema, position, event_types, limit))
        return answer

    async def trim(self) -> None:
        """Keep the record as short as it should be."""
        while await self._run(lambda: trim(self._schema)):
            pass

    async def wait_for_writers(self, query_timeout: float | None = None) -> None:
        """Wait until nobody writes any longer who began before events were recorded, or for so many seconds."""
        began, pause, is_logged = time.monotonic(), _FIRST_PAUSE, False
        writers = await self._writers(None)
        while writers:
            wait_seconds = time.monotonic() - began
            if query_timeout is not None and wait_seconds >= query_timeout:
                return
            if wait_seconds >= _WARN_AFTER and not is_logged:
                is_logged = True
                log.warning("events begin when %d open transactions have ended that have written jobs", len(writers))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE)
            writers = await self._writers(writers)
        await self._run(self._mark_complete)

    def _settings(self, events: Events | None, max_events: int | None) -> Plan[None]:
        yield Statement(self._schema.event_settings, [None if events is None else events == "all", max_events])

    def _listen(self, lease: int = LEASE // MICROSECOND) -> Plan[bool]:
        ((must_wait,),) = yield Statement(self._schema.event_listen, [self._schema.now, lease])
        return bool(must_wait)

    async def _writers(self, of: list[str] | None) -> list[str]:
        """List open transactions that have written jobs, or those that are left of some."""

        def query() -> Plan[list[str]]:
            return [row[0] for row in (yield Statement(self._schema.event_writers, [of]))]

        writers: list[str] = await self._run(query)
        return writers

    def _mark_complete(self) -> Plan[None]:
        yield Statement(self._schema.event_mark_complete)


def _log(schema: Schema) -> Plan[_Log]:
    (row,) = yield Statement(schema.event_log, [schema.now])
    return _Log(*row)


def _snapshot_bounds(snapshot: str) -> tuple[int, int]:
    """Say which transactions a look could see all of, and from which on none."""
    first, last, _ = snapshot.split(":")
    return int(first), int(last)
