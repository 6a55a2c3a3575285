"""Arrays as PostgreSQL writes them: ``{1,2,NULL}``.

A driver turns a list into the same text, but looks at every element for what it may be; for a batch of jobs that cost
more than running them. Statements take these as text and cast them: ``$1::text::bigint[]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

EMPTY: Final = "{}"


def numbers(values: Sequence[int | str | None]) -> str:
    """Write whole numbers, or truth values; what is a number in writing stays as it is."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def whole(values: Sequence[int]) -> str:
    """Write whole numbers of which none is missing: as Python writes a list, which is quicker than one by one."""
    return f"{{{str(list(values))[1:-1]}}}"


def words(values: Iterable[str]) -> str:
    """Write texts that are made of letters, digits and dashes, such as ids."""
    return "{" + ",".join(values) + "}"


def quoted(values: Iterable[object]) -> str:
    """Write texts that need quotes and have none in them."""
    return '{"' + '","'.join(map(str, values)) + '"}'


def texts(values: Iterable[str | None]) -> str:
    """Write texts."""
    return "{" + ",".join(map(_quoted, values)) + "}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    return '"' + value.replace('"', '\\"') + '"'
