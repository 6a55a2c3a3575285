"""Tells of new work, so that an idle worker is woken in a moment and none polls.

What others do is told by the markers that workers wait for (:mod:`.blocking_claim`); what this process itself does to a
queue it tells at once, unless somebody here waits for the marker of it with a pipelined claim.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from onward.engine.values import ClaimRequest, Claims, Signal, SignalKind
from onward.engines.bullmq.blocking_claim import BlockingClaim, Store
from onward.engines.bullmq.client_factory import Server
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.queue_registry import QueueRegistry
from onward.validation import matches

ClaimKey = tuple[str, tuple[str, ...]]
"""Who waits, and for which queues."""


class Listener:
    """The listener of one engine."""

    def __init__(self, server: Server, keys: Keys, registry: QueueRegistry, store: Store) -> None:
        self._server = server
        self._keys = keys
        self._registry = registry
        self._store = store
        self._lock = threading.Lock()
        self._subscriptions: dict[_Subscription, asyncio.AbstractEventLoop] = {}
        self._blocking_claims: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ClaimKey, BlockingClaim]] = (
            WeakKeyDictionary()
        )

    async def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        loop = asyncio.get_running_loop()
        subscription = _Subscription(queues)
        with self._lock:
            self._subscriptions[subscription] = loop
        try:
            while True:
                await subscription.changed.wait()
                for kind in subscription.drain():
                    yield Signal(kind)
        finally:
            with self._lock:
                del self._subscriptions[subscription]
                is_last = loop not in self._subscriptions.values()
            if is_last:
                await self.close()

    def blocking_claim_of(self, request: ClaimRequest) -> BlockingClaim | None:
        """Find where a worker waits for what it asks for."""
        return self._of_this_loop().get((request.worker_id, request.queues))

    def request_more(self, request: ClaimRequest, found: Claims, *, may_pipeline: bool) -> None:
        """Wait for more, since a claim has found less than was asked for.

        ``may_pipeline``: whoever asked does so again when told, so that a claim may be pipelined for it.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._subscriptions.values():
            return
        key = (request.worker_id if may_pipeline else "", request.queues)
        with self._lock:
            blocking_claims = self._blocking_claims.setdefault(loop, {})
            if (blocking_claim := blocking_claims.get(key)) is None:
                blocking_claim = blocking_claims[key] = BlockingClaim(
                    self._server,
                    self._keys,
                    self._registry,
                    self._store,
                    self._wake,
                    request.queues,
                    may_pipeline=may_pipeline,
                )
        blocking_claim.request_more(request, found)

    def notify(self, queues: Iterable[str], kind: SignalKind = SignalKind.WORK) -> None:
        """Wake whom it may concern in this process. From any thread."""
        if not self._subscriptions:
            return
        names = tuple(queues)
        if kind is not SignalKind.WORK or not all(map(self._has_reservation, names)):
            self._wake(names, kind)

    def _has_reservation(self, name: str) -> bool:
        """Say whether the server will have a job of a queue brought here."""
        with self._lock:
            return any(
                blocking_claim.reserved_slots and name in blocking_claim.queues
                for claims in self._blocking_claims.values()
                for blocking_claim in claims.values()
            )

    def _wake(self, names: tuple[str, ...], kind: SignalKind) -> None:
        with self._lock:
            subscriptions = list(self._subscriptions.items())
        here = _running_loop()
        for subscription, loop in subscriptions:
            if not subscription.is_for(names):
                continue
            if loop is here:
                subscription.notify(kind)
            else:
                with suppress(RuntimeError):  # that loop has closed
                    loop.call_soon_threadsafe(subscription.notify, kind)

    async def claim_now(self, name: str) -> None:
        """Have a queue looked at by those who wait here: what may be taken has changed, and no marker tells of it."""
        for blocking_claim in list(self._of_this_loop().values()):
            if name in blocking_claim.queues:
                await blocking_claim.claim_now()

    async def step_aside(self, names: set[str]) -> None:
        """Leave the next markers of queues to other workers: this process has just put jobs back for them."""
        for blocking_claim in list(self._of_this_loop().values()):
            if any(matches(pattern, name) for pattern in blocking_claim.queues for name in names):
                await blocking_claim.step_aside()

    async def deregister(self, worker_id: str) -> None:
        """Have nothing brought to a worker any more."""
        blocking_claims = self._of_this_loop()
        with self._lock:
            stopped = [blocking_claims.pop(key) for key in list(blocking_claims) if key[0] == worker_id]
        for blocking_claim in stopped:
            await blocking_claim.stop()

    async def close(self) -> None:
        """Wait for nothing any more, on this loop."""
        with self._lock:
            stopped = self._blocking_claims.pop(asyncio.get_running_loop(), {})
        for blocking_claim in stopped.values():
            await blocking_claim.stop()

    def _of_this_loop(self) -> dict[ClaimKey, BlockingClaim]:
        return self._blocking_claims.get(asyncio.get_running_loop(), {})


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Subscription:
    """One who listens."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.changed = asyncio.Event()
        self._queues = tuple(queues)
        self._kinds: dict[SignalKind, None] = {}

    def is_for(self, names: tuple[str, ...]) -> bool:
        """Say whether what happens in some queues may concern these."""
        if "*" in names or "*" in self._queues:
            return True
        return any(matches(pattern, name) for name in names for pattern in self._queues)

    def notify(self, kind: SignalKind) -> None:
        """Take a hint in, on the loop of who listens."""
        self._kinds[kind] = None
        self.changed.set()

    def drain(self) -> tuple[SignalKind, ...]:
        """Say of what kinds the burst was."""
        kinds, self._kinds = tuple(self._kinds), {}
        self.changed.clear()
        return kinds
