"""Turns a filter into a condition: a closed list of fragments, values always as parameters."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from onward.engine.values import JobFilter
from onward.engines.pgboss.statements import Schema
from onward.lifecycle import FINISHED
from onward.pg.plan_runner import Statement

TYPE: Final = "coalesce(j.data #>> '{$onward,type}', j.name)"
_ORG: Final = "coalesce(j.data #>> '{$onward,org_id}', j.group_id)"
_ORG_WITHOUT_GROUPS: Final = "j.data #>> '{$onward,org_id}'"


class Condition:
    """A condition on jobs as ``sql/find.sql`` names them, and its values."""

    def __init__(self, schema: Schema, which: JobFilter) -> None:
        self._parts = ["not starts_with(j.name, '__pgboss__')"]
        self.values: list[Any] = []
        value = self.value
        if which.refs is not None:
            known = [ref for ref in which.refs if is_id(ref.id)]
            names, ids = value([ref.queue for ref in known]), value([ref.id for ref in known])
            self.add(f"j.name = any ({names}::text[]) and j.id = any ({ids}::text[]::uuid[])")
            self.add(f"(j.name, j.id) in (select * from unnest({names}::text[], {ids}::text[]::uuid[]))")  # noqa: S608 - ours
        if which.ids is not None:
            ids = value([id for id in which.ids if is_id(id)])
            # By the names of all queues too: the index begins with them.
            self.add(f'j.name in (select q.name from "{schema.name}".queue q)')  # noqa: S608 - its name was checked
            self.add(f"j.id = any ({ids}::text[]::uuid[])")
        if which.queues is not None:
            names = value([pattern for pattern in which.queues if not pattern.endswith("*")])
            prefixes = value([pattern[:-1] for pattern in which.queues if pattern.endswith("*")])
            has_prefix = f"exists (select from unnest({prefixes}::text[]) prefix where starts_with(j.name, prefix))"
            self.add(f"j.name = any ({names}::text[]) or {has_prefix}")
        if which.types is not None:
            self.add(f"{TYPE} = any ({value(list(which.types))}::text[])")
        if which.status is not None:
            self.add(f"s.status = any ({value(sorted(which.status))}::text[])")
        if which.org_id is not None:
            self.add(f"{org_of(schema)} = {value(which.org_id)}::text")
        if which.orgs is not None:
            self.add(f"{org_of(schema)} = any ({value(list(which.orgs))}::text[])")
        if which.worker_id is not None:
            matches_worker = (
                f"h.worker_id = {value(which.worker_id)}::text and h.queue = j.name and h.started_at = j.started_on"
            )
            lease_batches = (
                f'select from "{schema.companion.name}".lease_batch h where {matches_worker} and j.id = any (h.ids)'
            )
            self.add(f"j.state = 'active' and exists ({lease_batches})")
        if which.error_contains is not None:
            error_matches = f"strpos(lower(j.output::text), lower({value(which.error_contains)}::text)) > 0"
            self.add(f"j.state not in ('active', 'completed') and {error_matches}")
        if which.created_after is not None:
            self.add(f"j.created_on > {value(which.created_after)}::timestamptz")
        if which.created_before is not None:
            self.add(f"j.created_on < {value(which.created_before)}::timestamptz")
        if which.finished_before is not None:
            ended = f"s.status = any ({value(sorted(FINISHED))}::text[])"
            self.add(f"{ended} and j.completed_on < {value(which.finished_before)}::timestamptz")

    def add(self, fragment: str) -> None:
        """Narrow it further."""
        self._parts.append(fragment)

    def value(self, value: Any) -> str:
        """Add a value, and say by which name it is known."""
        self.values.append(value)
        return f"${len(self.values)}"

    def __str__(self) -> str:
        """Write it out."""
        return " and ".join(f"({part})" for part in self._parts)

    def append_to(self, text: str, rest: str = "") -> Statement:
        """Put it behind a statement."""
        return Statement(f"{text} where {self} {rest}", self.values)


def org_of(schema: Schema) -> str:
    """Say where the organisation of a job stands."""
    return _ORG if schema.has("job.group_id") else _ORG_WITHOUT_GROUPS


def is_id(text: str) -> bool:
    """Say whether a text could be the id of a job."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True
