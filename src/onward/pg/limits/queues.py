"""Rate and concurrency of queues in a foreign store, kept in the companion schema for Onward's workers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import UNSET

from onward.clock import MICROSECOND, moment_of
from onward.engine.limits import Pace
from onward.engine.values import QueueChange, Rate
from onward.pg.plan_runner import Plan, Statement
from onward.pg.schema_name import insert_schema_name

FOREIGN_WORKERS: Final = "kept by Onward's workers, in a schema of ours beside it; workers of others do not know of it"


def set_limits(schema: str, queue: str, change: QueueChange) -> Plan[bool]:
    """Change the limits of a queue; answer whether the change says anything of them."""
    if change.rate is UNSET and change.global_concurrency is UNSET:
        return False
    rate = change.rate if isinstance(change.rate, Rate) else None
    values = [
        queue,
        change.rate is not UNSET,
        None if rate is None else rate.count,
        None if rate is None else rate.period // MICROSECOND,
        None if rate is None else rate.burst,
        change.global_concurrency is not UNSET,
        None if change.global_concurrency is UNSET else change.global_concurrency,
    ]
    text = (
        "select onward.set_queue_limit($1::text, $2::boolean, $3::bigint, $4::bigint, $5::bigint, $6::boolean, "
        "$7::integer)"
    )
    yield Statement(insert_schema_name(schema, text), values)
    return True


def rate_of(count: int | None, period: int | None, burst: int | None) -> Rate | None:
    """Read a rate from the columns of ``queue_limit``."""
    if count is None or period is None or burst is None:
        return None
    return Rate(count, timedelta(microseconds=period), burst)


def next_permit_of(rate: Rate | None, permit_at: int | None, now: Any) -> datetime | None:
    """Say when the next job of a queue may start; None: no permit was taken yet."""
    return None if rate is None or not permit_at else moment_of(Pace.of(rate).due_at(permit_at, now))
