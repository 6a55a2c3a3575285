"""Makes jobs of the events that a webhook wants.

One worker does so for each webhook, the one that holds its cursor; when it is gone, another goes on from there. An
event that is told twice, or relayed by two for a moment, makes one job: it is known by its key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol

from onward.engine.checked import CheckedEngine
from onward.errors import InvalidValue
from onward.events import AnyEvent
from onward.job import NewJob

log = logging.getLogger("onward.worker")

POLL_INTERVAL: Final = timedelta(seconds=1)
"""How often events are looked for, where there are few."""
_LEASE: Final = timedelta(seconds=30)
_RENEW_INTERVAL: Final = _LEASE.total_seconds() / 3
_BATCH_SIZE: Final = 500


class EventSubscription(Protocol):
    """What a relay must know of a webhook."""

    @property
    def name(self) -> str:
        """By which its cursor is known."""
        ...

    @property
    def queues(self) -> Sequence[str]:
        """Whose events it wants."""
        ...

    @property
    def event_types(self) -> frozenset[str]:
        """Which it wants."""
        ...

    def matches(self, event: AnyEvent) -> bool:
        """Say whether it wants one."""
        ...


class Relay:
    """Reads events from one webhook's cursor on."""

    def __init__(
        self,
        engine: CheckedEngine,
        webhook: EventSubscription,
        job_of: Callable[[str, AnyEvent], NewJob],
        *,
        holder: str,
    ) -> None:
        self._engine = engine
        self._webhook = webhook
        self._job_of = job_of
        self._holder = holder
        self._cursor: str | None = None
        """How far we have read, while we hold the cursor."""
        self._renew_at = 0.0

    async def step(self) -> float | None:
        """Relay what has come; say in how many seconds to look again, None: after a while."""
        cursor, webhook = await self._acquire(), self._webhook
        if cursor is None:
            return None
        try:
            page = await self._engine.read_events(
                webhook.queues, cursor=cursor, types=webhook.event_types, limit=_BATCH_SIZE
            )
        except InvalidValue:  # it was away for longer than the store keeps events
            log.exception("webhook events lost, continuing from now", extra={"webhook": webhook.name})
            self._cursor = await self._engine.acquire_cursor(webhook.name, self._holder, lease=_LEASE, anew=True)
            return 0
        jobs = [self._job_of(webhook.name, event) for event in page.events if webhook.matches(event)]
        if jobs:
            await self._engine.enqueue(jobs)
            if not await self._engine.commit_cursor(webhook.name, self._holder, page.cursor):
                self._cursor = None  # somebody else goes on from where it stood, and adds what we have added only once
                return None
        self._cursor = page.cursor
        return 0 if page.more else None

    async def release(self) -> None:
        """Leave the cursor to another at once."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None and await self._engine.commit_cursor(self._webhook.name, self._holder, cursor):
            await self._engine.acquire_cursor(self._webhook.name, self._holder, lease=timedelta(0))

    async def _acquire(self) -> str | None:
        """Say how far we have read, if the cursor is ours; what was read for nothing is noted now and then."""
        now, webhook = time.monotonic(), self._webhook
        if self._cursor is not None and now < self._renew_at:
            return self._cursor
        if self._cursor is not None and not await self._engine.commit_cursor(webhook.name, self._holder, self._cursor):
            self._cursor = None
        position = await self._engine.acquire_cursor(webhook.name, self._holder, lease=_LEASE)
        self._cursor = None if position is None else self._cursor or position
        self._renew_at = now + _RENEW_INTERVAL
        return self._cursor
