"""Keeps the account of what was run: rows as workers hand them in, rolled up by the minute and by the day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from onward.clock import micros_of, moment_of
from onward.engine.values import Term
from onward.engines.sqlite.rows import json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.metering import KEYS, SUMS, Bucket, Usage, UsageQuery, row_of, usage_of

_MINUTE: Final = 60_000_000
_DAY: Final = 1440 * _MINUTE
_SPAN_LENGTHS: Final = {Bucket.MINUTE: _MINUTE, Bucket.DAY: _DAY}


def record(transaction: Transaction, usage: Sequence[Usage]) -> None:
    """Add counts to the present minute."""
    minute = transaction.now // _MINUTE * _MINUTE
    transaction.execute(SQL.usage_add, {"at": minute, "rows": json_text([row_of(one) for one in usage])})


def roll_up(transaction: Transaction, term: Term) -> None:
    """Sum up what is over: minutes that have ended, and days that ended the day before yesterday."""
    minute = transaction.now // _MINUTE * _MINUTE
    yesterday = transaction.now // _DAY * _DAY - _DAY
    named = {"number": term.number, "leader_id": term.leader_id, "now": transaction.now}
    for grain, span, until in ((1, _MINUTE, minute), (2, _DAY, yesterday)):
        rolling = named | {"grain": grain, "span": span, "until": until}
        if transaction.execute(SQL.usage_roll_up, rolling).rowcount:
            transaction.execute(SQL.usage_delete_rolled_up, rolling)


def usage(transaction: Transaction, query: UsageQuery) -> list[Usage]:
    """Sum up runs."""
    span = _SPAN_LENGTHS.get(query.bucket)
    at = "null" if span is None else f"at / {span} * {span}"
    keys = [key if key in query.by else "null" for key in KEYS]
    parts = ["true"]
    values: dict[str, Any] = {}
    for field in ("org_id", "queue", "type"):
        if (wanted := getattr(query, field)) is not None:
            parts.append(f"{field} = :{field}")
            values[field] = wanted
    if query.since is not None:
        parts.append("at >= :since")
        values["since"] = micros_of(query.since)
    if query.until is not None:
        parts.append("at < :until")
        values["until"] = micros_of(query.until)
    sums = ", ".join(f"sum({column})" for column in SUMS)
    rows = transaction.connection.execute(
        f"select {at}, {', '.join(keys)}, {sums} from onward_usage where {' and '.join(parts)}"  # noqa: S608 - ours only
        " group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5",
        values,
    ).fetchall()
    return [usage_of(None if row[0] is None else moment_of(row[0]), row[1:5], row[5:]) for row in rows if row[5]]
