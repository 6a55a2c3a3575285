"""Recognises the caller of a request: by a token, the host application, a trusted proxy, or a session (S2)."""

from __future__ import annotations

import ipaddress
from typing import Final

import msgspec
from starlette.requests import Request

from onward.errors import NotAuthenticated
from onward.http.request_headers import header, header_values
from onward.http.security import Failures, check_origin
from onward.http.settings import Settings, TrustedProxy
from onward.service.access import Access
from onward.service.identity import Identity, of_user

COOKIE: Final = "onward_session"


class Authenticator:
    """Recognises callers."""

    def __init__(self, access: Access, settings: Settings) -> None:
        self._access = access
        self._settings = settings
        self._failures = Failures(settings.max_failures)

    async def identify(self, request: Request, request_id: str, *, bearer_only: bool = False) -> Identity:
        """Return the caller of a request.

        Raises:
            NotAuthenticated: it has no credential, or none that is valid.
            HttpError: a browser sent its credential from another site, or the peer was refused too often.
        """
        peer = peer_of(request)
        self._failures.check(peer)
        try:
            identity = await self._identify(request, bearer_only=bearer_only)
        except NotAuthenticated:
            if header(request, b"authorization") is not None or COOKIE in request.cookies:
                self._failures.add(peer)
            raise
        return msgspec.structs.replace(identity, request_id=request_id)

    def refused(self, request: Request) -> None:
        """Count a refused login."""
        self._failures.add(peer_of(request))

    def check_peer(self, request: Request) -> None:
        """Refuse a peer that has been refused too often."""
        self._failures.check(peer_of(request))

    async def _identify(self, request: Request, *, bearer_only: bool) -> Identity:
        given = header_values(request, b"authorization")
        if given:
            scheme, _, credential = given[0].partition(" ")
            if len(given) > 1 or scheme.lower() != "bearer":
                raise NotAuthenticated("the Authorization header must be one bearer token")
            return await self._access.authenticate(credential.strip())
        if bearer_only:
            raise NotAuthenticated("this needs a token in the Authorization header")
        if (identity := await self._ambient(request)) is not None:
            # The browser sends these by itself, whichever page asks it to.
            check_origin(request)
            return identity
        raise NotAuthenticated("no credential was given")

    async def _ambient(self, request: Request) -> Identity | None:
        settings = self._settings
        if settings.trusted_proxy is not None:
            identity = _of_proxy(request, settings.trusted_proxy)
            if identity is not None:
                return identity
        if settings.authenticate is not None:
            identity = await settings.authenticate(request)
            if identity is not None:
                return identity
        secret = request.cookies.get(COOKIE)
        return None if secret is None else await self._access.authenticate_session(secret)


def session_cookie(request: Request, secret: str, *, proxy: TrustedProxy | None = None, age: int | None = None) -> str:
    """Write the cookie of a session, for the path under which the server is mounted; Secure where TLS is used."""
    parts = [f"{COOKIE}={secret}", f"Path={request.scope.get('root_path', '') or '/'}", "HttpOnly", "SameSite=Strict"]
    if is_encrypted(request, proxy):
        parts.append("Secure")
    if age is not None:
        parts.append(f"Max-Age={age}")
    return "; ".join(parts)


def peer_of(request: Request) -> str:
    """Return the address of the other end of the connection."""
    client = request.scope.get("client")
    return "" if client is None else str(client[0])


def is_encrypted(request: Request, proxy: TrustedProxy | None) -> bool:
    """Whether the client's connection is encrypted: by our own TLS, or by that of a listed proxy, which says so."""
    if request.url.scheme == "https":
        return True
    said = request.headers.getlist("x-forwarded-proto")
    return proxy is not None and said == ["https"] and _is_peer(request, proxy)


def _is_peer(request: Request, proxy: TrustedProxy) -> bool:
    try:
        address = ipaddress.ip_address(peer_of(request))
    except ValueError:
        return False
    return any(address in network for network in proxy.networks)


def _of_proxy(request: Request, proxy: TrustedProxy) -> Identity | None:
    names = header_values(request, proxy.user_header.lower().encode("latin-1"))
    if len(names) != 1 or not names[0].strip():
        return None
    if not _is_peer(request, proxy):
        return None  # anybody can send the header
    name = names[0].strip()
    return of_user(name, role=proxy.role) if proxy.identify is None else proxy.identify(name, request)
