"""How messages are read, and how those are understood that others have sent.

A message of ours says in its headers what it is. One from another producer is a plain JSON value: which task it is for
is said by a field of it, or by its queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from onward.errors import InvalidValue
from onward.validation import read_number

MAX_READS: Final = 3
"""How often a message may be read without an outcome; the next time it is poison (G3)."""

READ_FUNCTIONS: Final[Mapping[str, str | None]] = {
    "ready": None,
    "fifo": "read",
    "grouped": "read_grouped",
    "grouped_rr": "read_grouped_rr",
    "grouped_head": "read_grouped_head",
}
"""The ways to read a queue, and PGMQ's function for each; None: in the order in which messages become visible."""

GROUPED_MODES: Final = frozenset({"grouped", "grouped_rr", "grouped_head"})
GROUP_HEADER: Final = "x-pgmq-group"
"""By which PGMQ knows the groups of which one message at a time is read."""

_LONG_NUMBER: Final = re.compile(r"\d{17}")
_decode = msgspec.json.decode
_encode = msgspec.json.encode


class PgmqSettings(msgspec.Struct, frozen=True, kw_only=True):
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
    read_modes: Mapping[str, str] = {}
    """How a queue is read, of :data:`READ_FUNCTIONS`; '' is for all that are not here."""
    conditions: Mapping[str, Any] = {}
    """What a queue's messages must contain to be read; '' is for all that are not here."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if type(self.max_reads) is not int or self.max_reads < 1:
            raise InvalidValue("max_reads", self.max_reads, "must be a whole number of at least 1")
        if self.completed not in {"archive", "delete"}:
            raise InvalidValue("completed", self.completed, "must be archive or delete")
        for queue, mode in self.read_modes.items():
            if mode not in READ_FUNCTIONS:
                raise InvalidValue(
                    f"read.{queue}" if queue else "read", mode, f"must be one of {', '.join(READ_FUNCTIONS)}"
                )
        for queue, condition in self.conditions.items():
            if not isinstance(condition, Mapping):
                raise InvalidValue(f"where.{queue}" if queue else "where", condition, "must be a JSON object")
            if self.read_mode(queue) in GROUPED_MODES:
                raise InvalidValue(f"where.{queue}", condition, "does not go with a queue that is read by groups")

    def read_mode(self, queue: str) -> str:
        """Say how a queue is read."""
        return self.read_modes.get(queue) or self.read_modes.get("") or "ready"

    @property
    def functions(self) -> set[str]:
        """The functions of PGMQ's that are needed for it."""
        return {function for mode in self.read_modes.values() if (function := READ_FUNCTIONS[mode]) is not None}

    @property
    def read_modes_json(self) -> str | None:
        """How queues are read, written for the store; None: all in the usual way."""
        if not self.read_modes and not self.conditions:
            return None
        modes = {}
        for queue in {*self.read_modes, *self.conditions}:
            mode = self.read_mode(queue)
            condition = None if mode in GROUPED_MODES else self.conditions.get(queue, self.conditions.get(""))
            modes[queue] = {"function": READ_FUNCTIONS[mode], "where": condition}
        return _encode(modes).decode()

    def decode_message(self, queue: str, payload: str, declared_type: str | None) -> tuple[str, str]:
        """Give the task of a message and its arguments; ``declared_type`` is what its headers say, if ours."""
        if declared_type is not None:
            return declared_type, _restore_floats(payload)
        if self.type_field is not None and payload.startswith("{"):
            members = _decode(payload, type=dict[str, msgspec.Raw])
            declared_type = _text_of(members.get(self.type_field))
            if declared_type is not None:
                if self.payload_field in members:
                    return declared_type, bytes(members[self.payload_field]).decode()
                del members[self.type_field]
                return declared_type, _encode(members).decode()
        return self.types.get(queue, queue), payload


def _text_of(member: msgspec.Raw | None) -> str | None:
    if member is None:
        return None
    try:
        return _decode(member, type=str) or None
    except msgspec.ValidationError:
        return None


def _restore_floats(payload: str) -> str:
    """Undo what jsonb does to a large float: it comes back as a whole number, beyond those that jobs may hold (B4)."""
    if _LONG_NUMBER.search(payload) is None:
        return payload
    import json  # noqa: PLC0415 - rarely needed

    return json.dumps(json.loads(payload, parse_int=_number), separators=(",", ":"), ensure_ascii=False)


def _number(digits: str) -> int | float:
    whole = int(digits)
    return whole if -(2**53) <= whole <= 2**53 else float(digits)


_SIMPLE_OPTIONS: Final = frozenset({"completed", "type_field", "payload_field", "notify", "listen_url"})
_QUEUE_OPTIONS: Final = {"type": "types", "read": "read_modes", "where": "conditions"}


def from_url(parameters: Iterable[tuple[str, str]]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Take our settings out of those of a URL; the rest is libpq's.

    ``read=grouped`` is for all queues, ``read.orders=grouped`` for one; the same with ``type`` and ``where``.
    """
    ours: dict[str, Any] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parameters:
        kind, _, queue = name.partition(".")
        if name in _SIMPLE_OPTIONS:
            ours[name] = value
        elif name == "max_reads":
            number = read_number(value)
            ours[name] = value if number is None else number
        elif kind in _QUEUE_OPTIONS and (queue or name != "type"):
            ours.setdefault(_QUEUE_OPTIONS[kind], {})[queue] = _condition(name, value) if kind == "where" else value
        else:
            rest.append((name, value))
    return ours, rest


def _condition(name: str, value: str) -> Any:
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise InvalidValue(name, value, f"must be a JSON object: {error}") from None
