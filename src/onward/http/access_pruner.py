"""Removes audit records that are no longer kept, ended sessions, and tokens long expired or revoked (S5)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from onward.errors import OnwardError
from onward.service.store import Store

log = logging.getLogger("onward.http.access")

_PERIOD: Final = 3600.0
"""Seconds between two prunes."""
_KEEP_SESSIONS: Final = timedelta(days=30)
"""How long ended sessions, and expired or revoked tokens, can still be looked up."""


class AccessPruner:
    """Prunes when the server starts, and every hour from then on. Several servers on one store do no harm."""

    def __init__(self, store: Store, *, keep_audit: timedelta) -> None:
        self._store = store
        self._keep_audit = keep_audit
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="onward-access-pruner")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.prune()
            except OnwardError as error:  # the next hour will do
                log.warning("audit records and sessions not pruned: %s", error)
            await asyncio.sleep(_PERIOD)

    async def prune(self) -> int:
        """Prune all that is due, and answer how much it was."""
        engine, total = await self._store.engine(), 0
        while removed := await engine.prune_access(keep_audit=self._keep_audit, keep_sessions=_KEEP_SESSIONS):
            total += removed
        return total
