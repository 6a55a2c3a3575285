"""Keeps tokens, sessions and audit records. A record is written in the transaction of the change it is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

import msgspec

from onward.clock import MICROSECOND, micros_of, moment_of
from onward.engine.access import (
    MIN_AUDIT_RETENTION,
    PRUNE_LIMIT,
    TOUCH_INTERVAL,
    AccessSession,
    AccessToken,
    AuditQuery,
    AuditRecord,
    counted,
)
from onward.engine.values import Page
from onward.engines.sqlite.rows import json_text, moment
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.errors import InvalidValue
from onward.validation import read_cursor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_touch_interval: Final = TOUCH_INTERVAL // MICROSECOND
_decode = msgspec.json.decode


# Audit ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audited(Generic[*Ts, T]):
    """A change together with the writing of its audit record: both are committed, or neither is."""

    work: Callable[[Transaction, *Ts], T]
    audit: AuditRecord | None
    count: Callable[[T], int]
    """Counts what the change has changed."""

    def __call__(self, transaction: Transaction, *args: *Ts) -> T:
        """Make the change and write the record, if there is to be one."""
        result = self.work(transaction, *args)
        if self.audit is not None:
            record(transaction, [counted(self.audit, self.count(result))])
        return result


def record(transaction: Transaction, records: Sequence[AuditRecord]) -> int:
    """Write records, and answer how many of them are new."""
    rows = [
        (
            record.id,
            record.actor,
            record.role,
            record.action,
            record.target,
            record.filter,
            record.count,
            _list_text(record.orgs),
            record.request_id,
            record.detail,
        )
        for record in records
    ]
    return transaction.execute(SQL.audit_add, {"now": transaction.now, "rows": json_text(rows)}).rowcount


def audit(transaction: Transaction, query: AuditQuery, cursor: str | None, limit: int) -> Page[AuditRecord]:
    """List records, the newest first."""
    conditions = {
        "no < :cursor": None if cursor is None else read_cursor(cursor),
        "actor = :actor": query.actor,
        "action = :action": query.action,
        "target = :target": query.target,
        "at > :after": _micros(query.after),
        "at < :before": _micros(query.before),
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    rows = transaction.connection.execute(
        f"{SQL.audit} where {' and '.join(given) or 'true'} order by no desc limit :limit",
        {condition.partition(":")[2]: value for condition, value in given.items()} | {"limit": limit + 1},
    ).fetchall()
    shown = rows[:limit]
    return Page(items=tuple(map(_record_of, shown)), next_cursor=str(shown[-1][0]) if len(rows) > limit else None)


def _record_of(row: tuple[Any, ...]) -> AuditRecord:
    return AuditRecord(
        id=row[1],
        at=moment_of(row[2]),
        actor=row[3],
        role=row[4],
        action=row[5],
        target=row[6],
        filter=row[7],
        count=row[8],
        orgs=_list_of(row[9]),
        request_id=row[10],
        detail=row[11],
    )


# Tokens ---------------------------------------------------------------------------------------------------------------


def save_token(transaction: Transaction, token: AccessToken) -> None:
    """Add a token."""
    named = {
        "id": token.id,
        "name": token.name,
        "digest": token.digest,
        "role": token.role,
        "permissions": json_text(token.permissions),
        "queues": _list_text(token.queues),
        "orgs": _list_text(token.orgs),
        "created_at": micros_of(token.created_at),
        "created_by": token.created_by,
        "expires_at": _micros(token.expires_at),
        "last_used_at": _micros(token.last_used_at),
        "revoked_at": _micros(token.revoked_at),
    }
    if not transaction.execute(SQL.token_add, named).rowcount:
        raise InvalidValue("id", token.id, "is the id of another token: make a new one")


def tokens(transaction: Transaction, token_id: str | None = None) -> list[AccessToken]:
    """Read one token, or all, the newest first."""
    return list(map(_token_of, transaction.execute(SQL.tokens, {"id": token_id}).fetchall()))


def revoke_token(transaction: Transaction, token_id: str) -> bool:
    """Make a token invalid and end its sessions."""
    revoked = transaction.execute(SQL.token_revoke, {"id": token_id, "now": transaction.now}).fetchone()
    transaction.execute(SQL.session_delete_of_token, {"id": token_id})
    return revoked is not None and bool(revoked[0])


def token_needs_touch(transaction: Transaction, token_id: str) -> bool:
    """Whether a use of the token is to be noted. Most uses are not, and so take no write lock."""
    named = {"id": token_id, "before": transaction.now - _touch_interval}
    return bool(transaction.execute(SQL.token_needs_touch, named).fetchone()[0])


def touch_token(transaction: Transaction, token_id: str) -> None:
    """Note that a token was used."""
    named = {"id": token_id, "now": transaction.now, "before": transaction.now - _touch_interval}
    transaction.execute(SQL.token_touch, named)


def _token_of(row: tuple[Any, ...]) -> AccessToken:
    return AccessToken(
        id=row[0],
        name=row[1],
        digest=row[2],
        role=row[3],
        permissions=_list_of(row[4]) or (),
        queues=_list_of(row[5]),
        orgs=_list_of(row[6]),
        created_at=moment_of(row[7]),
        created_by=row[8],
        expires_at=moment(row[9]),
        last_used_at=moment(row[10]),
        revoked_at=moment(row[11]),
    )


# Sessions -------------------------------------------------------------------------------------------------------------


def save_session(transaction: Transaction, session: AccessSession) -> None:
    """Add a session."""
    named = {
        "digest": session.digest,
        "token_id": session.token_id,
        "created_at": micros_of(session.created_at),
        "last_seen_at": micros_of(session.last_seen_at),
        "expires_at": micros_of(session.expires_at),
    }
    if not transaction.execute(SQL.session_add, named).rowcount:
        raise InvalidValue("token_id", session.token_id, "names no token that is valid, or the session exists already")


def find_session(transaction: Transaction, digest: str) -> tuple[AccessSession, AccessToken] | None:
    """Read a session and its token."""
    row = transaction.execute(SQL.session_find, {"digest": digest}).fetchone()
    if row is None:
        return None
    session = AccessSession(
        digest=row[0],
        token_id=row[1],
        created_at=moment_of(row[2]),
        last_seen_at=moment_of(row[3]),
        expires_at=moment_of(row[4]),
    )
    return session, _token_of(row[5:])


def session_needs_touch(transaction: Transaction, digest: str) -> bool:
    """Whether a use of the session is to be noted."""
    named = {"digest": digest, "before": transaction.now - _touch_interval}
    return bool(transaction.execute(SQL.session_needs_touch, named).fetchone()[0])


def touch_session(transaction: Transaction, digest: str) -> None:
    """Note that a session was used."""
    named = {"digest": digest, "now": transaction.now, "before": transaction.now - _touch_interval}
    transaction.execute(SQL.session_touch, named)


def delete_session(transaction: Transaction, digest: str) -> bool:
    """End a session."""
    return bool(transaction.execute(SQL.session_delete, {"digest": digest}).rowcount)


# Retention ------------------------------------------------------------------------------------------------------------


def prune(transaction: Transaction, keep_audit: timedelta, keep_sessions: timedelta) -> int:
    """Remove what is no longer kept, some at a time; answer how many rows."""
    audit_before = transaction.now - max(keep_audit, MIN_AUDIT_RETENTION) // MICROSECOND  # S5
    ended_before = {"before": transaction.now - keep_sessions // MICROSECOND, "limit": PRUNE_LIMIT}
    pruned = transaction.execute(SQL.audit_prune, {"before": audit_before, "limit": PRUNE_LIMIT}).rowcount
    pruned += transaction.execute(SQL.token_prune, ended_before).rowcount
    return pruned + transaction.execute(SQL.session_prune, ended_before).rowcount


def _micros(at: datetime | None) -> int | None:
    return None if at is None else micros_of(at)


def _list_text(names: Sequence[str] | None) -> str | None:
    return None if names is None else json_text(names)


def _list_of(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(_decode(text))
