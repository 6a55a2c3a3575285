"""The one-time code for the first login (S2): printed by the command that serves, exchanged once for a session.

A code rests on a token that the command creates at its start and revokes at its end. Nobody has the token's secret, so
the first use of the token is the use of its code: the store knows it, and a restarted server does too.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from datetime import datetime, timedelta
from typing import Final

import msgspec

log = logging.getLogger("onward.access")

TOKEN_NAME: Final = "one-time-code"  # noqa: S105 - a name
VALID_FOR: Final = timedelta(minutes=10)
MAX_ATTEMPTS: Final = 5
"""Wrong codes after which the right one is refused too."""
_LETTERS: Final = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
"""Without those that are easily confused."""
_GROUPS: Final = 3
_GROUP: Final = 4
_LONGEST: Final = 100


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """A code as a server has it: the digest alone."""

    token_id: str
    digest: str
    expires_at: datetime

    def __repr__(self) -> str:
        """Leave the digest out: a short code can be found by trying."""
        return f"LoginCode(token_id={self.token_id!r}, digest='…')"


class CodeCheck:
    """Checks attempts at a code, and accepts it once."""

    def __init__(self, code: LoginCode) -> None:
        self.code = code
        self._attempts = 0
        self._is_used = False

    def take(self, given: str, now: datetime) -> bool:
        """Use the code up if this is it. No await: of two attempts at the same time one succeeds."""
        if self._is_used or self._attempts >= MAX_ATTEMPTS or now >= self.code.expires_at:
            return False
        if not hmac.compare_digest(code_digest(given), self.code.digest):
            self._attempts += 1
            log.warning("login code refused", extra={"attempts_left": MAX_ATTEMPTS - self._attempts})
            return False
        self._is_used = True
        return True

    def give_back(self) -> None:
        """Accept the code again: the store could not be reached, and no session was created."""
        self._is_used = False


def new_code() -> str:
    """Make a code of 60 random bits, to be copied by a person."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(_GROUP)) for _ in range(_GROUPS))


def code_digest(text: str) -> str:
    """Return the digest of a code, however it was typed."""
    plain = text[:_LONGEST].upper().replace("-", "").replace(" ", "").strip()
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()
