"""Waits at the server for work, by BullMQ's markers, and has it brought.

Whoever makes a job ready puts a marker into its queue's ``marker`` set; an idle worker waits for one (BZPOPMIN) and
takes it, and so exactly one is woken, here or in Node. To take a marker is a promise to look for work. So only those
wait whose claim has just found too little: a busy worker, or a program that only waits for results, takes no marker
from those who are idle.

A worker's claim is *pipelined* behind its wait, in the same write: the server claims as it wakes it, and the jobs
come with the marker, a round trip sooner. The slots that it may fill are reserved for it, and the worker asks for the
others only; what it brings is handed over at the worker's next exchange, and goes back if none comes. It takes nothing
from a limited queue, whose jobs must start as soon as they are taken. No claim is pipelined where a job comes due
before the wait would end, where queues are named by a pattern, which may mean others meanwhile, nor where a test moves
the clock.

States: *idle* (no claim has found too little: waits for nothing), *blocked* (waits at the server), *disconnected* (the
server is away: tries again, while workers poll).
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
from onward.engines.bullmq.client_factory import Server
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import AsyncClient, Command, Plan, aexecute
from onward.engines.bullmq.queue_registry import QueueRegistry, is_pattern
from onward.errors import OnwardError

log = logging.getLogger("onward.engines.bullmq")

T = TypeVar("T")

_BLOCK_TIMEOUT: Final = 5.0
"""Seconds that the server sits on one question: as long as BullMQ's own workers wait."""
_TIMEOUT_MARGIN: Final = 1.0
"""Seconds by which the server may be late to end a wait."""
_PICKUP_TIMEOUT: Final = 0.25
"""Seconds for which what was brought is kept for a worker that does not ask: it stops, or was held up."""
_STOP_TIMEOUT: Final = 1.0
"""Seconds in which a connection that is unblocked should have its answer."""
_MARKER: Final = "marker"
_MIN_RETRY_DELAY: Final = 0.05
_MAX_RETRY_DELAY: Final = 5.0
"""Seconds between tries to reach a server that is away."""

Notify = Callable[[tuple[str, ...], SignalKind], None]


class Store(Protocol):
    """What a blocking claim asks of its engine."""

    def run_plan(self, plan: Plan[T]) -> Awaitable[T]:
        """Drive a plan on the event loop's own connections."""
        ...

    async def block_and_claim(self, client: AsyncClient, pop: Command, request: ClaimRequest) -> Claims:
        """Wait for a marker and claim, in one question."""
        ...

    async def release(self, claims: Claims) -> None:
        """Release claims that nobody has begun."""
        ...


