"""Waits at the server for work, by BullMQ's markers, and has it brought.

Whoever makes a job ready puts a marker into its queue's ``marker`` set; an idle worker waits for one (BZPOPMIN) and
takes it, and so exactly one is woken, here or in Node. To take a marker is a promise to look for work. So only those
wait whose claim has just found too little: a busy worker, or a program that only waits for results, takes no marker
from those who are idle.

A worker's claim *stands* right behind its wait, in the same write: the server claims as it wakes the line, and the jobs
come with the marker, a round trip sooner. The slots that it may fill are promised to it, and the worker asks for the
others only; what it brings is handed over at the worker's next exchange, and goes back if none comes. It takes nothing
from a limited queue, whose jobs must start as soon as they are taken. No claim stands where a job comes due before the
wait would end, where queues are named by a pattern, which may mean others meanwhile, nor where a test moves the clock.

States: *fed* (no claim has come back hungry: waits for nothing), *hungry* (waits at the server), *deaf* (the server is
away: tries again, while workers poll).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace
from redis.exceptions import RedisError

from onward.engine.values import ClaimRequest, Claims, SignalKind
from onward.engines.bullmq.commands import Asked, Command, Plan, aexecute
from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.queue_registry import Names, is_pattern
from onward.engines.bullmq.server import Server
from onward.errors import OnwardError

log = logging.getLogger("onward.engines.bullmq")

T = TypeVar("T")

_WAIT: Final = 5.0
"""Seconds that the server sits on one question: as long as BullMQ's own workers wait."""
_MARGIN: Final = 1.0
"""Seconds by which the server may be late to end a wait."""
_KEPT: Final = 0.25
"""Seconds for which what was brought is kept for a worker that does not ask: it stops, or was held up."""
_LAST_ANSWER: Final = 1.0
"""Seconds in which a line that is let go of should have its answer."""
_MARKER: Final = "marker"
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
"""Seconds between tries to reach a server that is away."""

Tell = Callable[[tuple[str, ...], SignalKind], None]


class Store(Protocol):
    """What a wait asks of its engine."""

    def ask(self, plan: Plan[T]) -> Awaitable[T]:
        """Drive a plan on the event loop's own lines."""
        ...

    async def claim_behind(self, asked: Asked, pop: Command, request: ClaimRequest) -> Claims:
        """Wait for a marker and claim, in one question."""
        ...

    async def give_back(self, claims: Claims) -> None:
        """Release claims that nobody has begun."""
        ...


