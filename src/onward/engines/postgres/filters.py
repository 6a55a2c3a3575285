"""Turns a filter into a condition: a closed list of fragments, values always as parameters."""

from __future__ import annotations

import re
from typing import Any, Final

from onward.clock import micros_of
from onward.engine.values import JobFilter
from onward.engines.postgres.rows import ranges_of
from onward.lifecycle import FINISHED, JobStatus
from onward.validation import read_cursor

_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Condition:
    """A condition on ``job`` or ``history``, and its values."""

    def __init__(self, which: JobFilter) -> None:
        self._parts: list[str] = []
        self._of_ended: list[str] = []
        self.values: list[Any] = []
        self.states = frozenset(JobStatus) if which.status is None else which.status
        """What it may find: by it, one of the two tables need not be looked at."""
        if which.finished_before is not None:
            self.states &= FINISHED
        if which.refs is not None:
            # A native id is enough to find the job; the queue must be right all the same, or it is another name.
            known = [ref for ref in which.refs if is_id(ref.id)]
            self.add("id = any ({}::text[]::uuid[])", [ref.id for ref in known])
            self.add("(id::text || queue) = any ({}::text[])", [ref.id + ref.queue for ref in known])
        if which.ids is not None:
            self.add("id = any ({}::text[]::uuid[])", [id for id in which.ids if is_id(id)])
        if which.queues is not None:
            firsts, ends = ranges_of(which.queues)
            self.add(
                "exists (select from unnest({}::text[], {}::text[]) r (first, upto)"
                ' where queue >= r.first collate "C" and queue < r.upto collate "C")',
                firsts,
                ends,
            )
        if which.types is not None:
            self.add("type = any ({}::text[])", list(which.types))
        if which.status is not None:
            self.add("status = any ({}::text[])", sorted(which.status))
        if which.org_id is not None:
            self.add("org_id = {}::text", which.org_id)
        if which.orgs is not None:
            self.add("org_id = any ({}::text[])", list(which.orgs))
        if which.batch is not None:
            self.add('batch = {}::text collate "C" and batch is not null', which.batch)
        if which.worker_id is not None:
            self.add("worker_id = {}::text", which.worker_id)
        if which.error_contains is not None:
            self.add("strpos(lower(last_error), lower({}::text)) > 0", which.error_contains)
        if which.created_after is not None:
            self.add("created_at > onward.to_timestamp({}::bigint)", micros_of(which.created_after))
        if which.created_before is not None:
            self.add("created_at < onward.to_timestamp({}::bigint)", micros_of(which.created_before))
        if which.finished_before is not None:
            before = self.value(micros_of(which.finished_before))
            self._of_ended.append(f"completed_at < onward.to_timestamp({before}::bigint)")

    def start_after(self, cursor: str | None, *, newest_first: bool) -> None:
        """Narrow it to what comes after a page; None: to nothing."""
        if cursor is not None:
            self.add("seq < {}::bigint" if newest_first else "seq > {}::bigint", read_cursor(cursor))

    def add(self, fragment: str, *values: Any) -> None:
        """Narrow it further; each ``{}`` in the fragment stands for the next value."""
        self._parts.append(fragment.format(*[self.value(value) for value in values]))

    def value(self, value: Any) -> str:
        """Add a value, and say by which name it is known."""
        self.values.append(value)
        return f"${len(self.values)}"

    def live(self) -> str:
        """Say it of live jobs."""
        return " and ".join(self._parts) or "true"

    def ended(self) -> str:
        """Say it of ended jobs."""
        return " and ".join(self._parts + self._of_ended) or "true"


def union_all(parts: list[str], order: str) -> str:
    """Read what was picked from one table or from both, each part in order, as one list in order."""
    return parts[0] if len(parts) == 1 else f"{' union all '.join(parts)} {order}"


def is_id(text: str) -> bool:
    """Say whether a text could be the id of a native job, as it is written everywhere: a job has one name.

    Python and the database each read ids in other forms too, and not in the same ones.
    """
    return _ID.fullmatch(text) is not None
