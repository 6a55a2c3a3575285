"""Suspects run alone: a job that was running when its process died gets a process to itself until it has ended a run.

So a job that kills its worker is found out, and the jobs beside it lose nothing (SPEC, Counting). When the store says
that suspects wait, the worker asks for nothing more, lets what it runs come to its end, and then runs suspects one at
a time.

Two things are bounded. Ordinary work does not starve: suspects get a second at a time (one run, if that takes longer),
then at least as long a time is ordinary again. Suspects do not starve: if the worker does not drain within its
timeout it goes on for a while and tries again with twice the timeout, so that sooner or later the longest job is
waited for. Where several processes see the same suspects each waits a random moment first, and looks whether they are
still there, so that seldom more than one drains while the others go on working.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from onward.engine.contract import Consumer
from onward.engine.values import ClaimRequest
from onward.worker.claimer import Claimer
from onward.worker.periodic import WakeEvent

log = logging.getLogger("onward.worker")

_MAX_JITTER: Final = 0.2
"""Seconds within which processes that see the same suspects take their turns."""
_TIME_SLICE: Final = 1.0
"""Seconds of suspects in a row."""
_DRAIN_TIMEOUT: Final = 5.0
"""Seconds that the first try waits for the worker to drain."""
_MAX_DRAIN_TIMEOUT: Final = 3600.0
_MAX_BACKOFF: Final = 30.0
"""Seconds between two drains, when there was nothing to take each time."""


class Quarantine:
    """Drains the worker when suspects wait, and runs them alone."""

    def __init__(self, engine: Consumer, *, worker_id: str, queues: tuple[str, ...], lease: timedelta) -> None:
        self._engine = engine
        self._request = ClaimRequest(worker_id=worker_id, queues=queues, slots=1, lease=lease, alone=True)
        self._wake_event = WakeEvent()
        self._idle_event = WakeEvent()
        """Rings when suspects wait and there is nothing else to do."""
        self._drain_timeout = _DRAIN_TIMEOUT
        self._backoff = 0.0
        self.claimers: Sequence[Claimer] = ()
        """Those that must drain; the first of them runs the suspects."""
        self._queues_with_suspects: set[tuple[str, ...]] = set()
        """The queues of which the last claim said that suspects wait there."""
        self._claim_lock = asyncio.Lock()
        self._closed = False

    def on_claimed(self, queues: tuple[str, ...], *, has_suspects: bool, has_claims: bool) -> None:
        """Take note of what a claim from these queues said, and whether it found anything else."""
        if not has_suspects:
            self._queues_with_suspects.discard(queues)
            return
        self._queues_with_suspects.add(queues)
        self._wake_event.set()
        if not has_claims and all(claimer.is_drained for claimer in self.claimers):
            self._idle_event.set()

    async def step(self) -> float:
        """Wait for suspects, see to them once, and let ordinary work go on for as long as it has a right to."""
        await self._wake_event.wait()
        await asyncio.sleep(random.uniform(0, _MAX_JITTER))  # noqa: S311 - not a secret
        if self._queues_with_suspects:
            pause = await self._run_suspects()
            self._idle_event.clear()
            await self._idle_event.wait(pause)
        return 0

    async def _run_suspects(self) -> float:
        """Run suspects, if the worker drains; answer for how many seconds it should not be asked to again."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            if not await self._drain(self._drain_timeout):
                pause, self._drain_timeout = self._drain_timeout, min(self._drain_timeout * 2, _MAX_DRAIN_TIMEOUT)
                return pause
            self._drain_timeout = _DRAIN_TIMEOUT
            if not await self.run_one():
                # Others were quicker, or their queue is paused or at its limit.
                self._backoff = min(max(self._backoff * 2, _TIME_SLICE), _MAX_BACKOFF)
                return self._backoff
            self._backoff = 0.0
            while loop.time() - began < _TIME_SLICE and await self.run_one():
                pass
            return loop.time() - began
        finally:
            for claimer in self.claimers:
                claimer.resume()

    async def run_one(self) -> bool:
        """Run one suspect to its end, with nothing else running; False: there was none."""
        async with self._claim_lock:
            if self._closed:
                return False
            requested_at = asyncio.get_running_loop().time()
            claimed = await self._engine.claim(self._request)
            for claim in claimed.claims:
                fields = {
                    "job_id": claim.ref.id,
                    "queue": claim.ref.queue,
                    "task": claim.type,
                    "crashes": claim.crashes,
                }
                log.warning("running suspect in isolation", extra=fields)
                self.claimers[0].accept(claim, requested_at)
        await self._drain(None)
        return bool(claimed.claims)

    async def close(self) -> None:
        """Ask for no more suspects, and wait for an answer that is on its way.

        A suspect that is claimed and never given back would seem to have killed one more worker.
        """
        self._closed = True
        async with self._claim_lock:
            pass

    async def _drain(self, timeout: float | None) -> bool:
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        for claimer in self.claimers:
            claimer.pause()
        for claimer in self.claimers:
            if not await claimer.drain(until):
                return False
        return True
