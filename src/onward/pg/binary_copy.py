"""Writes rows as COPY reads them in its binary format, which takes the server a tenth less than text does."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, iter_unpack
from typing import Final

BEGIN: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""What comes before the first row."""
END: Final = b"\xff\xff"
"""What comes behind the last."""
_NULL: Final = b"\xff\xff\xff\xff"
_ROW_HEADER: Final = Struct(">hi16si")
"""How many columns there are; the first, which is an id; and the length of the second, which is a text."""


def text(value: str | None) -> bytes:
    """Write a text, or JSON."""
    if value is None:
        return _NULL
    written = value.encode()
    return len(written).to_bytes(4, "big") + written


def number(value: int, size: int) -> bytes:
    """Write a whole number, or a truth, of so many bytes."""
    return size.to_bytes(4, "big") + value.to_bytes(size, "big", signed=True)


def rows(ids: Iterable[str], texts: Iterable[str], shared_columns: bytes, columns: int) -> bytes:
    """Write rows of an id, a text, and what all have alike: that of so many ``columns``."""
    head, width = _ROW_HEADER.pack, 2 + columns
    raw_ids = iter_unpack("16s", bytes.fromhex("".join(ids).replace("-", "")))
    return b"".join(
        [
            head(width, 16, raw_id, len(written)) + written + shared_columns
            for (raw_id,), written in zip(raw_ids, map(str.encode, texts), strict=True)
        ]
    )
