"""What every request must satisfy: its host, its origin, its number of refused credentials (S1, S4, S7)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from onward.http.problems import HttpError
from onward.http.request_headers import header, header_values

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""Of every answer. A page has a policy of its own."""
_RAW: Final = tuple((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
_WINDOW: Final = 60.0
_MOST_PEERS: Final = 10_000


def raw_headers(more: Mapping[str, str] | None = None) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer as ASGI has them: those of every answer, and its own, which take precedence."""
    if not more:
        return list(_RAW)
    own = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in more.items()}
    return list({**dict(_RAW), **own}.items())


def host_name(host: str) -> str:
    """Return the name in a ``Host`` header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def check_host(request: Request, hosts: frozenset[str] | None) -> None:
    """Refuse a request to a name that this server does not have: a page of another site may have rebound it (S1)."""
    given = header_values(request, b"host")
    if hosts is not None and (len(given) != 1 or host_name(given[0]) not in hosts):
        raise HttpError(
            421,
            "unknown-host",
            "unknown host",
            "the request names a host that this server does not answer for",
            remedy="add the name to the allowed hosts: onward serve --allow-host NAME",
        )


def check_origin(request: Request) -> None:
    """Refuse a change that a page of another site may have sent with the browser's own credentials (S4)."""
    if request.method in SAFE_METHODS:
        return
    site = header(request, b"sec-fetch-site")
    origin = header(request, b"origin")
    if origin is not None:
        parts = urlsplit(origin)
        same = parts.netloc.lower() == (header(request, b"host") or "").lower() and bool(parts.netloc)
        if same and site in {None, "same-origin"}:
            return
    elif site == "same-origin":
        return
    raise HttpError(
        403,
        "cross-site",
        "cross-site request",
        "a cookie alone does not suffice: the request must come from a page of this server",
        remedy="send a token: Authorization: Bearer onw_…",
    )


class Failures:
    """Counts refused credentials by peer (S7)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, tuple[float, int]] = {}

    def check(self, peer: str) -> None:
        """Refuse a peer that has been refused too often."""
        since, count = self._counts.get(peer, (0.0, 0))
        left = since + _WINDOW - time.monotonic()
        if count >= self._limit and left > 0:
            raise HttpError(
                429,
                "too-many-failures",
                "too many refused credentials",
                remedy="wait, and check the token",
                headers={"Retry-After": str(int(left) + 1)},
            )

    def add(self, peer: str) -> None:
        """Count one."""
        since, count = self._counts.get(peer, (0.0, 0))
        now = time.monotonic()
        if now - since > _WINDOW:
            since, count = now, 0
        if peer not in self._counts and len(self._counts) >= _MOST_PEERS:
            del self._counts[next(iter(self._counts))]
        self._counts[peer] = since, count + 1
