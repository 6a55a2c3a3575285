"""Permits of limited keys in a SQLite file: see :mod:`onward.engine.limits` for the formula.

Every function runs in a transaction that holds SQLite's write lock, by the machine's clock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from onward.clock import MICROSECOND, Clock
from onward.engine.limits import MAX_CREDIT, MISSING, Limit, Pace, Permits
from onward.errors import SchemaTooOld

_RATE_PERMIT: Final = """
create table if not exists onward_rate_permit (key text primary key, next_permit_at integer not null)
  strict, without rowid"""
_CONCURRENCY_PERMIT: Final = """
create table if not exists onward_concurrency_permit (
  key text, holder text, lease integer not null, until integer not null, primary key (key, holder)
) strict, without rowid"""
_OF_HOLDER: Final = (
    "create index if not exists onward_concurrency_permit_of_holder on onward_concurrency_permit (holder)"
)
_HAS_TABLES: Final = "select 1 from sqlite_schema where name = 'onward_rate_permit'"


class LimitTables:
    """The limiter's tables in one file, in a transaction that is open."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._now = 0

    def _lock(self) -> None:
        """Take SQLite's write lock, then read the clock: no other writer may come between a look and a write.

        Raises:
            SchemaTooOld: the tables are missing.
        """
        try:
            self._connection.execute("delete from onward_rate_permit where false")
        except sqlite3.OperationalError as error:
            if self._connection.execute(_HAS_TABLES).fetchone() is None:
                raise SchemaTooOld(MISSING) from error
            raise
        self._now = self._clock.micros()

    def install(self) -> None:
        """Create the tables where they are missing. Idempotent."""
        for statement in (_RATE_PERMIT, _CONCURRENCY_PERMIT, _OF_HOLDER):
            self._connection.execute(statement)

    def take(self, limits: Sequence[Limit], holder: str | None, lease: timedelta | None) -> Permits:
        """Take a permit of all keys, or of none."""
        self._lock()
        wait = 0
        is_free = True
        start_within: int | None = None
        taken: dict[str, tuple[int, int]] = {}
        for limit in limits:
            if limit.rate is not None:
                pace = Pace.of(limit.rate)
                found = self._connection.execute(
                    "select next_permit_at from onward_rate_permit where key = ?", (limit.key,)
                ).fetchone()
                permit_at = pace.clamp(0 if found is None else found[0], self._now)
                if found is not None and permit_at != found[0]:
                    self._set_permit(limit.key, permit_at)
                due_in = pace.due_at(permit_at, self._now) - self._now
                is_free = is_free and due_in <= 0
                wait = max(wait, due_in)
                start_within = pace.credit if start_within is None else min(start_within, pace.credit)
                taken[limit.key] = permit_at, pace.take(permit_at, self._now)
            if limit.concurrency is not None:
                held, ends_at = self._held(limit.key, holder)
                if held >= limit.concurrency:
                    is_free = False
                    wait = max(wait, ends_at - self._now)
        if not is_free:
            return Permits(0, timedelta(microseconds=wait))
        for key, (_, after) in taken.items():
            self._set_permit(key, after)
        for limit in limits:
            if limit.concurrency is not None and lease is not None:
                self._connection.execute(
                    "insert into onward_concurrency_permit (key, holder, lease, until) values (?1, ?2, ?3, ?4) "
                    "on conflict (key, holder) do update set lease = ?3, until = ?4",
                    (limit.key, holder, lease // MICROSECOND, self._now + lease // MICROSECOND),
                )
        return Permits(
            1,
            start_within=None if start_within is None else timedelta(microseconds=start_within),
            holder=holder,
            taken=taken,
            held=tuple(limit.key for limit in limits if limit.concurrency is not None),
        )

    def give_up(self, permits: Permits) -> int:
        """Give permits back that were not used; answer how many keys got theirs back."""
        self._lock()
        given = sum(
            self._connection.execute(
                "update onward_rate_permit set next_permit_at = ? where key = ? and next_permit_at = ?",
                (before, key, after),
            ).rowcount
            for key, (before, after) in permits.taken.items()
        )
        for key in permits.held:
            self._connection.execute(
                "delete from onward_concurrency_permit where key = ? and holder = ?", (key, permits.holder)
            )
        return given

    def renew(self, holder: str, lease: timedelta) -> int:
        """Extend the concurrency permits of a holder that have not run out; answer how many."""
        self._lock()
        return self._connection.execute(
            "update onward_concurrency_permit set lease = ?1, until = ?2 + ?1 where holder = ?3 and until > ?2",
            (lease // MICROSECOND, self._now, holder),
        ).rowcount

    def release(self, holder: str) -> int:
        """Release the concurrency permits of a holder; answer how many."""
        self._lock()
        return self._connection.execute("delete from onward_concurrency_permit where holder = ?", (holder,)).rowcount

    def prune(self, limit: int) -> int:
        """Delete keys that say nothing any more, and permits that have run out; answer how many."""
        self._lock()
        permits = self._connection.execute(
            "delete from onward_concurrency_permit where (key, holder) in "
            "(select key, holder from onward_concurrency_permit where until <= ? limit ?)",
            (self._now, limit),
        ).rowcount
        keys = self._connection.execute(
            "delete from onward_rate_permit where key in "
            "(select key from onward_rate_permit where next_permit_at <= ? limit ?)",
            (self._now - MAX_CREDIT, limit),
        ).rowcount
        return permits + keys

    def _set_permit(self, key: str, permit_at: int) -> None:
        self._connection.execute(
            "insert into onward_rate_permit (key, next_permit_at) values (?1, ?2) "
            "on conflict (key) do update set next_permit_at = ?2",
            (key, permit_at),
        )

    def _held(self, key: str, holder: str | None) -> tuple[int, int]:
        """Count the permits that others hold of a key, and say when the first of them runs out."""
        # The clock went back: no permit lasts longer than its lease from now.
        self._connection.execute(
            "update onward_concurrency_permit set until = ?2 + lease where key = ?1 and until > ?2 + lease",
            (key, self._now),
        )
        held, ends_at = self._connection.execute(
            "select count(*), min(until) from onward_concurrency_permit where key = ? and until > ? and holder <> ?",
            (key, self._now, holder),
        ).fetchone()
        return held, ends_at or self._now
