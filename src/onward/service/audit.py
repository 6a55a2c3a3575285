"""The audit log, to read. Records are written by what they are about."""

from __future__ import annotations

from onward.engine.access import AuditQuery
from onward.service.identity import Identity
from onward.service.operations import operation
from onward.service.store import Store, check_page
from onward.service.values import AuditPage


class Audit:
    """What was changed, and by whom (S5)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @operation("audit.list")
    async def list(
        self, identity: Identity, query: AuditQuery, *, cursor: str | None = None, limit: int = 50
    ) -> AuditPage:
        """List records, the newest first."""
        page = await (await self._store.engine()).audit(query, cursor=cursor, limit=check_page(limit))
        return AuditPage(items=page.items, next_cursor=page.next_cursor)
