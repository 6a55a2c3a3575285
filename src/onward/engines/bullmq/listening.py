"""Tells of new work, by BullMQ's markers, so that an idle worker is woken in a moment and none polls.

Whoever makes a job ready puts a marker into its queue's ``marker`` set; an idle worker waits for one (BZPOPMIN) and
takes it, and so exactly one is woken, here or in Node. To take a marker is a promise to look for work. So an engine
waits for markers only of queues in which a claim of its own has just found too little: a busy worker, or a program that
only waits for results, takes none from those who are idle. What this process itself does to a queue it tells at once.

States: *fed* (no claim has come back hungry: waits for nothing), *hungry* (waits for the markers of the queues asked
for), *deaf* (the server is away: tries again, while workers poll).
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis.exceptions import RedisError

from onward.engine.values import Claims, Signal, SignalKind
from onward.engines.bullmq.commands import Asked, Plan, aexecute
from onward.engines.bullmq.layout import Layout
from onward.engines.bullmq.naming import Names, is_pattern
from onward.engines.bullmq.server import Server
from onward.errors import OnwardError
from onward.rules import matches

log = logging.getLogger("onward.engines.bullmq")

_WAIT: Final = 5
"""Seconds that the server sits on one question: as long as BullMQ's own workers wait."""
REST: Final = 5.0
"""Seconds for which a claim that has found nothing is not made again, while markers are waited for: as long as BullMQ's
own workers trust them."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
"""Seconds between tries to reach a server that is away."""


Ask = Callable[[Plan[list[str]]], Awaitable[list[str]]]


class Listener:
    """The ears of one engine."""

    def __init__(self, server: Server, layout: Layout, names: Names, ask: Ask) -> None:
        self._server = server
        self._layout = layout
        self._names = names
        self._ask = ask
        self._lock = threading.Lock()
        self.heard = 0
        """How often something was told."""
        self._ears: dict[_Ear, asyncio.AbstractEventLoop] = {}
        self._waits: WeakKeyDictionary[asyncio.AbstractEventLoop, _Wait] = WeakKeyDictionary()

    async def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """Yield a hint for each burst of changes, until closed."""
        loop = asyncio.get_running_loop()
        ear = _Ear(queues)
        with self._lock:
            self._ears[ear] = loop
            wait = self._waits.get(loop)
            if wait is None:
                wait = self._waits[loop] = _Wait()
        wait.ears += 1
        if wait.task is None:
            wait.task = asyncio.create_task(self._run(wait), name="onward-bullmq-listener")
        try:
            while True:
                await ear.told.wait()
                for kind in ear.take():
                    yield Signal(kind)
        finally:
            with self._lock:
                self._ears.pop(ear, None)
            wait.ears -= 1
            if not wait.ears and wait.task is not None:
                task, wait.task = wait.task, None
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def is_resting(self, queues: tuple[str, ...]) -> bool:
        """Say whether a claim would find nothing, as far as markers tell. On the loop of the claim."""
        wait = self._waits.get(asyncio.get_running_loop())
        return wait is not None and queues in wait.asked_for and monotonic() < wait.rests.get(queues, 0.0)

    def hunger(self, patterns: tuple[str, ...], found: Claims, heard: int) -> None:
        """Note that a claim has found too little in these queues, and what was heard before. On its loop."""
        wait = self._waits.get(asyncio.get_running_loop())
        if wait is None:
            with self._lock:
                wait = self._waits[asyncio.get_running_loop()] = _Wait()
        if patterns not in wait.hungry:
            wait.hungry[patterns] = None
            wait.changed.set()
        # What was told while the claim was under way may have come too late for it; and a pattern may mean queues that
        # are made meanwhile, whose markers nobody waits for.
        if heard == self.heard and not found.claims and not any(map(is_pattern, patterns)):
            wait.rests[patterns] = monotonic() + (REST if found.again_in is None else min(REST, found.again_in))

    def tell(self, queues: Iterable[str], kind: SignalKind = SignalKind.WORK) -> None:
        """Wake whom it may concern in this process. From any thread."""
        with self._lock:
            self.heard += 1
            for wait in self._waits.values():
                wait.rests.clear()
        if not self._ears:
            return
        names = tuple(queues)
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

    async def close(self) -> None:
        """Wait for nothing any more, on this loop."""
        wait = self._waits.pop(asyncio.get_running_loop(), None)
        if wait is not None and wait.task is not None:
            task, wait.task = wait.task, None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self, wait: _Wait) -> None:
        pause = _FIRST_PAUSE
        while True:
            asked = self._server.asked(most=1, waits=_WAIT)
            try:
                await self._wait_on(asked, wait)
            except (RedisError, OSError, OnwardError) as error:
                log.warning("cannot listen to %s, workers poll meanwhile: %s", self._server, error)
            finally:
                with suppress(RedisError, OSError):
                    await asked.close()
            self.tell(("*",), SignalKind.CHANGED)
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - jitter
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _wait_on(self, asked: Asked, wait: _Wait) -> None:
        while True:
            wait.changed.clear()
            patterns = tuple(wait.hungry)
            queues = await self._queues(patterns)
            if not queues:
                # None to wait for: until a claim is hungry, or such a queue is made.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WAIT if patterns else None):
                        await wait.changed.wait()
                continue
            markers = [f"{self._layout.base(name)}marker" for name in queues]
            wait.asked_for = frozenset(patterns)
            try:
                popped = await self._pop(asked, markers, wait)
            finally:
                wait.asked_for = frozenset()
            if popped is not None:
                name = popped[0][len(self._layout.root) : -len(":marker")]
                for some in [some for some in wait.hungry if any(matches(pattern, name) for pattern in some)]:
                    del wait.hungry[some]
                self.tell((name,))

    async def _queues(self, patterns: tuple[tuple[str, ...], ...]) -> list[str]:
        asked = tuple(dict.fromkeys(pattern for some in patterns for pattern in some))
        return [] if not asked else await self._ask(self._names.matching(asked))

    async def _pop(self, asked: Asked, markers: list[str], wait: _Wait) -> Any:
        """Wait for a marker; None: there was none, or there is something else to wait for."""
        asking = asyncio.ensure_future(aexecute(asked, [("BZPOPMIN", *markers, _WAIT)]))
        asking.add_done_callback(lambda _: wait.changed.set())
        try:
            await wait.changed.wait()
            return asking.result()[0] if asking.done() else None
        finally:
            if not asking.done():
                asking.cancel()
                await asked.close()  # and so goes what the server would have popped for us
                with suppress(asyncio.CancelledError, RedisError, OSError):
                    await asking


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Wait:
    """What one event loop waits for."""

    def __init__(self) -> None:
        self.hungry: dict[tuple[str, ...], None] = {}
        self.changed = asyncio.Event()
        self.asked_for: frozenset[tuple[str, ...]] = frozenset()
        """What the server has been asked to tell of."""
        self.rests: dict[tuple[str, ...], float] = {}
        """Until when nothing is expected, unless it is told of."""
        self.ears = 0
        self.task: asyncio.Task[None] | None = None


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
