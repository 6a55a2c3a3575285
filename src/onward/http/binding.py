"""Where a server may listen (S1): on loopback; elsewhere only with a credential and an encrypted way to it."""

from __future__ import annotations

import ipaddress

from onward.errors import InvalidValue


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone. A name is not, whatever it resolves to today."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def check_binding(host: str, *, has_credential: bool, has_tls: bool, behind_proxy: bool) -> None:
    """Refuse an address at which a server would be open to others.

    Raises:
        InvalidValue: it is not a loopback address, and there is no token, or neither TLS nor a proxy.
    """
    if is_loopback(host):
        return
    if not has_tls and not behind_proxy:
        raise InvalidValue(
            "host",
            host,
            "is not a loopback address: tokens would travel in clear text. Give --tls-cert and --tls-key, or "
            "--behind-proxy where a proxy encrypts",
        )
    if not has_credential:
        raise InvalidValue("host", host, "is not a loopback address, and there is no token: onward tokens create")
