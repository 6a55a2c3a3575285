"""Names in paths: tilde-encoded, so that no proxy can change them.

Queue names contain ``/``. Proxies decode ``%2F``, merge ``//`` and resolve ``..``; they leave ``~`` alone, which is an
unreserved character (RFC 3986).
"""

from __future__ import annotations

import re
from typing import Final

from onward.errors import InvalidValue

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_ENCODED: Final = re.compile(r"(?:[A-Za-z0-9_.-]|~[0-9a-fA-F]{2})+")


def encode_name(name: str) -> str:
    """Write a name as one segment of a path."""
    text = "".join(chr(byte) if byte in _PLAIN else f"~{byte:02x}" for byte in name.encode())
    # "." and ".." are steps of a path, not names.
    return text if text.strip(".") else f"~2e{text[1:]}"


def decode_name(segment: str) -> str:
    """Read a segment of a path.

    Raises:
        InvalidValue: it is not such as :func:`encode_name` writes.
    """
    if not _ENCODED.fullmatch(segment):
        raise InvalidValue("path", segment, "must be tilde-encoded: letters, digits, '_', '-', '.', and ~2f for '/'")
    if "~" not in segment:
        return segment
    parts = segment.split("~")
    data = parts[0].encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in parts[1:])
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidValue("path", segment, "must be UTF-8") from None