class Wait:
    """One who waits at the server, on a line of its own."""

    def __init__(
        self,
        server: Server,
        layout: Layout,
        names: Names,
        store: Store,
        tell: Tell,
        queues: tuple[str, ...],
        *,
        may_stand: bool,
    ) -> None:
        """Wait for markers of queues; ``may_stand``: a claim may stand behind the wait."""
        self._server = server
        self._layout = layout
        self._names = names
        self._store = store
        self._tell = tell
        self.queues = queues
        self._may_stand = may_stand and layout.clock is None and not any(map(is_pattern, queues))
        self.promised = 0
        """Slots that the claim which stands may fill, from when it is wanted until it is answered."""
        self._is_deaf = True
        self._request: ClaimRequest | None = None
        self._due = _WAIT
        self._hungry = asyncio.Event()
        self._brought: Claims | None = None
        self._keeping: asyncio.TimerHandle | None = None
        """Until when that is kept for whom it was brought."""
        self._line = 0
        """The number of the line, by which the server can be told to let go of it."""
        self._pause = _FIRST_PAUSE
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="onward-bullmq-wait")

    def hunger(self, request: ClaimRequest, found: Claims) -> None:
        """Note that a claim has found less than was asked for."""
        if self._is_deaf or self.promised or self._brought is not None:
            return
        if self._may_stand and not _is_near(found):
            # At once: whoever exchanges before the question is sent must ask for the other slots only.
            self.promised = request.slots - len(found.claims)
            self._request = replace(request, slots=0, prefetch_started=self.promised)
        else:
            self._request = None
        self._due = _WAIT if found.retry_after is None else min(_WAIT, max(found.retry_after, _FIRST_PAUSE))
        self._hungry.set()

    @property
    def has_brought(self) -> bool:
        """Whether something is there to be taken."""
        return self._brought is not None

    def take(self) -> Claims | None:
        """Take what was brought, if it has not gone back."""
        brought, self._brought = self._brought, None
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        return brought

    def rest_of(self, request: ClaimRequest) -> ClaimRequest | None:
        """Give what there is to ask for beside the claim that stands."""
        rest = replace(request, slots=max(request.slots - self.promised, 0))
        return rest if rest.slots + rest.prefetch_started else None

    async def look_now(self) -> bool:
        """Have the claim that stands done at once, without a marker; False: there is none, or it cannot be told."""
        if not self.promised or not self._line:
            return False
        await self._store.ask(_let_go(self._line))
        return True

    async def stop(self) -> None:
        """Wait no more. What has been brought, or comes yet, goes back."""
        self._stopping.set()
        with suppress(OnwardError, TimeoutError):
            async with asyncio.timeout(_LAST_ANSWER):
                if await self.look_now():
                    await asyncio.wait([self._task])
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with suppress(OnwardError):  # the leases will tell
            await self._give_back()

    async def _run(self) -> None:
        while True:
            asked = self._server.asked(most=1, waits=_WAIT)
            try:
                await self._wait_on(asked)
            except (RedisError, OSError, OnwardError) as error:
                log.warning("cannot listen to %s, workers poll meanwhile: %s", self._server, error)
                self._is_deaf = True
                self.promised = 0
                self._hungry.clear()
                self._tell(("*",), SignalKind.CHANGED)
            finally:
                with suppress(RedisError, OSError):
                    await asked.close()  # and so goes what the server would have popped for us
            if self._stopping.is_set():
                return
            await asyncio.sleep(self._pause * (0.5 + random.random()))  # noqa: S311 - jitter
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _wait_on(self, asked: Asked) -> None:
        if not self._server.is_cluster:  # which has no line of its own for this: who stops hangs up
            (number,) = await asked.ask([("CLIENT", "ID")])
            self._line = number if isinstance(number, int) else 0  # likewise who may not know it
        self._is_deaf = False
        self._tell(("*",), SignalKind.CHANGED)  # who was hungry meanwhile asks again
        while True:
            await self._hungry.wait()
            if self._brought is not None:
                self._hungry.clear()
                await self._give_back()
                continue
            await asyncio.sleep(0)  # what has just been brought begins first
            queues = await self._store.ask(self._names.matching(self.queues))
            if not queues:  # of those that a pattern may mean there is none yet
                await asyncio.sleep(_WAIT)
                continue
            if self._stopping.is_set():
                return
            told, found = await self._question(asked, queues)
            self._pause = _FIRST_PAUSE
            if told:
                self._hungry.clear()
                self.promised = 0
                if found.claims:
                    self._brought = found
                    self._keeping = asyncio.get_running_loop().call_later(_KEPT, self._hungry.set)
                if self._stopping.is_set():
                    return
                self._tell(told, SignalKind.WORK)

    async def _question(self, asked: Asked, queues: list[str]) -> tuple[tuple[str, ...], Claims]:
        """Wait once; give the queues to tell of, if any, and what was brought."""
        request = self._request
        pop = ("BZPOPMIN", *(f"{self._layout.base(name)}{_MARKER}" for name in queues), self._due)
        if request is None:
            (popped,) = await aexecute(asked, [pop])
            return () if popped is None else (popped[0][len(self._layout.root) : -len(_MARKER) - 1],), Claims()
        found = await self._store.claim_behind(asked, pop, request)
        return tuple(queues) if found.claims or _is_near(found) else (), found

    async def _give_back(self) -> None:
        if (left := self.take()) is not None:
            await self._store.give_back(left)


def _is_near(found: Claims) -> bool:
    """Say whether there is something to take before a wait that began now would end."""
    return found.retry_after is not None and found.retry_after <= _WAIT + _MARGIN


def _let_go(line: int) -> Plan[None]:
    yield [("CLIENT", "UNBLOCK", line)]
