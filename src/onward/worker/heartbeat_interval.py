"""Beats often enough for the shortest lease of what is held.

A queue may set how long a silent worker keeps its jobs, and a claim does not carry that. So the queues of jobs that
have been held for a moment are looked up, once a minute each; jobs that end sooner need no beat at all. A job that sets
it for itself (pg-boss's heartbeatSeconds) carries it in its claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from onward.engine.contract import Reader
from onward.worker.heartbeat import HEARTBEATS_PER_LEASE
from onward.worker.inflight import Inflight

CHECK_INTERVAL: Final = timedelta(seconds=0.25)
"""Between two looks, and how long a job must have been held: the shortest lease allowed is a second."""
_CACHE_SECONDS: Final = 60.0
"""Seconds after which a queue is looked up again: its lease may have been changed."""
_MAX_LOOKUPS: Final = 5
"""Queues looked up in one step: many that are new at once must not keep the store busy."""


class QueueLeases:
    """Learns the leases of queues, and sets the heartbeat by them."""

    def __init__(
        self, engine: Reader, inflight: Inflight, *, lease: timedelta, set_interval: Callable[[float], None]
    ) -> None:
        self._engine = engine
        self._inflight = inflight
        self._lease = lease.total_seconds()
        self._set_interval = set_interval
        self._cache: dict[str, tuple[float, float]] = {}
        """By queue: its lease, and until when to believe it."""

    async def step(self) -> None:
        """Look up what is not known, and set the heartbeat."""
        now = asyncio.get_running_loop().time()
        claims = self._inflight.held_before(now - CHECK_INTERVAL.total_seconds())
        held = {claim.ref.queue for claim in claims}
        uncached = [queue for queue in held if queue not in self._cache or self._cache[queue][1] < now]
        for queue in uncached[:_MAX_LOOKUPS]:
            self._cache[queue] = (await self._lease_of(queue), now + _CACHE_SECONDS)
        for queue in self._cache.keys() - held:
            if self._cache[queue][1] < now:
                del self._cache[queue]
        leases = [self._cache[queue][0] for queue in held if queue in self._cache]
        leases += [claim.heartbeat_within for claim in claims if claim.heartbeat_within is not None]
        self._set_interval(min([self._lease, *leases]) / HEARTBEATS_PER_LEASE)

    async def _lease_of(self, queue: str) -> float:
        for info in await self._engine.queues(queue):
            if info.name == queue and info.settings.lease is not None:
                return info.settings.lease.total_seconds()
        return self._lease
