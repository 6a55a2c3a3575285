"""Looks at archived jobs and removes them. How they get there is in the store: ``migrations/0006`` and ``0007``."""

from __future__ import annotations

from collections.abc import Mapping

from onward.engine.values import Changed, GroupBy, JobFilter, Page
from onward.engines.postgres.admin import changed_of
from onward.engines.postgres.filters import Condition
from onward.engines.postgres.queries import GROUP_COLUMNS, page_of
from onward.engines.postgres.statements import Schema
from onward.job import Job
from onward.pg.plan_runner import Plan, Statement


def find(schema: Schema, which: JobFilter, cursor: str | None, limit: int) -> Plan[Page[Job]]:
    """List archived jobs, those created last first."""
    condition = Condition(which)
    condition.start_after(cursor, newest_first=True)
    text = (
        f"{schema.find_archived} where {condition.ended()} order by seq desc limit {condition.value(limit + 1)}::bigint"
    )
    rows = yield Statement(schema.insert_schema_name(text), condition.values)
    return page_of(rows, limit)


def count(schema: Schema, which: JobFilter, by: GroupBy) -> Plan[Mapping[str, int]]:
    """Count archived jobs."""
    condition = Condition(which)
    text = f"select {GROUP_COLUMNS[by]}, count(*) from onward.archive where {condition.ended()} group by 1"  # noqa: S608 - ours
    return dict((yield Statement(schema.insert_schema_name(text), condition.values)))


def purge(schema: Schema, which: JobFilter, limit: int) -> Plan[list[Changed]]:
    """Remove archived jobs."""
    condition = Condition(which)
    max_rows = condition.value(limit)
    text = f"select seq from onward.archive where {condition.ended()} order by seq limit {max_rows}::bigint"  # noqa: S608 - ours only
    picked = [row[0] for row in (yield Statement(schema.insert_schema_name(text), condition.values))]
    return changed_of((yield Statement(schema.purge_archived, [picked]))) if picked else []
