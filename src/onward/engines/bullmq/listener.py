"""Tells of new work, so that an idle worker is woken in a moment and none polls.

What others do is told by the markers that workers wait for (:mod:`.waiting`); what this process itself does to a queue
it tells at once, unless somebody here waits for the marker of it with a claim that stands.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from onward.engine.values import ClaimRequest, Claims, Signal, SignalKind
from onward.engines.bullmq.blocking_claim import Store, Wait
from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.queue_registry import Names
from onward.engines.bullmq.server import Server
from onward.validation import matches

Key = tuple[str, tuple[str, ...]]
"""Who waits, and for which queues."""


class Listener:
    """The ears of one engine."""

    def __init__(self, server: Server, layout: Layout, names: Names, store: Store) -> None:
        self._server = server
        self._layout = layout
        self._names = names
        self._store = store
        self._lock = threading.Lock()
        self._ears: dict[_Ear, asyncio.AbstractEventLoop] = {}
        self._waits: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, Wait]] = WeakKeyDictionary()

    async def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        loop = asyncio.get_running_loop()
        ear = _Ear(queues)
        with self._lock:
            self._ears[ear] = loop
        try:
            while True:
                await ear.told.wait()
                for kind in ear.take():
                    yield Signal(kind)
        finally:
            with self._lock:
                del self._ears[ear]
                is_last = loop not in self._ears.values()
            if is_last:
                await self.close()

    def wait_of(self, request: ClaimRequest) -> Wait | None:
        """Find where a worker waits for what it asks for."""
        return self._here().get((request.worker_id, request.queues))

    def hunger(self, request: ClaimRequest, found: Claims, *, comes_again: bool) -> None:
        """Wait for more, since a claim has found less than was asked for.

        ``comes_again``: whoever asked does so again when told, so that a claim may stand for it.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._ears.values():
            return
        key = (request.worker_id if comes_again else "", request.queues)
        with self._lock:
            waits = self._waits.setdefault(loop, {})
            if (wait := waits.get(key)) is None:
                wait = waits[key] = Wait(
                    self._server,
                    self._layout,
                    self._names,
                    self._store,
                    self._wake,
                    request.queues,
                    may_stand=comes_again,
                )
        wait.hunger(request, found)

    def tell(self, queues: Iterable[str], kind: SignalKind = SignalKind.WORK) -> None:
        """Wake whom it may concern in this process. From any thread."""
        if not self._ears:
            return
        names = tuple(queues)
        if kind is not SignalKind.WORK or not all(map(self._is_promised, names)):
            self._wake(names, kind)

    def _is_promised(self, name: str) -> bool:
        """Say whether the server will have a job of a queue brought here."""
        with self._lock:
            return any(wait.promised and name in wait.queues for of in self._waits.values() for wait in of.values())

    def _wake(self, names: tuple[str, ...], kind: SignalKind) -> None:
        with self._lock:
            ears = list(self._ears.items())
        here = _running_loop()
        for ear, loop in ears:
            if not ear.wants(names):
                continue
            if loop is here:
                ear.hear(kind)
            else:
                with suppress(RuntimeError):  # that loop has closed
                    loop.call_soon_threadsafe(ear.hear, kind)

    async def look_now(self, name: str) -> None:
        """Have a queue looked at by those who wait here: what may be taken has changed, and no marker tells of it."""
        for wait in list(self._here().values()):
            if name in wait.queues:
                await wait.look_now()

    async def deregister(self, worker_id: str) -> None:
        """Have nothing brought to a worker any more."""
        waits = self._here()
        with self._lock:
            gone = [waits.pop(key) for key in list(waits) if key[0] == worker_id]
        for wait in gone:
            await wait.stop()

    async def close(self) -> None:
        """Wait for nothing any more, on this loop."""
        with self._lock:
            gone = self._waits.pop(asyncio.get_running_loop(), {})
        for wait in gone.values():
            await wait.stop()

    def _here(self) -> dict[Key, Wait]:
        return self._waits.get(asyncio.get_running_loop(), {})


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Ear:
    """One who listens."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.told = asyncio.Event()
        self._queues = tuple(queues)
        self._kinds: dict[SignalKind, None] = {}

    def wants(self, names: tuple[str, ...]) -> bool:
        """Say whether what happens in some queues may concern these."""
        if "*" in names or "*" in self._queues:
            return True
        return any(matches(pattern, name) for name in names for pattern in self._queues)

    def hear(self, kind: SignalKind) -> None:
        """Take a hint in, on the loop of who listens."""
        self._kinds[kind] = None
        self.told.set()

    def take(self) -> tuple[SignalKind, ...]:
        """Say of what kinds the burst was."""
        kinds, self._kinds = tuple(self._kinds), {}
        self.told.clear()
        return kinds
