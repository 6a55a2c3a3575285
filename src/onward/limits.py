"""Exact rates and concurrency for anything: campaigns, accounts, chats, providers (docs/explain/rates.md).

A :class:`Limiter` takes permits of several keys at once, all or none, as part of your own transaction on PostgreSQL or
SQLite, by the store's clock::

    limiter = Limiter()
    await limiter.install(connection=connection)            # once: its tables

    permits = await limiter.take(
        [Limit("campaign/7", rate=Rate(20)), Limit("account/3", rate=Rate(30), concurrency=1)],
        holder="job-9", lease=timedelta(seconds=30), connection=connection,
    )
    if not permits:
        raise Snooze(permits.retry_after)

In no window of a rate's period, wherever it begins, are more permits used than its count, if each is used within
``permits.start_within`` of asking for it; else give it up. :class:`Pace` is the formula itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from onward.clock import Clock, SystemClock
from onward.connection import Connection
from onward.engine.limits import Limit, Pace, Permits, check_limits
from onward.engine.sqlalchemy_connection import async_connection_of, sync_connection_of
from onward.engine.values import Rate
from onward.errors import InvalidValue

__all__ = ["Limit", "Limiter", "Pace", "Permits", "Rate"]

DEFAULT_SCHEMA: Final = "onward_limits"

_Ask = Callable[[Any], Any]
"""A call of the limiter's tables: a plan on PostgreSQL, done at once on SQLite."""


class Limiter:
    """Permits of limited keys, kept in the database of the connection that is passed.

    ``connection=`` is any connection that Onward takes elsewhere: a permit is taken if and only if the transaction
    commits, and until then its keys are locked.
    """

    def __init__(self, *, schema: str = DEFAULT_SCHEMA, clock: Clock | None = None) -> None:
        """``schema`` holds the tables on PostgreSQL. ``clock`` is for tests; None: the store's own."""
        self._schema = schema
        self._clock = clock

    @property
    def sync(self) -> SyncLimiter:
        """The same for code without an event loop, on its own thread: ``limiter.sync.take(…)``."""
        return SyncLimiter(self._run_sync)

    async def install(self, *, connection: Connection) -> None:
        """Create the limiter's tables in the database of the connection. Idempotent.

        On PostgreSQL they are in the limiter's schema, on SQLite they are ``onward_rate_permit`` and
        ``onward_concurrency_permit``.
        """
        await self._run(connection, lambda tables: tables.install())

    async def take(
        self,
        limits: Iterable[Limit],
        *,
        holder: str | None = None,
        lease: timedelta | None = None,
        connection: Connection,
    ) -> Permits:
        """Take a permit of every limit, or of none; the answer is true if they were taken.

        Limits with a concurrency need ``holder``, unique for each run, and ``lease``: after it a permit that was not
        renewed is free. Taking again as the same holder renews. Where none were taken, ``retry_after`` says when the
        next permit of the slowest key is due, or when a held one runs out at the latest.

        Raises:
            InvalidValue: a key is named twice, or ``holder`` or ``lease`` is missing.
        """
        permits: Permits = await self._run(connection, _take(limits, holder, lease))
        return permits

    async def give_up(self, permits: Permits, *, connection: Connection) -> int:
        """Give permits back that were not used; return how many keys with a rate got theirs back.

        A key of which another permit has been taken since does not: too few starts, never too many.
        """
        return int(await self._run(connection, lambda tables: tables.give_up(permits)))

    async def renew(self, holder: str, *, lease: timedelta, connection: Connection) -> int:
        """Extend a holder's concurrency permits; return how many. 0: they ran out, and another may hold them."""
        return int(await self._run(connection, lambda tables: tables.renew(holder, lease)))

    async def release(self, holder: str, *, connection: Connection) -> int:
        """Release a holder's concurrency permits; return how many."""
        return int(await self._run(connection, lambda tables: tables.release(holder)))

    async def prune(self, *, limit: int = 1000, connection: Connection) -> int:
        """Delete idle keys and permits that ran out, without effect on any limit; return how many."""
        return int(await self._run(connection, lambda tables: tables.prune(limit)))

    # One call on PostgreSQL and SQLite, driven by either kind of connection

    async def _run(self, connection: object, ask: _Ask) -> Any:
        found = await async_connection_of(connection)
        if not _is_sqlite(connection if found is None else found):
            from onward.pg.caller_transaction import drive_alone  # noqa: PLC0415 - imports psycopg

            return await drive_alone(connection, ask(self._on_postgres()))
        from onward.engines.sqlite.caller_transaction import run_atomic_async  # noqa: PLC0415

        return await run_atomic_async(connection, lambda lite: ask(self._on_sqlite(lite)))

    def _run_sync(self, connection: object, ask: _Ask) -> Any:
        if not _is_sqlite(connection):
            from onward.pg.caller_transaction import drive_alone_sync  # noqa: PLC0415 - imports psycopg

            return drive_alone_sync(connection, ask(self._on_postgres()))
        from onward.engines.sqlite.caller_transaction import run_atomic  # noqa: PLC0415

        return run_atomic(connection, lambda lite: ask(self._on_sqlite(lite)))

    def _on_postgres(self) -> Any:
        from onward.pg.limits import LimitTables  # noqa: PLC0415

        return LimitTables(self._schema, clock=self._clock)

    def _on_sqlite(self, connection: sqlite3.Connection) -> Any:
        from onward.engines.sqlite.limits import LimitTables  # noqa: PLC0415

        return LimitTables(connection, self._clock or SystemClock())


