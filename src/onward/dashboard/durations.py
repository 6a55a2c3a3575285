"""Durations as people type them into forms: ``7d``, ``1h30m``, ``90s``."""

from __future__ import annotations

import re
from typing import Final

from onward.errors import InvalidValue

_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|min|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read(field: str, text: str) -> float | None:
    """Return the seconds of a duration; None where the text is empty.

    Raises:
        InvalidValue: it is no duration.
    """
    text = text.strip()
    if not text:
        return None
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise InvalidValue(field, text, "must be a duration such as 30s, 5m, 1h30m or 7d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def write(seconds: float | None) -> str:
    """Write a duration so that :func:`read` reads it."""
    if seconds is None:
        return ""
    if seconds % 1:
        return f"{seconds:g}s"
    whole, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
