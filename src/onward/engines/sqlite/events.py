"""Records what happens to jobs, while somebody listens, and reads it again.

The record is written by triggers, so whoever moves a job is told of, by hand too. They are made when somebody begins to
listen and dropped when nobody has listened for a while: SQLite does either in the one transaction that notes it, and a
trigger that is not there costs nothing.

There is one writer, so the numbers of events are the order of commit. A place is such a number, and the time of that
event: by the time, what became of jobs while nothing was recorded is found among the finished jobs.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final, NamedTuple

from onward.clock import MICROSECOND
from onward.engine.event_reader import LEASE, NO_CURSOR, TOO_OLD, Events, LogEntry, LogPage
from onward.engines.sqlite.rows import json_text
from onward.engines.sqlite.statements import SQL, Statement
from onward.engines.sqlite.transaction import Transaction
from onward.engines.sqlite.writer import SharedConnection
from onward.errors import InvalidValue
from onward.events import OLDEST

_TRIGGERS: Final[tuple[tuple[str, Statement], ...]] = (
    ("onward_event_on_insert", SQL.event_trigger_insert),
    ("onward_event_on_status", SQL.event_trigger_status),
    ("onward_event_on_progress", SQL.event_trigger_progress),
)
_MAX_TRIMMED: Final = 5_000
"""Events that one transaction lets go of: a few milliseconds."""
_CLOCK_SLACK: Final = 1_000_000
"""Microseconds that a job's end may lie before an event that was committed before it: where the clock stands still, the
time of a change is moved on, and the time of an end is not."""
_CURSOR: Final = re.compile(r"(\d{1,18})-(\d{1,18})(?:-(\d{1,18})-([01])-(\d{1,18}))?")


class EventPosition(NamedTuple):
    """How far the record has been read."""

    no: int
    at: int
    seen: tuple[int, int, int] = (-1, 0, 0)
    """While catching up: the time, the source and the number of the last entry."""

    @classmethod
    def of(cls, cursor: str) -> EventPosition:
        """Read a cursor."""
        if cursor == OLDEST:
            return _BEGINNING
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            raise InvalidValue("cursor", cursor, NO_CURSOR)
        no, at, *seen = (int(number) for number in found.groups() if number is not None)
        return cls(no, at, (seen[0], seen[1], seen[2])) if seen else cls(no, at)

    def __str__(self) -> str:
        """Write it down."""
        numbers = (self.no, self.at) if self.seen[0] < 0 else (self.no, self.at, *self.seen)
        return "-".join(map(str, numbers))


_BEGINNING: Final = EventPosition(0, 0)


class _LogInfo(NamedTuple):
    always: int
    max_events: int
    is_on: int
    on_no: int
    on_at: int
    listened_until: int
    pruned_at: int
    first: int | None
    last: int | None
    first_at: int | None

    def complete_from(self, position: EventPosition) -> EventPosition | None:
        """Say from where on the record is whole, if a place lies before that.

        Raises:
            InvalidValue: what came after the place is no longer kept.
        """
        trimmed = (self.first or 1) - 1
        if position[:2] == _BEGINNING[:2]:
            complete_from = EventPosition(self.on_no, self.on_at)
            return max(complete_from, EventPosition(trimmed, self.first_at or 0)) if trimmed else complete_from
        if position.no < trimmed:
            raise InvalidValue("cursor", str(position), TOO_OLD)
        if position.no >= self.on_no:
            return None
        if self.pruned_at >= max(position.at, position.seen[0]):
            raise InvalidValue("cursor", str(position), TOO_OLD)
        return EventPosition(self.on_no, self.on_at)


def configure(transaction: Transaction, events: Events | None, max_events: int | None) -> None:
    """Note when events are to be recorded, and how many kept; None: as it was."""
    always = None if events is None else int(events == "all")
    transaction.execute(SQL.event_settings, {"always": always, "max_events": max_events})
    if events == "all":
        _start_recording(transaction)


def listen(transaction: Transaction) -> None:
    """Have events recorded for a while."""
    transaction.execute(SQL.event_listener_renew, {"until": transaction.now + LEASE // MICROSECOND})
    _start_recording(transaction)


def begin(transaction: Transaction, cursor: str | None) -> EventPosition:
    """Have events recorded, and find the place to begin at."""
    position = None if cursor is None else EventPosition.of(cursor)
    listen(transaction)
    log = _log(transaction)
    last = log.last or 0
    if position is None:
        return EventPosition(last, transaction.now)
    if position.no > last:
        raise InvalidValue("cursor", cursor, NO_CURSOR)
    log.complete_from(position)
    return position


def read(
    transaction: Transaction, position: EventPosition, event_types: frozenset[str] | None, limit: int
) -> LogPage[EventPosition]:
    """Read what came after a position."""
    log = _log(transaction)
    named: dict[str, Any] = {
        "event_types": None if event_types is None else json_text(sorted(event_types)),
        "limit": limit,
    }
    complete_from = log.complete_from(position)
    if complete_from is None:
        rows = transaction.execute(SQL.event_read, named | {"no": position.no}).fetchall()
        entries = [LogEntry(str(EventPosition(*row[:2])), *row[1:]) for row in rows]
        if len(rows) == limit:
            return LogPage(entries, EventPosition(*rows[-1][:2]), more=True)
        # Told or not, what came until now has been seen.
        last = log.last or 0
        return LogPage(
            entries, position if last == position.no else EventPosition(last, _time_of(transaction, last)), more=False
        )
    seen_at, seen_of, seen = position.seen
    named |= {
        "no": position.no,
        "at": max(0, position.at - _CLOCK_SLACK),
        "on_no": complete_from.no,
        "on_at": complete_from.at,
    }
    named |= {"seen_at": seen_at, "seen_of": seen_of, "seen": seen}
    rows = transaction.execute(SQL.event_catch_up, named).fetchall()
    positions = [position._replace(seen=(row[0], row[1], row[2])) for row in rows]
    entries = [LogEntry(str(at), row[0], *row[3:]) for at, row in zip(positions, rows, strict=True)]
    return LogPage(entries, positions[-1] if len(rows) == limit else complete_from, more=True)


def trim(transaction: Transaction) -> bool:
    """Stop recording where nobody listens any longer, and let go of old events; say whether there are more of them."""
    log = _log(transaction)
    if log.is_on and not log.always and log.listened_until < transaction.now:
        for name, _ in _TRIGGERS:
            transaction.connection.execute(f"drop trigger if exists {name}")
        transaction.execute(SQL.event_recording_stop)
    return _remove_old(transaction, log)


def remove_old(transaction: Transaction) -> bool:
    """Remove events beyond those that are kept; return whether there are more of them."""
    return _remove_old(transaction, _log(transaction))


def _remove_old(transaction: Transaction, log: _LogInfo) -> bool:
    if (log.last or 0) - (log.first or 1) < log.max_events:
        return False
    return transaction.execute(SQL.event_trim, {"limit": _MAX_TRIMMED}).rowcount == _MAX_TRIMMED


def acquire_cursor(transaction: Transaction, name: str, holder: str, lease: timedelta, *, reset: bool) -> str | None:
    """Acquire the lease of an event cursor, and have events recorded."""
    named = {"name": name, "holder": holder, "cursor": str(begin(transaction, None)), "reset": int(reset)}
    named |= {"until": transaction.now + lease // MICROSECOND, "now": transaction.now}
    row = transaction.execute(SQL.event_cursor_acquire, named).fetchone()
    return None if row is None else str(row[0])


def commit_cursor(transaction: Transaction, name: str, holder: str, cursor: str) -> bool:
    """Move an event cursor on."""
    return (
        transaction.execute(SQL.event_cursor_commit, {"name": name, "holder": holder, "cursor": cursor}).rowcount == 1
    )


class EventLog:
    """The record of one database: see :class:`onward.engine.event_reader.EventLog`."""

    def __init__(self, writer: SharedConnection, reader: SharedConnection) -> None:
        self._writer = writer
        self._reader = reader

    async def listen(self) -> None:
        """See the protocol. Who listens also lets go of old events: there may be no leader."""
        await self._writer.run(listen)
        await self.trim()

    def place(self, cursor: str) -> EventPosition:
        """See the protocol."""
        return EventPosition.of(cursor)

    async def begin(self, cursor: str | None) -> EventPosition:
        """See the protocol."""
        return await self._writer.run(begin, cursor)

    async def read(
        self, place: EventPosition, event_types: frozenset[str] | None, limit: int
    ) -> LogPage[EventPosition]:
        """See the protocol."""
        return await self._reader.run(lambda transaction: read(transaction, place, event_types, limit))

    async def trim(self) -> None:
        """Keep the record as short as it should be."""
        while await self._writer.run(trim):
            pass


def _start_recording(transaction: Transaction) -> None:
    if _log(transaction).is_on:
        return
    for name, trigger in _TRIGGERS:
        transaction.connection.execute(f"drop trigger if exists {name}")
        transaction.connection.execute(trigger)
    transaction.execute(SQL.event_recording_start, {"now": transaction.now})
    transaction.execute(SQL.event_recording_mark_start, {"now": transaction.now})


def _log(transaction: Transaction) -> _LogInfo:
    return _LogInfo(*transaction.execute(SQL.event_log_info).fetchone())


def _time_of(transaction: Transaction, no: int) -> int:
    at: int = transaction.connection.execute("select at from onward_event where no = ?", (no,)).fetchone()[0]
    return at
