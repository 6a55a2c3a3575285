"""Reads what a request says: its body within size and time, its query and its path, into typed values."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from onward.errors import InvalidValue
from onward.http.problems import HttpError
from onward.http.request_headers import header

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
NDJSON: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
_PATH: Final = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")
_FIELD: Final = re.compile(r"(?:unknown|required) field `([^`]*)`")
_MOST_PARAMETERS: Final = 300
_FRAMED: Final = frozenset({"1.0", "1.1"})
"""Versions of HTTP in which a request without Content-Length and Transfer-Encoding has no body."""


async def read_body(request: Request, *, limit: int, timeout: float) -> bytes:
    """Read a body.

    Raises:
        HttpError: it is larger than ``limit`` bytes, which is found while it is read, or takes too long.
    """
    length = header(request, b"content-length") or ""
    is_framed = request.scope.get("http_version") in _FRAMED
    if is_framed and not length and header(request, b"transfer-encoding") is None:
        return b""
    if length.isdecimal() and int(length[:19]) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise HttpError(400, "disconnected", "disconnected", "the client has gone")
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise HttpError(408, "body-timeout", "body timeout", f"the body did not arrive within {timeout:g} s") from None
    return b"".join(parts)


def media_type(request: Request) -> str:
    """Return the media type of a request, without parameters."""
    return (header(request, b"content-type") or "").partition(";")[0].strip().lower()


def check_media_type(request: Request, allowed: frozenset[str]) -> str:
    """Refuse a body in another format. A browser's form cannot send these to another site unasked."""
    given = media_type(request)
    if given not in allowed:
        names = ", ".join(sorted(allowed))
        raise HttpError(415, "media-type", "unsupported media type", f"send {names}", field="Content-Type")
    return given


def decode(data: bytes, kind: Any, *, field: str = "") -> Any:
    """Read JSON as a typed value.

    Raises:
        HttpError: it is no JSON, or does not fit.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = "the body is not JSON in UTF-8" + (f": {error}" if isinstance(error, msgspec.DecodeError) else "")
        raise HttpError(400, "malformed-json", "malformed JSON", detail, field=field or None) from None
    except RecursionError:
        raise HttpError(
            400, "too-deep", "nested too deep", "the body is nested deeper than any payload may be", field=field or None
        ) from None


def decode_lines(data: bytes, kind: type[T], *, most: int) -> list[T]:
    """Read NDJSON: a JSON value a line; empty lines are skipped."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    if len(lines) > most:
        raise InvalidValue("jobs", len(lines), f"must be at most {most}")
    return [decode(line, kind, field=f"[{at}]") for at, line in enumerate(lines)]


def read_query(request: Request, kind: type[S]) -> S:
    """Read the query of a URL as a typed value; a parameter that does not exist is refused.

    Raises:
        HttpError: a parameter is unknown, given twice, or not valid.
    """
    text: bytes = request.scope.get("query_string", b"")
    try:
        pairs: list[tuple[str, str]] = []
        if text:
            given = text.decode("ascii")
            pairs = parse_qsl(given, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except ValueError:  # not ASCII, not UTF-8 inside, or too many
        raise HttpError(
            400, "malformed-query", "malformed query", "the query is not UTF-8, or has too many parameters"
        ) from None
    lists = _list_parameters(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise HttpError(400, "invalid-value", "invalid value", f"{name} is given twice", field=name)
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), "") from None


@cache
def _list_parameters(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The parameters that may be given several times."""
    return frozenset(
        each.encode_name for each in msgspec.structs.fields(kind) if getattr(each.type, "__origin__", None) is tuple
    )


def _misfit(message: str, prefix: str) -> HttpError:
    """Say which field does not fit. The value itself is left out: it may be a secret."""
    found = _PATH.search(message)
    path = "" if found is None else found["path"].lstrip(".")
    rule = _PATH.sub("", message)
    if named := _FIELD.search(rule):
        path = f"{path}.{named[1]}".lstrip(".")
    parts = [part for part in (prefix, path) if part]
    field = ".".join(parts).replace(".[", "[")
    return HttpError(
        400, "invalid-value", "invalid value", f"{field}: {rule}" if field else rule, field=field or None, rule=rule
    )


def _too_large(limit: int) -> HttpError:
    return HttpError(413, "too-large", "too large", f"the body exceeds {limit} bytes", rule=f"at most {limit} bytes")
