"""BullMQ under test: a prefix of its own for each store, on one server for all.

``ONWARD_TEST_BULLMQ=valkey`` takes Valkey instead of Redis.
"""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import count
from pathlib import Path

import redis

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.contract import Engine
from onward.engines.bullmq.capabilities import CAPABILITIES
from onward.engines.bullmq.engine import BullMQEngine
from onward.job import JobRef
from onward.lifecycle import JobStatus
from tests.conformance.cases import Caller, EngineCase, Store
from tests.servers.redis import Kind, redis_url

_numbers = count()
_KIND = Kind(os.environ.get("ONWARD_TEST_BULLMQ", "redis"))

SHORTEN_TTLS = """
local by = tonumber(ARGV[2])
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local left = redis.call('PTTL', key)
    -- Half a unit of the stretched clock: so much real time may have passed since the key was made.
    if left >= 0 and left - by < 500000 then
      redis.call('DEL', key)
    elseif left >= 0 then
      redis.call('PEXPIRE', key, string.format('%.0f', left - by))
    end
  end
until cursor == '0'
"""
"""Takes time off everything that ends by itself: Redis's own clock cannot be moved."""


class BullMQStore(Store):
    """A prefix of the test server."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.url = redis_url(_KIND)
        self.prefix = f"t{os.getpid()}-{next(_numbers)}"
        self.address = f"{self.prefix} {self.url}"
        self._client = redis.Redis.from_url(self.url, decode_responses=True)

    def bare(self) -> Engine:
        """See :class:`Store`."""
        prioritized = ("*",) if Feature.PRIORITY in self.needed else ()
        return BullMQEngine(self.url, prefix=self.prefix, prioritized=prioritized, clock=self.clock)

    async def advance(self, by: timedelta | float) -> None:
        """See :class:`Store`. Keys with an end are kept a million times longer, in real time, than the clock says."""
        await super().advance(by)
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        self._client.eval(SHORTEN_TTLS, 0, f"{self.prefix}:*", round(step / timedelta(milliseconds=1) * 1_000_000))

    async def force(self, ref: JobRef, state: JobStatus) -> None:
        """See :class:`Store`."""
        assert state is JobStatus.BLOCKED
        base = f"{self.prefix}:{ref.queue}:"
        assert self._client.lrem(f"{base}wait", 1, ref.id) + self._client.zrem(f"{base}prioritized", ref.id) == 1
        self._client.zadd(f"{base}waiting-children", {ref.id: 1})

    async def edit_by_hand(self, ref: JobRef) -> None:
        """See :class:`Store`."""
        self._client.hset(f"{self.prefix}:{ref.queue}:{ref.id}", "data", '{"by": "hand"}')

    def refuse_audit(self) -> None:
        """See :class:`Store`."""
        self._client.set(f"onward:{self.prefix}:audit", "something else")

    def new_caller(self) -> Caller:
        """See :class:`Store`."""
        raise NotImplementedError

    def new_stranger(self) -> Caller:
        """See :class:`Store`."""
        raise NotImplementedError

    async def close(self) -> None:
        """See :class:`Store`."""
        await super().close()
        for pattern in (f"{self.prefix}:*", f"onward:{self.prefix}:*"):
            keys = list(self._client.scan_iter(match=pattern, count=1000))
            for first in range(0, len(keys), 1000):
                self._client.delete(*keys[first : first + 1000])
        self._client.close()


def attach(address: str) -> CheckedEngine:
    """Make a handle on the store at an address."""
    prefix, url = address.split(" ", 1)
    return CheckedEngine(BullMQEngine(url, prefix=prefix))


BULLMQ: EngineCase = EngineCase(
    name="bullmq", make=BullMQStore, attach=attach, capable=lambda: CAPABILITIES, has_native_ids=False
)
