"""Keeps tokens, sessions and audit records in keys of our own: a record is written before the change it is about (S5).

A token or session is one JSON text that never changes; when it was used, and when it was revoked, is beside it. The
number of jobs that a change has reached is beside its record too, once it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

import msgspec

from onward.clock import micros_of, moment_of
from onward.engine.access import (
    MIN_AUDIT_RETENTION,
    PRUNE_LIMIT,
    AccessSession,
    AccessToken,
    AuditQuery,
    AuditRecord,
)
from onward.engine.values import Page
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Atomic, Command, Plan, script
from onward.errors import InvalidValue
from onward.validation import read_cursor

_MAX_READ: Final = 500
"""Records that are read at a time."""

_encode = msgspec.json.encode
_token_decoder = msgspec.json.Decoder(AccessToken)
_session_decoder = msgspec.json.Decoder(AccessSession)
_record_decoder = msgspec.json.Decoder(AuditRecord)


# Audit ----------------------------------------------------------------------------------------------------------------


def record(keys: Keys, record: AuditRecord) -> Plan[bool]:
    """Write a record, and answer whether it is new."""
    (answers,) = yield [
        script(
            "audit_add",
            keys,
            [keys.audit, keys.audit_records, keys.audit_number],
            record.id,
            _encode(record).decode(),
        )
    ]
    return bool(answers[0])


def set_count(keys: Keys, record_id: str, count: int) -> Plan[None]:
    """Note how many a change has reached, behind its record."""
    yield [("HSETNX", keys.audit_counts, record_id, count)]


def audit(keys: Keys, query: AuditQuery, cursor: str | None, limit: int) -> Plan[Page[AuditRecord]]:
    """List records, the newest first."""
    highest = "+inf" if cursor is None else f"({read_cursor(cursor)}"
    found: list[tuple[int, AuditRecord]] = []
    while len(found) <= limit:
        (answer,) = yield [
            script("audit_read", keys, [keys.audit, keys.audit_records, keys.audit_counts], highest, str(_MAX_READ))
        ]
        read = [(int(answer[at]), _record_of(answer[at + 1], answer[at + 2])) for at in range(0, len(answer), 3)]
        found += [(number, record) for number, record in read if _matches(query, record)]
        if not read:
            break
        highest = f"({read[-1][0]}"
    shown = found[:limit]
    return Page(
        items=tuple(record for _, record in shown),
        next_cursor=str(shown[-1][0]) if len(found) > limit else None,
    )


def _record_of(text: str, count: str) -> AuditRecord:
    at, _, encoded = text.partition(":")
    record = msgspec.structs.replace(_record_decoder.decode(encoded), at=moment_of(int(at)))
    return msgspec.structs.replace(record, count=int(count)) if count else record


def _matches(query: AuditQuery, record: AuditRecord) -> bool:
    return (
        (query.actor is None or record.actor == query.actor)
        and (query.action is None or record.action == query.action)
        and (query.target is None or record.target == query.target)
        and (record.at is not None)
        and (query.after is None or record.at > query.after)
        and (query.before is None or record.at < query.before)
    )


# Tokens ---------------------------------------------------------------------------------------------------------------


def save_token(keys: Keys, token: AccessToken) -> Plan[None]:
    """Add a token."""
    (is_new,) = yield [("HSETNX", keys.tokens, token.id, _encode(token).decode())]
    if not is_new:
        raise InvalidValue("id", token.id, "is the id of another token: make a new one")


def tokens(keys: Keys) -> Plan[list[AccessToken]]:
    """Read all tokens, the newest first."""
    (ids,) = yield [("HKEYS", keys.tokens)]
    if not ids:
        return []
    found = yield [("HMGET", key, *ids) for key in (keys.tokens, keys.tokens_used, keys.tokens_revoked)]
    read = [_token_of(*columns) for columns in zip(*found, strict=True) if columns[0] is not None]
    return sorted(read, key=lambda token: (token.created_at, token.id), reverse=True)


def find_token(keys: Keys, token_id: str) -> Plan[AccessToken | None]:
    """Read a token."""
    text, used, revoked = yield [
        ("HGET", key, token_id) for key in (keys.tokens, keys.tokens_used, keys.tokens_revoked)
    ]
    return None if text is None else _token_of(text, used, revoked)


def revoke_token(keys: Keys, token_id: str) -> Plan[bool]:
    """Make a token invalid and end its sessions."""
    names = [keys.tokens, keys.tokens_revoked, keys.sessions, keys.sessions_seen, keys.sessions_of(token_id)]
    text, (is_new, now) = yield [("HGET", keys.tokens, token_id), script("token_revoke", keys, names, token_id)]
    if text is None or not is_new:
        return False
    expires_at = _token_decoder.decode(text).expires_at
    return expires_at is None or expires_at > moment_of(int(now))


def touch_token(keys: Keys, token_id: str) -> Plan[None]:
    """Note that a token was used."""
    yield [script("access_touch", keys, [keys.tokens, keys.tokens_used], token_id)]


def _token_of(text: str, used: str | None, revoked: str | None) -> AccessToken:
    token = _token_decoder.decode(text)
    return msgspec.structs.replace(
        token,
        last_used_at=_moment(used) or token.last_used_at,
        revoked_at=_moment(revoked) or token.revoked_at,
    )


def _moment(micros: str | None) -> datetime | None:
    return moment_of(int(micros)) if micros else None


# Sessions -------------------------------------------------------------------------------------------------------------


def save_session(keys: Keys, session: AccessSession) -> Plan[None]:
    """Add a session."""
    token_id = session.token_id
    names = [keys.tokens, keys.tokens_revoked, keys.sessions, keys.sessions_seen, keys.sessions_of(token_id)]
    values = token_id, session.digest, _encode(session).decode(), micros_of(session.last_seen_at)
    (is_added,) = yield [script("session_add", keys, names, *values)]
    if not is_added:
        raise InvalidValue("token_id", token_id, "names no token that is valid, or the session exists already")


def find_session(keys: Keys, digest: str) -> Plan[tuple[AccessSession, AccessToken] | None]:
    """Read a session and its token."""
    names = [keys.tokens, keys.tokens_used, keys.tokens_revoked, keys.sessions, keys.sessions_seen]
    (answer,) = yield [script("session_find", keys, names, digest)]
    if not answer:
        return None
    text, seen, *token = answer
    session = msgspec.structs.replace(_session_decoder.decode(text), last_seen_at=moment_of(int(seen)))
    return session, _token_of(*token)


def touch_session(keys: Keys, digest: str) -> Plan[None]:
    """Note that a session was used."""
    yield [script("access_touch", keys, [keys.sessions, keys.sessions_seen], digest)]


def delete_session(keys: Keys, digest: str) -> Plan[bool]:
    """End a session."""
    (is_deleted,) = yield [script("session_delete", keys, [keys.sessions, keys.sessions_seen], digest)]
    return bool(is_deleted)


# Retention ------------------------------------------------------------------------------------------------------------


def prune(keys: Keys, keep_audit: timedelta, keep_sessions: timedelta) -> Plan[int]:
    """Remove what is no longer kept, some at a time; answer how many."""
    now, ids = yield [
        script("server_time", keys, [keys.workers]),
        ("ZRANGE", keys.audit, 0, PRUNE_LIMIT - 1),
    ]
    moment = moment_of(int(now))
    pruned = yield from _prune_audit(keys, ids, moment - max(keep_audit, MIN_AUDIT_RETENTION))  # S5
    before = moment - keep_sessions
    ended = [token.id for token in (yield from tokens(keys)) if _ended_before(token, before)][:PRUNE_LIMIT]
    names = [keys.tokens, keys.tokens_used, keys.tokens_revoked, keys.sessions, keys.sessions_seen]
    for token_id in ended:
        (removed,) = yield [script("token_remove", keys, [*names, keys.sessions_of(token_id)], token_id)]
        pruned += int(removed)
    (texts,) = yield [("HVALS", keys.sessions)]
    sessions = [_session_decoder.decode(text[36:]) for text in texts]
    for session in [session for session in sessions if session.expires_at <= before][:PRUNE_LIMIT]:
        pruned += yield from delete_session(keys, session.digest)
    return pruned


def _prune_audit(keys: Keys, ids: Sequence[str], before: datetime) -> Plan[int]:
    if not ids:
        return 0
    (texts,) = yield [("HMGET", keys.audit_records, *ids)]
    at = [0 if text is None else int(text.partition(":")[0]) for text in texts]
    old = [id for id, _ in takewhile(lambda each: each[1] < micros_of(before), zip(ids, at, strict=True))]
    if old:
        removal: list[Command] = [
            ("ZREM", keys.audit, *old),
            ("HDEL", keys.audit_records, *old),
            ("HDEL", keys.audit_counts, *old),
        ]
        yield Atomic(removal)
    return len(old)


def _ended_before(token: AccessToken, before: datetime) -> bool:
    ends = (token.revoked_at, token.expires_at)
    return any(end is not None and end <= before for end in ends)
