"""Keeps the account of what was run: rows as workers hand them in, rolled up by the minute and by the day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onward.clock import micros_of, moment_of
from onward.engine.values import Term
from onward.engines.postgres.statements import Schema
from onward.metering import KEYS, SUMS, Bucket, Usage, UsageQuery, row_of, usage_of
from onward.pg.plan_runner import Plan, Statement


def record(schema: Schema, usage: Sequence[Usage]) -> Plan[None]:
    """Add counts to the present minute."""
    yield Statement(schema.usage_add, [schema.now, msgspec.json.encode([row_of(one) for one in usage]).decode()])


def roll_up(schema: Schema, term: Term) -> Plan[None]:
    """Sum up what is over."""
    yield Statement(schema.usage_roll_up, [schema.now, term.number, term.leader_id])


def usage(schema: Schema, query: UsageQuery) -> Plan[list[Usage]]:
    """Sum up runs."""
    at = "null::bigint" if query.bucket is Bucket.ALL else f"onward.to_micros(date_trunc('{query.bucket}', at, 'UTC'))"
    keys = [key if key in query.by else "null::text" for key in KEYS]
    parts = ["true"]
    values: list[Any] = []
    for field in ("org_id", "queue", "type"):
        if (wanted := getattr(query, field)) is not None:
            values.append(wanted)
            parts.append(f"{field} = ${len(values)}::text")
    for field, comparison in (("since", ">="), ("until", "<")):
        if (moment := getattr(query, field)) is not None:
            values.append(micros_of(moment))
            parts.append(f"at {comparison} onward.to_timestamp(${len(values)}::bigint)")
    sums = ", ".join(f"sum({column})::bigint" for column in SUMS)
    text = (
        f"select {at}, {', '.join(keys)}, {sums} from onward.usage where {' and '.join(parts)}"  # noqa: S608 - ours only
        " group by 1, 2, 3, 4, 5 order by 1, 2 nulls first, 3, 4, 5"
    )
    rows = yield Statement(schema.insert_schema_name(text), values)
    return [
        usage_of(None if row[0] is None else moment_of(row[0]), list(row[1:5]), list(row[5:])) for row in rows if row[5]
    ]
