"""Tokens, sessions and audit records in tables of ours, the same on every engine that stands on PostgreSQL.

Each engine makes the tables by migrations of its own. A record is written in the transaction of the change that it is
about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from onward.clock import Clock, moment_of
from onward.engine.access import PRUNE_LIMIT, AccessSession, AccessToken, AuditQuery, AuditRecord, counted
from onward.engine.statements import Statements
from onward.engine.values import Page
from onward.errors import InvalidValue
from onward.job import Enqueued, JobRef
from onward.pg import arrays
from onward.pg.coalescing import AuditedJobs
from onward.pg.plan_runner import Plan, Row, Statement
from onward.pg.schema_name import insert_schema_name
from onward.validation import read_cursor

T = TypeVar("T")

_STATEMENTS: Final = Statements("onward.pg")


def rows_of(records: Sequence[AuditRecord]) -> str:
    """Write records as the JSON that ``sql/audit_add.sql`` reads."""
    return msgspec.json.encode(
        [
            (
                record.id,
                record.actor,
                record.role,
                record.action,
                record.target,
                record.filter,
                record.count,
                None if record.orgs is None else arrays.texts(record.orgs),
                record.request_id,
                record.detail,
            )
            for record in records
        ]
    ).decode()


def no_jobs() -> Plan[list[Enqueued]]:
    """Add no job: an audited enqueue of none has a record too."""
    yield from ()
    return []


class AccessTables:
    """Tokens, sessions and records of one schema, by its name."""

    def __init__(self, schema: str, *, clock: Clock | None = None, has_roles: bool = False) -> None:
        """Name the schema; nothing is read yet.

        Args:
            schema: its name.
            clock: for tests; the database's own unless given.
            has_roles: whether the schema has a role for the server, which may not delete records.
        """
        self._clock = clock
        self.has_roles = has_roles
        self._texts = {each: insert_schema_name(schema, getattr(_STATEMENTS, each)) for each in _STATEMENTS.names()}

    @property
    def _now(self) -> datetime | None:
        return None if self._clock is None else moment_of(self._clock.micros())

    # Audit

    def audited(self, plan: Plan[T], audit: AuditRecord | None, count: Callable[[T], int]) -> Plan[T]:
        """Add the writing of a record to a change. Whoever drives it does so in one transaction."""
        result = yield from plan
        if audit is not None:
            yield from self.record([counted(audit, count(result))])
        return result

    def audited_enqueue(self, plan: Plan[list[Enqueued]], audited_jobs: AuditedJobs) -> Plan[list[Enqueued]]:
        """Add the writing of the records to the enqueue of several calls."""
        answers = yield from plan
        yield from self.record(audited_jobs.counted(answers))
        return answers

    def record(self, records: Sequence[AuditRecord]) -> Plan[int]:
        """Write records, and answer how many of them are new."""
        return len((yield Statement(self._texts["audit_add"], [self._now, rows_of(records)])))

    def record_operation(self, operation: JobRef, record: AuditRecord) -> Plan[bool]:
        """Write the record of a change by filter as its job has it, with a count; answers whether it is new."""
        values = [operation.id, record.id, record.count, self._now]
        ((is_new,),) = yield Statement(self._texts["audit_add_operation"], values)
        return bool(is_new)

    def audit(self, query: AuditQuery, cursor: str | None, limit: int) -> Plan[Page[AuditRecord]]:
        """List records, the newest first."""
        conditions = {
            "no < {}::bigint": None if cursor is None else read_cursor(cursor),
            "actor = {}::text": query.actor,
            "action = {}::text": query.action,
            "target = {}::text": query.target,
            "at > {}::timestamptz": query.after,
            "at < {}::timestamptz": query.before,
        }
        given = [(condition, value) for condition, value in conditions.items() if value is not None]
        where = " and ".join(condition.format(f"${at}") for at, (condition, _) in enumerate(given, start=1)) or "true"
        text = f"{self._texts['audit']} where {where} order by no desc limit {limit + 1:d}"
        rows = yield Statement(text, [value for _, value in given])
        shown = rows[:limit]
        return Page(items=tuple(map(_record_of, shown)), next_cursor=str(shown[-1][0]) if len(rows) > limit else None)

    # Tokens

    def save_token(self, token: AccessToken) -> Plan[None]:
        """Add a token."""
        values = [
            token.id,
            token.name,
            token.digest,
            token.role,
            list(token.permissions),
            _list(token.queues),
            _list(token.orgs),
            token.created_at,
            token.created_by,
            token.expires_at,
            token.last_used_at,
            token.revoked_at,
        ]
        if not (yield Statement(self._texts["token_add"], values)):
            raise InvalidValue("id", token.id, "is the id of another token: make a new one")

    def tokens(self) -> Plan[list[AccessToken]]:
        """Read all tokens, the newest first."""
        return list(map(_token_of, (yield Statement(self._texts["tokens"]))))

    def find_token(self, token_id: str) -> Plan[AccessToken | None]:
        """Read a token."""
        rows = yield Statement(self._texts["token_find"], [token_id])
        return _token_of(rows[0]) if rows else None

    def revoke_token(self, token_id: str) -> Plan[bool]:
        """Make a token invalid and end its sessions."""
        rows = yield Statement(self._texts["token_revoke"], [self._now, token_id])
        return bool(rows and rows[0][0])

    def touch_token(self, token_id: str) -> Plan[None]:
        """Note that a token was used."""
        yield Statement(self._texts["token_touch"], [self._now, token_id])

    # Sessions

    def save_session(self, session: AccessSession) -> Plan[None]:
        """Add a session."""
        values = [session.digest, session.token_id, session.created_at, session.last_seen_at, session.expires_at]
        if not (yield Statement(self._texts["session_add"], values)):
            rule = "names no token that is valid, or the session exists already"
            raise InvalidValue("token_id", session.token_id, rule)

    def find_session(self, digest: str) -> Plan[tuple[AccessSession, AccessToken] | None]:
        """Read a session and its token."""
        rows = yield Statement(self._texts["session_find"], [digest])
        if not rows:
            return None
        row = rows[0]
        session = AccessSession(
            digest=row[0],
            token_id=row[1],
            created_at=row[2].astimezone(UTC),
            last_seen_at=row[3].astimezone(UTC),
            expires_at=row[4].astimezone(UTC),
        )
        return session, _token_of(row[5:])

    def touch_session(self, digest: str) -> Plan[None]:
        """Note that a session was used."""
        yield Statement(self._texts["session_touch"], [self._now, digest])

    def delete_session(self, digest: str) -> Plan[bool]:
        """End a session."""
        return bool((yield Statement(self._texts["session_delete"], [digest])))

    # Retention

    def prune(self, keep_audit: timedelta, keep_sessions: timedelta) -> Plan[int]:
        """Remove what is no longer kept, some at a time; answer how many rows."""
        now = self._now
        if self.has_roles and now is None:
            rows = yield Statement(self._texts["audit_prune_by_function"], [keep_audit, PRUNE_LIMIT])
        else:
            rows = yield Statement(self._texts["audit_prune"], [now, keep_audit, PRUNE_LIMIT])
        pruned: int = rows[0][0]
        ((ended,),) = yield Statement(self._texts["access_prune"], [now, keep_sessions, PRUNE_LIMIT])
        return pruned + int(ended)


class AccessVerbs:
    """The role ``AccessStore`` of an engine on PostgreSQL: every verb is a plan of its :class:`AccessTables`."""

    _access: AccessTables

    async def _drive(self, plan: Callable[[], Plan[T]], *, atomic: bool = False) -> T:
        """Drive a plan on a connection of the engine's own; ``atomic``: all of its statements, or none."""
        raise NotImplementedError

    async def _drive_audited(
        self, plan: Callable[[], Plan[T]], audit: AuditRecord | None, count: Callable[[T], int]
    ) -> T:
        """Drive a plan, and write its record in the same transaction."""
        if audit is None:
            return await self._drive(plan)
        return await self._drive(lambda: self._access.audited(plan(), audit, count), atomic=True)

    async def save_token(self, token: AccessToken, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        await self._drive_audited(lambda: self._access.save_token(token), audit, lambda _: 1)

    async def tokens(self) -> list[AccessToken]:
        """See the contract."""
        return await self._drive(self._access.tokens)

    async def find_token(self, token_id: str) -> AccessToken | None:
        """See the contract."""
        return await self._drive(lambda: self._access.find_token(token_id))

    async def revoke_token(self, token_id: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._drive_audited(lambda: self._access.revoke_token(token_id), audit, int)

    async def touch_token(self, token_id: str) -> None:
        """See the contract."""
        await self._drive(lambda: self._access.touch_token(token_id))

    async def save_session(self, session: AccessSession, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        await self._drive_audited(lambda: self._access.save_session(session), audit, lambda _: 1)

    async def find_session(self, digest: str) -> tuple[AccessSession, AccessToken] | None:
        """See the contract."""
        return await self._drive(lambda: self._access.find_session(digest))

    async def touch_session(self, digest: str) -> None:
        """See the contract."""
        await self._drive(lambda: self._access.touch_session(digest))

    async def delete_session(self, digest: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._drive_audited(lambda: self._access.delete_session(digest), audit, int)

    async def record_audit(self, record: AuditRecord, *, operation: JobRef | None = None) -> bool:
        """See the contract."""
        if operation is not None and self._access.has_roles:
            return await self._drive(lambda: self._access.record_operation(operation, record))
        return bool(await self._drive(lambda: self._access.record([record])))

    async def audit(self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50) -> Page[AuditRecord]:
        """See the contract."""
        return await self._drive(lambda: self._access.audit(query, cursor, limit))

    async def prune_access(self, *, keep_audit: timedelta, keep_sessions: timedelta) -> int:
        """See the contract."""
        return await self._drive(lambda: self._access.prune(keep_audit, keep_sessions))


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _moment(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


def _token_of(row: Row) -> AccessToken:
    return AccessToken(
        id=row[0],
        name=row[1],
        digest=row[2],
        role=row[3],
        permissions=tuple(row[4]),
        queues=_names(row[5]),
        orgs=_names(row[6]),
        created_at=row[7].astimezone(UTC),
        created_by=row[8],
        expires_at=_moment(row[9]),
        last_used_at=_moment(row[10]),
        revoked_at=_moment(row[11]),
    )


def _record_of(row: tuple[Any, ...]) -> AuditRecord:
    return AuditRecord(
        id=row[1],
        at=row[2].astimezone(UTC),
        actor=row[3],
        role=row[4],
        action=row[5],
        target=row[6],
        filter=row[7],
        count=row[8],
        orgs=_names(row[9]),
        request_id=row[10],
        detail=row[11],
    )
