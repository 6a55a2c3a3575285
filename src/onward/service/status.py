"""How the store and its workers are: usage, metrics, capabilities, health, doctor, tick."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from onward.errors import InvalidValue, OnwardError
from onward.metering import Bucket, UsageBy, UsageQuery
from onward.service.doctor import MAX_WAIT, Finding, Level, examine
from onward.service.identity import Identity
from onward.service.operations import operation
from onward.service.scopes import sees_queue
from onward.service.snapshot import take_snapshot
from onward.service.store import Store, record
from onward.service.values import CapabilitiesView, UsageRows, capabilities_view
from onward.validation import one_of

if TYPE_CHECKING:
    from onward.worker.one_shot import TickReport

_READY_FOR: Final = 1.0
"""Seconds that an answer of the store to a probe holds."""
_PROBE_TIMEOUT: Final = 5.0
MAX_TICK: Final = 300.0
"""Seconds that a tick may take."""
MAX_TICK_JOBS: Final = 10_000


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the store answers."""

    ok: bool


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor has found."""

    ok: bool
    findings: tuple[Finding, ...]


class Status:
    """How the store is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._probed: tuple[float, bool] = (-_READY_FOR, False)
        self._probing = asyncio.Lock()

    @operation("capabilities.read")
    async def capabilities(self, identity: Identity) -> CapabilitiesView:
        """Read what the store can do."""
        return capabilities_view(self._store.core.capabilities)

    @operation("health.read")
    async def health(self, identity: Identity) -> Health:
        """Read whether the store answers."""
        return Health(ok=await self.is_ready())

    @operation("usage.read")
    async def usage(
        self,
        identity: Identity,
        *,
        bucket: str = "day",
        by: Iterable[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        org_id: str | None = None,
        queue: str | None = None,
        type: str | None = None,
    ) -> UsageRows:
        """Sum up runs; for a limited caller by organisation and queue, of those in its scope."""
        asked = frozenset(one_of("by", UsageBy, word) for word in by)
        scope, limited = identity.scope, set[UsageBy]()
        if scope.orgs is not None:
            limited.add(UsageBy.ORG)
        if scope.queues is not None:
            limited.add(UsageBy.QUEUE)
        query = UsageQuery(
            bucket=one_of("bucket", Bucket, bucket),
            by=asked | limited,
            since=since,
            until=until,
            org_id=org_id,
            queue=queue,
            type=type,
        )
        found = await (await self._store.engine()).usage(query)
        return UsageRows(
            items=tuple(
                row
                for row in found
                if (scope.orgs is None or row.org_id in scope.orgs)
                and (scope.queues is None or (row.queue is not None and sees_queue(identity, row.queue)))
            )
        )

    @operation("metrics.read")
    async def metrics(self, identity: Identity) -> str:
        """Write metrics in Prometheus's text format."""
        return await self._store.app.metrics()

    @operation("doctor.read")
    async def doctor(self, identity: Identity) -> Diagnosis:
        """Look for problems, and say what to do about them."""
        snapshot = await take_snapshot(self._store.app, with_types=True)
        found = tuple(examine(snapshot, self._store.core.capabilities, max_wait=MAX_WAIT))
        return Diagnosis(ok=not any(one.level is Level.PROBLEM for one in found), findings=found)

    @operation("tick.run")
    async def tick(self, identity: Identity, *, limit: int = 100, timeout: float = 25.0) -> TickReport:
        """Do by one call what a worker does all the time (H7), within a time."""
        if not 1 <= limit <= MAX_TICK_JOBS:
            raise InvalidValue("limit", limit, f"must be between 1 and {MAX_TICK_JOBS}")
        if not 0 < timeout <= MAX_TICK:
            raise InvalidValue("timeout", timeout, f"must be more than 0 and at most {MAX_TICK:g} seconds")
        await (await self._store.engine()).record_audit(record(identity, "tick.run"))
        return await self._store.app.tick(limit, timeout=timeout)

    async def is_ready(self) -> bool:
        """Whether the store answers. Probes cost it one question a second, however many there are."""
        async with self._probing:
            at, answer = self._probed
            if time.monotonic() - at < _READY_FOR:
                return answer
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT):
                    await (await self._store.engine()).check()
                answer = True
            except (OnwardError, TimeoutError):
                answer = False
            self._probed = time.monotonic(), answer
            return answer