class SyncLimiter:
    """A :class:`Limiter` for code without an event loop: ``limiter.sync``."""

    def __init__(self, run: Callable[[object, _Ask], Any]) -> None:
        self._run = run

    def install(self, *, connection: Connection) -> None:
        """Create the limiter's tables. See :meth:`Limiter.install`."""
        self._run(connection, lambda tables: tables.install())

    def take(
        self,
        limits: Iterable[Limit],
        *,
        holder: str | None = None,
        lease: timedelta | None = None,
        connection: Connection,
    ) -> Permits:
        """Take a permit of every limit, or of none. See :meth:`Limiter.take`."""
        permits: Permits = self._run(connection, _take(limits, holder, lease))
        return permits

    def give_up(self, permits: Permits, *, connection: Connection) -> int:
        """Give permits back that were not used. See :meth:`Limiter.give_up`."""
        return int(self._run(connection, lambda tables: tables.give_up(permits)))

    def renew(self, holder: str, *, lease: timedelta, connection: Connection) -> int:
        """Extend a holder's concurrency permits. See :meth:`Limiter.renew`."""
        return int(self._run(connection, lambda tables: tables.renew(holder, lease)))

    def release(self, holder: str, *, connection: Connection) -> int:
        """Release a holder's concurrency permits. See :meth:`Limiter.release`."""
        return int(self._run(connection, lambda tables: tables.release(holder)))

    def prune(self, *, limit: int = 1000, connection: Connection) -> int:
        """Delete idle keys and permits that ran out. See :meth:`Limiter.prune`."""
        return int(self._run(connection, lambda tables: tables.prune(limit)))


def _is_sqlite(connection: object) -> bool:
    if isinstance(connection, sqlite3.Connection) or getattr(connection, "vendor", None) == "sqlite":
        return True
    known: Any = connection if hasattr(connection, "dialect") else sync_connection_of(connection)
    return getattr(getattr(known, "dialect", None), "name", None) == "sqlite"


def _take(limits: Iterable[Limit], holder: str | None, lease: timedelta | None) -> _Ask:
    wanted = check_limits(limits)
    if any(limit.concurrency is not None for limit in wanted):
        if not isinstance(holder, str) or not holder:
            raise InvalidValue("holder", holder, "must name who holds the permit, because a limit has a concurrency")
        if not isinstance(lease, timedelta) or lease <= timedelta(0):
            raise InvalidValue("lease", lease, "must be a duration, because a limit has a concurrency")
    return lambda tables: tables.take(wanted, holder, lease)
