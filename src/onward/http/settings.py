"""What a server is told."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from starlette.requests import Request

from onward.errors import InvalidValue
from onward.service.access import SESSION_IDLE, SESSION_LENGTH
from onward.service.identity import Identity
from onward.service.login_code import LoginCode

MIN_KEEP_AUDIT: Final = timedelta(days=30)
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")

Authenticate = Callable[[Request], Awaitable[Identity | None]]
"""Recognises the caller of a request; None: it does not know the caller."""


@dataclass(frozen=True, kw_only=True)
class TrustedProxy:
    """A proxy that authenticates users and names them in a header. Believed from listed peers only (S2)."""

    peers: Sequence[str]
    """Addresses and networks of the proxies."""
    user_header: str = "x-forwarded-user"
    role: str = "viewer"
    """The role of every user, unless ``identify`` says otherwise."""
    identify: Callable[[str, Request], Identity] | None = None
    """Makes the identity of a user."""

    def __post_init__(self) -> None:
        """Refuse addresses that are none."""
        if not self.peers:
            raise InvalidValue("peers", [], "must list the addresses of the proxies")
        self.networks  # noqa: B018 - read once here, so that a wrong one is refused

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The peers, as networks."""
        try:
            return tuple(ipaddress.ip_network(peer) for peer in self.peers)
        except ValueError as error:
            raise InvalidValue("peers", list(self.peers), f"must be addresses or networks: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server."""

    allowed_hosts: Sequence[str] = ()
    """Names in ``Host`` besides the loopback ones; ``*``: any, where another server checks it."""
    authenticate: Authenticate | None = None
    """The host application's own authentication."""
    trusted_proxy: TrustedProxy | None = None
    max_bulk_body: int = 64 * 1024 * 1024
    """Bytes of a bulk enqueue."""
    body_timeout: float = 30.0
    """Seconds that a body may take to arrive."""
    max_streams: int = 20
    """Open event streams of one caller."""
    max_failures: int = 60
    """Refused credentials of one peer in a minute."""
    session_idle: timedelta = SESSION_IDLE
    session_length: timedelta = SESSION_LENGTH
    run_operations: bool = True
    """Whether changes by filter are also made in this process."""
    keep_audit: timedelta = timedelta(days=365)
    """How long audit records are kept; 30 days at least."""
    login_code: LoginCode | None = None
    """A one-time code that is accepted for a session."""

    def __post_init__(self) -> None:
        """Refuse a time for which records cannot be kept."""
        if self.keep_audit < MIN_KEEP_AUDIT:
            raise InvalidValue("keep_audit", self.keep_audit, "must be at least 30 days")

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names that are answered for; None: any."""
        if "*" in self.allowed_hosts:
            return None
        return frozenset(host.lower() for host in (*LOOPBACK_HOSTS, *self.allowed_hosts))
