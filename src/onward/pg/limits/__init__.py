"""Permits of limited keys on PostgreSQL, as plans: see :mod:`onward.engine.limits` for the formula.

The functions of ``schema.sql`` do the work, so that a program in another language keeps the same limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from importlib.resources import files
from typing import Final

import msgspec

from onward.clock import MICROSECOND, Clock
from onward.engine.limits import MAX_CREDIT, MISSING, Limit, Permits, limits_json
from onward.errors import SchemaTooOld
from onward.pg.plan_runner import Plan, Statement
from onward.pg.schema_name import check_own_schema_name, insert_schema_name

SCHEMA_SQL: Final = files(__name__).joinpath("schema.sql").read_text(encoding="utf-8")
_END_OF_STATEMENT: Final = "-- next statement\n"
_NOW: Final = "coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint)"


_MISSING_STATES: Final = frozenset({"42883", "3F000"})
"""No such function, no such schema."""


def _sqlstate(error: Exception) -> str | None:
    """Return the server's code of an error, of whichever driver."""
    driver_error = getattr(error, "orig", error)
    found: str | None = getattr(driver_error, "sqlstate", None) or getattr(driver_error, "pgcode", None)
    return found


class LimitTables:
    """The limiter's tables in one schema."""

    def __init__(self, schema: str, *, clock: Clock | None = None) -> None:
        """``clock`` None is the database's own, which is right everywhere but in tests."""
        self._schema = check_own_schema_name(schema)
        self._clock = clock

    def _statement(self, text: str, *values: object) -> Statement:
        return Statement(insert_schema_name(self._schema, text), values)

    @property
    def _now(self) -> int | None:
        return None if self._clock is None else self._clock.micros()

    def install(self) -> Plan[None]:
        """Create schema, tables and functions where they are missing. Idempotent."""
        # One at a time: two that create the same at once would fail. The comment locks the schema until the transaction
        # ends, and only its owner may make one.
        create = f'create schema if not exists "{self._schema}"'
        yield Statement(f"do $$ begin {create}; exception when unique_violation then null; end $$")
        yield Statement(f"comment on schema \"{self._schema}\" is 'Permits of onward.limits'")
        for text in SCHEMA_SQL.split(_END_OF_STATEMENT):
            yield self._statement(text)

    def take(
        self, limits: Sequence[Limit], holder: str | None, lease: timedelta | None, wanted: int = 1
    ) -> Plan[Permits]:
        """Take permits of all keys, or of none."""
        values = [limits_json(list(limits)), holder, None if lease is None else lease // MICROSECOND, wanted, self._now]
        statement = self._statement(
            "select taken, retry_after, start_within, token::text "
            "from onward.take_permits($1::text::jsonb, $2::text, $3::bigint, $4::integer, $5::bigint)",
            *values,
        )
        try:
            ((taken, retry_after, start_within, token),) = yield statement
        except Exception as error:
            if _sqlstate(error) in _MISSING_STATES:
                raise SchemaTooOld(MISSING) from error
            raise
        held = tuple(limit.key for limit in limits if limit.concurrency is not None)
        return Permits(
            taken,
            None if retry_after is None else timedelta(microseconds=retry_after),
            None if start_within is None else timedelta(microseconds=start_within),
            holder,
            msgspec.json.decode(token),
            held if taken else (),
        )

    def give_up(self, permits: Permits) -> Plan[int]:
        """Give permits back that were not used; answer how many keys got theirs back."""
        ((given,),) = yield self._statement(
            "select onward.give_up_permits($1::text::jsonb)", msgspec.json.encode(permits.taken).decode()
        )
        if permits.held:
            yield self._statement(
                "delete from onward.concurrency_permit where holder = $1::text "
                "and key in (select jsonb_array_elements_text($2::text::jsonb))",
                permits.holder,
                msgspec.json.encode(permits.held).decode(),
            )
        return int(given)

    def renew(self, holder: str, lease: timedelta) -> Plan[int]:
        """Extend the concurrency permits of a holder that have not run out; answer how many."""
        rows = yield self._statement(
            f"update onward.concurrency_permit set lease = $3::bigint, until = {_NOW} + $3::bigint "  # noqa: S608 - ours
            f"where holder = $2::text and until > {_NOW} returning key",
            self._now,
            holder,
            lease // MICROSECOND,
        )
        return len(rows)

    def release(self, holder: str) -> Plan[int]:
        """Release the concurrency permits of a holder; answer how many."""
        rows = yield self._statement(
            "delete from onward.concurrency_permit where holder = $1::text returning key", holder
        )
        return len(rows)

    def prune(self, limit: int) -> Plan[int]:
        """Delete keys that say nothing any more, and permits that have run out; answer how many."""
        permits = yield self._statement(
            "delete from onward.concurrency_permit where (key, holder) in ("  # noqa: S608 - ours
            f"select key, holder from onward.concurrency_permit where until <= {_NOW} limit $2::integer "
            "for update skip locked) returning key",
            self._now,
            limit,
        )
        keys = yield self._statement(
            "delete from onward.rate_permit where key in ("  # noqa: S608 - ours
            f"select key from onward.rate_permit where next_permit_at <= {_NOW} - $3::bigint limit $2::integer "
            "for update skip locked) returning key",
            self._now,
            limit,
            MAX_CREDIT,
        )
        return len(permits) + len(keys)
