"""Keys by which jobs are told to be the same.

``dedupe_key`` must come out byte for byte as JavaScript's ``JSON.stringify`` would write it over sorted keys (H4),
because Node producers compute it too. Two things differ between the languages: how numbers are written, and the order
of strings (JavaScript compares UTF-16 code units). Both are done here as JavaScript does them.
"""

from __future__ import annotations

import hashlib
import json.encoder
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_quoted = json.encoder.encode_basestring


def dedupe_key(type: str, org_id: str | None, payload: Any) -> str:
    """Build ``<type>::<org_id|global>::<payload as JSON with sorted keys>`` (H4)."""
    return f"{type}::{org_id or 'global'}::{canonical_json(payload)}"


def canonical_json(value: Any) -> str:
    """Write plain JSON values compactly, keys sorted at every depth, as ``JSON.stringify`` would."""
    match value:
        case None:
            return "null"
        case True:
            return "true"
        case False:
            return "false"
        case str():
            return _quoted(value)
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return _javascript_number(value)
        case Mapping() if all(isinstance(name, str) for name in value):
            members = sorted(value.items(), key=_by_utf16)
            return "{" + ",".join(f"{_quoted(name)}:{canonical_json(member)}" for name, member in members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(canonical_json, value)) + "]"
        case _:
            message = f"not a JSON value: {value!r}"
            raise TypeError(message)


def digest(*parts: str) -> bytes:
    """Shorten a key of any length to what an index can hold; parts cannot run into each other."""
    hasher = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        hasher.update(len(encoded).to_bytes(8, "big"))
        hasher.update(encoded)
    return hasher.digest()


def idempotency_digest(type: str, org_id: str | None, key: str) -> bytes:
    """Return what an idempotency key is found by: keys of two organisations, or of two types, never meet (O4)."""
    return digest(type, key) if org_id is None else digest(type, org_id, key)


def _by_utf16(member: tuple[str, Any]) -> bytes:
    return member[0].encode("utf-16-be", "surrogatepass")


def _javascript_number(value: float) -> str:
    """Write a number as ECMAScript's Number::toString does: the shortest digits, its own rules for the exponent."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    # repr() gives the same shortest digits as JavaScript; only the notation differs.
    _, digit_tuple, exponent = Decimal(repr(abs(value))).normalize().as_tuple()
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + int(exponent)  # where the decimal point stands, counted from the first digit
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"
