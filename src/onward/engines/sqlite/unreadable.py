"""Rows that cannot be read: written by hand past the checks of the schema, or damaged. Each fails with its reason."""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

import msgspec

from onward.engines.sqlite import batches
from onward.engines.sqlite.rows import failed_attempt
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.lifecycle import Failure

log = logging.getLogger("onward.sqlite")

READ_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, sqlite3.Error)
"""What reading a row may raise; :func:`is_unreadable` tells whether the row is at fault."""


def is_unreadable(error: BaseException) -> bool:
    """Say whether an error lies in what a row contains, and not in the store."""
    if not isinstance(error, sqlite3.Error):
        return True
    # Text that is not UTF-8 is found by Python, not by SQLite: such an error has no code.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_TOOBIG) == sqlite3.SQLITE_TOOBIG


def fail_unreadable(transaction: Transaction, seq: int, error: BaseException) -> None:
    """Fail a pending job whose row cannot be read, so that it stands in the way of no other."""
    reason = str(error).encode("utf-8", "replace").decode().replace("\0", "?")[:500]
    failure = Failure("UnreadableJob", f"its row cannot be read: {reason}")
    named = {
        "seq": seq,
        "last_error": str(failure),
        "error": failed_attempt(failure, at=transaction.now),
        "now": transaction.now,
    }
    if transaction.execute(SQL.fail_unreadable, named).rowcount:
        log.error("job failed: its row cannot be read", extra={"seq": seq, "reason": reason})
        batches.advance(transaction)
