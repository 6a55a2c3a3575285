"""The search line of the list pages: ``state:failed queue:mail/* type:send_mail error:"timed out"``.

The line is the whole filter, and is in the URL. Qualifiers are those that a :class:`~onward.service.values.JobQuery`
has; a word without one is the id of a job, or the name of a task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from onward.errors import InvalidValue
from onward.lifecycle import JobStatus
from onward.service.values import JobQuery

MAX_LENGTH: Final = 1000
_WORD: Final = re.compile(r'(?:([a-z_.]+):)?(?:"([^"]*)"|(\S+))')
_AGE: Final = re.compile(r"(\d{1,5})(s|min|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days"}
_MANY: Final = {"queue": "queue", "type": "type", "state": "status", "status": "status"}
_ONE: Final = {"org": "org_id", "batch": "batch", "worker": "worker_id", "error": "error_contains"}
_TIMES: Final = {"after": "created_after", "before": "created_before"}
QUALIFIERS: Final = ("state", "queue", "type", "org", "batch", "worker", "error", "after", "before", "id")


class Term(msgspec.Struct, frozen=True):
    """A qualifier and its value."""

    qualifier: str
    value: str

    def __str__(self) -> str:
        """Write it as it is typed."""
        value = f'"{self.value}"' if re.search(r"\s", self.value) or not self.value else self.value
        return f"{self.qualifier}:{value}" if self.qualifier else value


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A search line, read."""

    terms: tuple[Term, ...] = ()
    query: JobQuery = JobQuery()
    id: str | None = None
    """The job that the line names."""

    @property
    def text(self) -> str:
        """The line."""
        return " ".join(map(str, self.terms))

    @property
    def states(self) -> tuple[JobStatus, ...]:
        """The states that it asks for."""
        return self.query.status

    @property
    def chips(self) -> tuple[tuple[str, str], ...]:
        """Each term, and the line without it."""
        words = [str(term) for term in self.terms]
        return tuple((word, " ".join(words[:at] + words[at + 1 :])) for at, word in enumerate(words))

    def without(self, *qualifiers: str) -> Search:
        """Leave qualifiers out."""
        return parse(" ".join(str(term) for term in self.terms if term.qualifier not in qualifiers))

    def plus(self, qualifier: str, value: str) -> str:
        """Write the line with one more term."""
        return f"{self.text} {Term(qualifier, value)}".strip()


def parse(text: str, *, now: datetime | None = None) -> Search:
    """Read a search line.

    Raises:
        InvalidValue: a qualifier does not exist, is given twice, or its value is not valid.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidValue("search", f"{text[:40]}…", f"must have at most {MAX_LENGTH} characters")
    terms, fields, id = [], dict[str, Any](), None
    for found in _WORD.finditer(text):
        qualifier, value = found[1] or "", found[2] if found[2] is not None else found[3]
        if qualifier == "status":
            qualifier = "state"
        if not qualifier or qualifier == "id":
            if id is not None:
                raise InvalidValue("id", value, "one search finds one id; use type: or error: for other words")
            id = value
        elif qualifier in _MANY:
            fields.setdefault(_MANY[qualifier], []).extend(_states(value) if qualifier == "state" else [value])
        elif (field := _ONE.get(qualifier) or _TIMES.get(qualifier)) is None:
            rule = f"is not a qualifier: use {', '.join(QUALIFIERS)}"
            raise InvalidValue("search", qualifier, rule)
        elif field in fields:
            raise InvalidValue(qualifier, value, "is given twice")
        else:
            fields[field] = _time(qualifier, value, now) if qualifier in _TIMES else value
        terms.append(Term(qualifier, value))
    lists: dict[str, Any] = {field: tuple(fields.pop(field)) for field in set(_MANY.values()) if field in fields}
    return Search(terms=tuple(terms), query=JobQuery(**lists, **fields), id=id)


def _states(value: str) -> Iterable[JobStatus]:
    for word in value.split(","):
        known = {"dead": "dead_letter", "ready": "pending"}.get(word, word.replace("-", "_"))
        if known not in set(JobStatus):
            raise InvalidValue("state", word, f"must be one of {', '.join(JobStatus)}")
        yield JobStatus(known)


def _time(qualifier: str, value: str, now: datetime | None) -> datetime:
    if age := _AGE.fullmatch(value):
        return (now or datetime.now(UTC)) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidValue(qualifier, value, "must be a date, a time (2026-11-01T10:00Z) or an age (2h, 3d)") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
