"""Refuses the verbs of AccessStore on engines that do not have them yet. To be removed with the last of them."""

from __future__ import annotations

from datetime import timedelta

from onward.engine.access import AccessSession, AccessToken, AuditQuery, AuditRecord
from onward.engine.values import Page


class AccessToCome:
    """An engine that keeps neither tokens nor records yet."""

    async def save_token(self, token: AccessToken, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        raise NotImplementedError

    async def tokens(self) -> list[AccessToken]:
        """See the contract."""
        raise NotImplementedError

    async def find_token(self, token_id: str) -> AccessToken | None:
        """See the contract."""
        raise NotImplementedError

    async def revoke_token(self, token_id: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        raise NotImplementedError

    async def touch_token(self, token_id: str) -> None:
        """See the contract."""
        raise NotImplementedError

    async def save_session(self, session: AccessSession, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        raise NotImplementedError

    async def find_session(self, digest: str) -> tuple[AccessSession, AccessToken] | None:
        """See the contract."""
        raise NotImplementedError

    async def touch_session(self, digest: str) -> None:
        """See the contract."""
        raise NotImplementedError

    async def delete_session(self, digest: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        raise NotImplementedError

    async def record_audit(self, record: AuditRecord) -> bool:
        """See the contract."""
        raise NotImplementedError

    async def audit(self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50) -> Page[AuditRecord]:
        """See the contract."""
        raise NotImplementedError

    async def prune_access(self, *, keep_audit: timedelta, keep_sessions: timedelta) -> int:
        """See the contract."""
        raise NotImplementedError


def refuse_audit(engine: str) -> None:
    """Refuse a record that would not be written."""
    if engine != "SQLite":
        message = f"{engine} does not write audit records yet"
        raise NotImplementedError(message)
