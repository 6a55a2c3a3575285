"""How messages are read, and how those are understood that others have sent.

A message of ours says in its headers what it is. One from another producer is a plain JSON value: which task it is for
is said by a field of it, or by its queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from onward.errors import InvalidJob

MAX_READS: Final = 3
"""How often a message may be read without an outcome; the next time it is poison (G3)."""

READ_BY: Final[Mapping[str, str | None]] = {
    "ready": None,
    "fifo": "read",
    "grouped": "read_grouped",
    "grouped_rr": "read_grouped_rr",
    "grouped_head": "read_grouped_head",
}
"""The ways to read a queue, and PGMQ's function for each; None: in the order in which messages become visible."""

GROUPED: Final = frozenset({"grouped", "grouped_rr", "grouped_head"})
GROUP_HEADER: Final = "x-pgmq-group"
"""By which PGMQ knows the groups of which one message at a time is read."""

_LONG_NUMBER: Final = re.compile(r"\d{17}")
_decode = msgspec.json.decode
_encode = msgspec.json.encode


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """What is agreed on with the others on these queues."""

    max_reads: int = MAX_READS
    completed: Literal["archive", "delete"] = "archive"
    """What becomes of a message that is done."""
    type_field: str | None = None
    """The field of a plain message that names its task."""
    payload_field: str | None = None
    """The field of a plain message that holds the arguments; None: the message itself, without ``type_field``."""
    types: Mapping[str, str] = {}
    """Which task a queue's plain messages are for; a queue that is not here is for the task of its own name."""
    reads: Mapping[str, str] = {}
    """How a queue is read, of :data:`READ_BY`; '' is for all that are not here."""
    wheres: Mapping[str, Any] = {}
    """What a queue's messages must contain to be read; '' is for all that are not here."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if type(self.max_reads) is not int or self.max_reads < 1:
            raise InvalidJob("max_reads", self.max_reads, "must be a whole number of at least 1")
        if self.completed not in {"archive", "delete"}:
            raise InvalidJob("completed", self.completed, "must be archive or delete")
        for queue, way in self.reads.items():
            if way not in READ_BY:
                raise InvalidJob(f"read.{queue}" if queue else "read", way, f"must be one of {', '.join(READ_BY)}")
        for queue, condition in self.wheres.items():
            if not isinstance(condition, Mapping):
                raise InvalidJob(f"where.{queue}" if queue else "where", condition, "must be a JSON object")
            if self.way(queue) in GROUPED:
                raise InvalidJob(f"where.{queue}", condition, "does not go with a queue that is read by groups")

    def way(self, queue: str) -> str:
        """Say how a queue is read."""
        return self.reads.get(queue) or self.reads.get("") or "ready"

    @property
    def functions(self) -> set[str]:
        """The functions of PGMQ's that are needed for it."""
        return {by for way in self.reads.values() if (by := READ_BY[way]) is not None}

    @property
    def hows(self) -> str | None:
        """How queues are read, written for the store; None: all in the usual way."""
        if not self.reads and not self.wheres:
            return None
        hows = {}
        for queue in {*self.reads, *self.wheres}:
            way = self.way(queue)
            condition = None if way in GROUPED else self.wheres.get(queue, self.wheres.get(""))
            hows[queue] = {"by": READ_BY[way], "where": condition}
        return _encode(hows).decode()

    def understand(self, queue: str, payload: str, named: str | None) -> tuple[str, str]:
        """Say which task a message is for, and with what arguments; ``named`` is what its headers say if it is ours."""
        if named is not None:
            return named, _as_it_was(payload)
        if self.type_field is not None and payload.startswith("{"):
            members = _decode(payload, type=dict[str, msgspec.Raw])
            named = _text_of(members.get(self.type_field))
            if named is not None:
                if self.payload_field in members:
                    return named, bytes(members[self.payload_field]).decode()
                del members[self.type_field]
                return named, _encode(members).decode()
        return self.types.get(queue, queue), payload


def _text_of(member: msgspec.Raw | None) -> str | None:
    if member is None:
        return None
    try:
        return _decode(member, type=str) or None
    except msgspec.ValidationError:
        return None


def _as_it_was(payload: str) -> str:
    """Undo what jsonb does to a large float: it comes back as a whole number, beyond those that jobs may hold (B4)."""
    if _LONG_NUMBER.search(payload) is None:
        return payload
    import json  # noqa: PLC0415 - rarely needed

    return json.dumps(json.loads(payload, parse_int=_number), separators=(",", ":"), ensure_ascii=False)


def _number(digits: str) -> int | float:
    whole = int(digits)
    return whole if -(2**53) <= whole <= 2**53 else float(digits)


_PLAIN: Final = frozenset({"completed", "type_field", "payload_field", "notify", "direct"})
_BY_QUEUE: Final = {"type": "types", "read": "reads", "where": "wheres"}


def from_url(asked: Iterable[tuple[str, str]]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Take our settings out of those of a URL; the rest is libpq's.

    ``read=grouped`` is for all queues, ``read.orders=grouped`` for one; the same with ``type`` and ``where``.
    """
    ours: dict[str, Any] = {}
    rest: list[tuple[str, str]] = []
    for name, value in asked:
        kind, _, queue = name.partition(".")
        if name in _PLAIN:
            ours[name] = value
        elif name == "max_reads":
            ours[name] = int(value) if value.isdecimal() else value
        elif kind in _BY_QUEUE and (queue or name != "type"):
            ours.setdefault(_BY_QUEUE[kind], {})[queue] = _condition(name, value) if kind == "where" else value
        else:
            rest.append((name, value))
    return ours, rest


def _condition(name: str, value: str) -> Any:
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise InvalidJob(name, value, f"must be a JSON object: {error}") from None
