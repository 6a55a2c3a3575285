"""Turns a filter into a condition: a closed list of fragments, values always as parameters."""

from __future__ import annotations

from typing import Any

from onward.clock import micros_of
from onward.engine.values import JobFilter
from onward.engines.sqlite.claims import ranges_of
from onward.engines.sqlite.rows import json_text


def condition_of(which: JobFilter) -> tuple[str, dict[str, Any]]:
    """Give a condition on ``onward_job`` and its parameters."""
    parts: list[str] = []
    values: dict[str, Any] = {}

    def add(fragment: str, **parameters: Any) -> None:
        parts.append(fragment)
        values.update(parameters)

    if which.refs is not None:
        # A native id is enough to find the job; the queue must be right all the same, or it is another name.
        add(
            "(queue, id) in (select value ->> 0, value ->> 1 from json_each(:refs))"
            " and id in (select value ->> 1 from json_each(:refs))",
            refs=json_text([(ref.queue, ref.id) for ref in which.refs]),
        )
    if which.ids is not None:
        add("id in (select value from json_each(:ids))", ids=json_text(which.ids))
    if which.queues is not None:
        add(
            "exists (select 1 from json_each(:ranges) r where queue >= r.value ->> 0 and queue < r.value ->> 1)",
            ranges=json_text(ranges_of(which.queues)),
        )
    if which.types is not None:
        add("type in (select value from json_each(:types))", types=json_text(which.types))
    if which.status is not None:
        add("status in (select value from json_each(:statuses))", statuses=json_text(sorted(which.status)))
    if which.org_id is not None:
        add("org_id = :org_id", org_id=which.org_id)
    if which.orgs is not None:
        add("org_id in (select value from json_each(:orgs))", orgs=json_text(which.orgs))
    if which.batch is not None:
        add("batch = :batch", batch=which.batch)
    if which.worker_id is not None:
        add("worker_id = :worker_id", worker_id=which.worker_id)
    if which.error_contains is not None:
        add("instr(lower(last_error), lower(:error_contains)) > 0", error_contains=which.error_contains)
    if which.created_after is not None:
        add("created_at > :created_after", created_after=micros_of(which.created_after))
    if which.created_before is not None:
        add("created_at < :created_before", created_before=micros_of(which.created_before))
    if which.finished_before is not None:
        add("completed_at < :finished_before", finished_before=micros_of(which.finished_before))
    return " and ".join(parts) or "true", values
