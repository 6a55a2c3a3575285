"""Suspects run alone: a job that was running when its process died gets a process to itself until it has ended a run.

So a job that kills its worker is found out, and the jobs beside it lose nothing (SPEC, Counting). When the store says
that suspects wait, the worker asks for nothing more, lets what it runs come to its end, and then runs suspects one at
a time.

Two things are bounded. Ordinary work does not starve: suspects get a second at a time (one run, if that takes longer),
then at least as long a time is ordinary again. Suspects do not starve: if the worker does not come to rest within its
patience it goes on for a while and tries again with twice the patience, so that sooner or later the longest job is
waited for. Where several processes see the same suspects each waits a random moment first, and looks whether they are
still there, so that seldom more than one comes to rest while the others go on working.
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
from onward.worker.service import WakeEvent

log = logging.getLogger("onward.worker")

_SPREAD: Final = 0.2
"""Seconds within which processes that see the same suspects take their turns."""
_SHIFT: Final = 1.0
"""Seconds of suspects in a row."""
_PATIENCE: Final = 5.0
"""Seconds that the first try waits for the worker to come to rest."""
_MOST_PATIENCE: Final = 3600.0
_MOST_DISAPPOINTMENT: Final = 30.0
"""Seconds between two times of coming to rest, when there was nothing to take each time."""


class Quarantine:
    """Brings the worker to rest when suspects wait, and runs them alone."""

    def __init__(self, engine: Consumer, *, worker_id: str, queues: tuple[str, ...], lease: timedelta) -> None:
        self._engine = engine
        self._request = ClaimRequest(worker_id=worker_id, queues=queues, slots=1, lease=lease, alone=True)
        self._wake_event = WakeEvent()
        self._idle = WakeEvent()
        """Rings when suspects wait and there is nothing else to do."""
        self._patience = _PATIENCE
        self._disappointment = 0.0
        self.claimers: Sequence[Claimer] = ()
        """Those that must come to rest; the first of them runs the suspects."""
        self._seen_in: set[tuple[str, ...]] = set()
        """The queues of which the last claim said that suspects wait there."""
        self._asking = asyncio.Lock()
        self._closed = False

    def note(self, queues: tuple[str, ...], *, has_suspects: bool, found: bool) -> None:
        """Take note of what a claim from these queues said, and whether it found anything else."""
        if not has_suspects:
            self._seen_in.discard(queues)
            return
        self._seen_in.add(queues)
        self._wake_event.set()
        if not found and all(claimer.is_quiet for claimer in self.claimers):
            self._idle.set()

    async def step(self) -> float:
        """Wait for suspects, see to them once, and let ordinary work go on for as long as it has a right to."""
        await self._wake_event.wait()
        await asyncio.sleep(random.uniform(0, _SPREAD))  # noqa: S311 - not a secret
        if self._seen_in:
            rest = await self._see_to_them()
            self._idle.clear()
            await self._idle.wait(rest)
        return 0

    async def _see_to_them(self) -> float:
        """Run suspects, if the worker comes to rest; answer for how many seconds it should not be asked to again."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            if not await self._comes_to_rest(self._patience):
                rest, self._patience = self._patience, min(self._patience * 2, _MOST_PATIENCE)
                return rest
            self._patience = _PATIENCE
            if not await self.run_one():
                # Others were quicker, or their queue is paused or at its limit.
                self._disappointment = min(max(self._disappointment * 2, _SHIFT), _MOST_DISAPPOINTMENT)
                return self._disappointment
            self._disappointment = 0.0
            while loop.time() - began < _SHIFT and await self.run_one():
                pass
            return loop.time() - began
        finally:
            for claimer in self.claimers:
                claimer.go_on()

    async def run_one(self) -> bool:
        """Run one suspect to its end, with nothing else running; False: there was none."""
        async with self._asking:
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
                log.warning("suspect runs alone", extra=fields)
                self.claimers[0].adopt(claim, requested_at)
        await self._comes_to_rest(None)
        return bool(claimed.claims)

    async def close(self) -> None:
        """Ask for no more suspects, and wait for an answer that is on its way.

        A suspect that is claimed and never given back would seem to have killed one more worker.
        """
        self._closed = True
        async with self._asking:
            pass

    async def _comes_to_rest(self, patience: float | None) -> bool:
        until = None if patience is None else asyncio.get_running_loop().time() + patience
        for claimer in self.claimers:
            claimer.rest()
        for claimer in self.claimers:
            if not await claimer.comes_to_rest(until):
                return False
        return True