class BlockingClaim:
    """One who waits at the server, on a connection of its own."""

    def __init__(
        self,
        server: Server,
        keys: Keys,
        registry: QueueRegistry,
        store: Store,
        notify: Notify,
        queues: tuple[str, ...],
        *,
        may_pipeline: bool,
    ) -> None:
        """Wait for markers of queues; ``may_pipeline``: a claim may be pipelined behind the wait."""
        self._server = server
        self._keys = keys
        self._registry = registry
        self._store = store
        self._notify = notify
        self.queues = queues
        self._may_pipeline = may_pipeline and keys.clock is None and not any(map(is_pattern, queues))
        self.reserved_slots = 0
        """Slots that the pipelined claim may fill, from when it is wanted until it is answered."""
        self._is_disconnected = True
        self._request: ClaimRequest | None = None
        self._timeout = _BLOCK_TIMEOUT
        self._more_requested = asyncio.Event()
        self._claimed: Claims | None = None
        self._release_timer: asyncio.TimerHandle | None = None
        """Until when that is kept for whom it was brought."""
        self._connection_id = 0
        """The id of the connection, by which the server can be told to unblock it."""
        self._retry_delay = _MIN_RETRY_DELAY
        self._is_blocked = False
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="onward-bullmq-blocking-claim")

    def request_more(self, request: ClaimRequest, found: Claims) -> None:
        """Note that a claim has found less than was asked for."""
        if self._is_disconnected or self.reserved_slots or self._claimed is not None:
            return
        if self._may_pipeline and not _is_due_soon(found):
            # At once: whoever exchanges before the question is sent must ask for the other slots only.
            self.reserved_slots = request.slots - len(found.claims)
            self._request = replace(request, slots=0, prefetch_started=self.reserved_slots)
        else:
            self._request = None
        self._timeout = (
            _BLOCK_TIMEOUT
            if found.retry_after is None
            else min(_BLOCK_TIMEOUT, max(found.retry_after, _MIN_RETRY_DELAY))
        )
        self._more_requested.set()

    @property
    def has_claims(self) -> bool:
        """Whether something is there to be taken."""
        return self._claimed is not None

    def take(self) -> Claims | None:
        """Take what was brought, if it has not gone back."""
        claimed, self._claimed = self._claimed, None
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None
        return claimed

    def remaining_request(self, request: ClaimRequest) -> ClaimRequest | None:
        """Give what there is to ask for beside the pipelined claim."""
        remaining = replace(request, slots=max(request.slots - self.reserved_slots, 0))
        return remaining if remaining.slots + remaining.prefetch_started else None

    async def claim_now(self) -> bool:
        """Have the pipelined claim done at once, without a marker; False: there is none, or it cannot be told."""
        if not self.reserved_slots or not self._connection_id:
            return False
        await self._store.run_plan(_unblock(self._connection_id))
        return True

    async def step_aside(self) -> None:
        """Wait no more until the next claim finds too little: the next marker is for another worker."""
        self._more_requested.clear()
        if self._is_blocked and self._connection_id:
            await self._store.run_plan(_unblock(self._connection_id))
        self._more_requested.clear()

    async def stop(self) -> None:
        """Wait no more. What has been brought, or comes yet, goes back."""
        self._stopping.set()
        with suppress(OnwardError, TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                if await self.claim_now():
                    await asyncio.wait([self._task])
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with suppress(OnwardError):  # the leases will tell
            await self._release()

    async def _run(self) -> None:
        while True:
            client = self._server.async_client(max_connections=1, blocking_timeout=_BLOCK_TIMEOUT)
            try:
                await self._wait_for_markers(client)
            except (RedisError, OSError, OnwardError) as error:
                log.warning("cannot listen to %s, workers poll meanwhile: %s", self._server, error)
                self._is_disconnected = True
                self.reserved_slots = 0
                self._more_requested.clear()
                self._notify(("*",), SignalKind.CHANGED)
            finally:
                with suppress(RedisError, OSError):
                    await client.close()  # and so goes what the server would have popped for us
            if self._stopping.is_set():
                return
            await asyncio.sleep(self._retry_delay * (0.5 + random.random()))  # noqa: S311 - jitter
            self._retry_delay = min(self._retry_delay * 2, _MAX_RETRY_DELAY)

    async def _wait_for_markers(self, client: AsyncClient) -> None:
        if not self._server.is_cluster:  # which has no connection of its own for this: who stops hangs up
            (number,) = await client.execute([("CLIENT", "ID")])
            self._connection_id = number if isinstance(number, int) else 0  # likewise who may not know it
        self._is_disconnected = False
        self._notify(("*",), SignalKind.CHANGED)  # who wanted more meanwhile asks again
        while True:
            await self._more_requested.wait()
            if self._claimed is not None:
                self._more_requested.clear()
                await self._release()
                continue
            await asyncio.sleep(0)  # what has just been brought begins first
            queues = await self._store.run_plan(self._registry.matching(self.queues))
            if not queues:  # of those that a pattern may mean there is none yet
                await asyncio.sleep(_BLOCK_TIMEOUT)
                continue
            if self._stopping.is_set():
                return
            if not self._more_requested.is_set():  # stepped aside meanwhile
                self.reserved_slots = 0
                continue
            self._is_blocked = True
            try:
                notified, found = await self._block_once(client, queues)
            finally:
                self._is_blocked = False
            if not self._more_requested.is_set():
                self.reserved_slots = 0
            self._retry_delay = _MIN_RETRY_DELAY
            if notified:
                self._more_requested.clear()
                self.reserved_slots = 0
                if found.claims:
                    self._claimed = found
                    self._release_timer = asyncio.get_running_loop().call_later(
                        _PICKUP_TIMEOUT, self._more_requested.set
                    )
                if self._stopping.is_set():
                    return
                self._notify(notified, SignalKind.WORK)

    async def _block_once(self, client: AsyncClient, queues: list[str]) -> tuple[tuple[str, ...], Claims]:
        """Wait once; give the queues to tell of, if any, and what was brought."""
        request = self._request
        pop = ("BZPOPMIN", *(f"{self._keys.base(name)}{_MARKER}" for name in queues), self._timeout)
        if request is None:
            (popped,) = await aexecute(client, [pop])
            return () if popped is None else (popped[0][len(self._keys.root) : -len(_MARKER) - 1],), Claims()
        found = await self._store.block_and_claim(client, pop, request)
        return tuple(queues) if found.claims or _is_due_soon(found) else (), found

    async def _release(self) -> None:
        if (left := self.take()) is not None:
            await self._store.release(left)


def _is_due_soon(found: Claims) -> bool:
    """Say whether there is something to take before a wait that began now would end."""
    return found.retry_after is not None and found.retry_after <= _BLOCK_TIMEOUT + _TIMEOUT_MARGIN


def _unblock(connection_id: int) -> Plan[None]:
    yield [("CLIENT", "UNBLOCK", connection_id)]
