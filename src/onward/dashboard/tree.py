"""JSON values as trees that a template can show, within bounds."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onward.errors import InvalidValue
from onward.service.redaction import REDACTED

MAX_NODES: Final = 2000
MAX_DEPTH: Final = 100
_MAX_TEXT: Final = 20_000
_OPEN: Final = 3
"""Levels that are open at first."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON value, with its name in the value that contains it."""

    name: str | None
    kind: str
    """object, array, string, number, word, hidden or more."""
    text: str
    children: tuple[Node, ...] = ()
    is_open: bool = True


def tree(value: Any) -> Node:
    """Make the tree of a JSON value."""
    return _Builder().node(None, value, 0)


def has_redacted(value: Any) -> bool:
    """Whether something in a JSON value is hidden."""
    left = [value]
    while left:  # a job of another program may be nested deeper than Python can recurse
        match left.pop():
            case dict() as members:
                left += members.values()
            case list() as members:
                left += members
            case str() as text if REDACTED in text:
                return True
    return False


def restored(value: Any, original: Any, shown: Any) -> Any:
    """Put the original's values where a person has left the redacted ones as they were shown.

    Raises:
        InvalidValue: a redacted value would be stored, because it is not where it was.
    """
    found = _restored(value, original, shown)
    if _count_redacted(found) > _count_redacted(original):
        rule = "has a redacted value in another place than the job: give the value itself there"
        raise InvalidValue("payload", REDACTED, rule)
    return found


def _restored(value: Any, original: Any, shown: Any) -> Any:
    if isinstance(value, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return {
            key: _restored(member, original[key], shown[key]) if key in original and key in shown else member
            for key, member in value.items()
        }
    if isinstance(value, list) and isinstance(original, list) and isinstance(shown, list):
        if len(value) != len(original) or len(value) != len(shown):
            return value
        return [_restored(*members) for members in zip(value, original, shown, strict=True)]
    return original if isinstance(value, str) and REDACTED in value and value == shown else value


def _count_redacted(value: Any) -> int:
    return msgspec.json.encode(value).count(REDACTED.encode())


def as_text(value: Any) -> str:
    """Write a JSON value for a form, indented."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class _Builder:
    def __init__(self) -> None:
        self._left = MAX_NODES

    def node(self, name: str | None, value: Any, depth: int) -> Node:
        self._left -= 1
        if depth >= MAX_DEPTH and isinstance(value, dict | list):
            return Node(name=name, kind="more", text="… nested deeper than is shown here")
        if isinstance(value, dict):
            children = self._children(value.items(), depth)
            return Node(name=name, kind="object", text=f"{{{len(value)}}}", children=children, is_open=depth < _OPEN)
        if isinstance(value, list):
            children = self._children(((str(at), member) for at, member in enumerate(value)), depth)
            return Node(name=name, kind="array", text=f"[{len(value)}]", children=children, is_open=depth < _OPEN)
        if isinstance(value, str):
            if value == REDACTED:
                return Node(name=name, kind="hidden", text="redacted")
            text = value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}… ({len(value)} characters)"
            return Node(name=name, kind="string", text=f'"{text}"')
        if value is None or isinstance(value, bool):
            return Node(name=name, kind="word", text={None: "null", True: "true", False: "false"}[value])
        return Node(name=name, kind="number", text=str(value))

    def _children(self, members: Any, depth: int) -> tuple[Node, ...]:
        made = []
        for name, member in members:
            if self._left <= 0:
                made.append(Node(name=None, kind="more", text="… more than is shown here"))
                break
            made.append(self.node(name, member, depth + 1))
        return tuple(made)
