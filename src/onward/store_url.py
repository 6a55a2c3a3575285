"""Store URLs contain passwords: what may be shown of one, and which ones cannot be read without ambiguity (X6)."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from onward.errors import InvalidValue

_PLAIN_NAME = re.compile(r"[\w./-]*")
_NO_PORT = re.compile(r"(?<!:):(?!\d*(?:,|$))(?![0-9a-fA-F:]*\])[^,]*")
"""What is no port, nor part of an IPv6 address: perhaps a password whose ``@`` a parser took for something else."""
_END_OF_AUTHORITY = re.compile(r"[/?#]")


def hide_secrets(url: str) -> str:
    """Return the URL without credentials and settings: ``redis://…@host:6379/0``.

    Credentials end at the last ``@`` of the whole text. A parser ends them at the first ``/``, ``?``, ``#`` or ``@``,
    and would show the rest of a password that is not percent-encoded. Where a ``?`` precedes that ``@``, what follows
    may be the rest of a password in the settings: nothing is shown.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        return url if _PLAIN_NAME.fullmatch(url) else "…"  # a conninfo string may contain a password anywhere
    hidden = ""
    if not rest.startswith("/"):
        credentials, found, rest = rest.rpartition("@")
        if "?" in credentials:
            return f"{scheme}://…"
        hidden = "…@" if found else ""
        authority = _END_OF_AUTHORITY.split(rest, maxsplit=1)[0]
        rest = _NO_PORT.sub(":…", authority) + rest[len(authority) :]
    path, found, _ = rest.partition("?")
    return f"{scheme}://{hidden}{path}{'?…' if found else ''}"


def url_of(store: str | Path) -> str:
    """Return the URL of a store; a path is that of a SQLite file."""
    if isinstance(store, Path):
        # An absolute path has a slash of its own: sqlite:////var/jobs.db.
        return f"sqlite:///{quote(store.as_posix())}"
    return store


def check_credentials(url: str) -> str:
    """Refuse a URL whose user or password contains a character that must be percent-encoded, without showing it."""
    _, found, rest = url.partition("://")
    if not found or rest.startswith("/"):
        return url
    before_query, _, query = rest.partition("?")
    authority = _END_OF_AUTHORITY.split(rest, maxsplit=1)[0]
    if any(one in authority.rpartition("@")[0] for one in "[]"):
        raise InvalidValue("url", hide_secrets(url), "has a bracket in its password: write [ and ] as %5B and %5D")
    if before_query.count("@") > 1 or "@" in before_query[len(authority) :] or "@" in query.partition("=")[0]:
        raise InvalidValue(
            "url", hide_secrets(url), "has an '@' too many: write @, /, ? and # as %40, %2F, %3F and %23 in a password"
        )
    return url


def hide_quoted(message: str) -> str:
    """Cut a parser's message before the part of the URL that it quotes: this may be a part of the password."""
    return re.split(r"[\"']", message, maxsplit=1)[0].rstrip(" :")
