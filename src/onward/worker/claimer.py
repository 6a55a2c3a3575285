"""The round trips of one pool: outcomes out, starts made, claims in, all in one exchange with the store.

One exchange is in flight at a time. What finishes meanwhile leaves with the next, so batches are of one when the
worker is idle and large under a backlog, without anything being held back: an outcome waits for one round trip at
most. Where there are many outcomes, the store can do two things at once and no other worker has it do something
meanwhile, they leave by themselves: then neither they nor the claims wait for the other, and hands wait for neither.

To keep hands busy during a round trip the claimer asks ahead: for as many jobs as the pool has lately finished in the
time a round trip takes, and no more. They come claimed, are started by the next exchange, and if then no hand turns up
for them within moments (the jobs became slow) they are given back for others to take. On limited queues the store
gives none ahead.

States: *hungry* (the store had as much as was asked for: ask at once), *fed* (it had less: ask with the next outcome,
at a signal, at the time the store named, or by polling), *resting* (a suspect wants to be alone: settle and start, but
ask for nothing), *closed* (the worker stops: what has not begun goes back, the rest is settled, then the loop ends).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from onward.engine.capabilities import Feature
from onward.engine.contract import Engine
from onward.engine.values import Claim, ClaimRequest, Claims, Exchange, Exchanged, Settlement
from onward.errors import StoreUnavailable
from onward.lifecycle import Release
from onward.worker.inflight import LOST, HeldClaim, Inflight
from onward.worker.pool import Pool
from onward.worker.service import STORE_RETRY_BACKOFF, WakeEvent, log_failure
from onward.worker.settler import Settler

log = logging.getLogger("onward.worker")

_MOST_AT_ONCE: Final = 500
"""Jobs in one exchange: more saves nothing, and each waits for all the others to be written."""
_LONGEST_TRIP: Final = 0.01
"""Seconds that a round trip should take at most; asking ahead stops growing there."""
_PATIENCE: Final = 0.02
"""Seconds that a claim may wait for a hand before it is given back."""
_LINGER: Final = 0.005
"""Seconds in which outcomes gather under load: a round trip costs about the same for one job as for ten."""
_SHORTEST_GAP: Final = 0.001
_LONGEST_GAP: Final = 0.01
"""Seconds between two looks that signals brought about and that found nothing: new work is seen within that at worst,
and a worker beside a busy one stays cheap."""
_BLINK: Final = 0.001
"""Seconds. Of runs as quick as this a hand begins hundreds within moments, so they need not be claimed first and then
started, which costs the store a write each. The store gives none so from a limited queue."""
_SHORTEST_RUN: Final = 1e-5
"""Seconds. No run is quicker, whatever a clock says."""
_MEMORY: Final = 0.3
"""How much the last round trip weighs in the moving averages."""


class Claimer:
    """Asks for jobs for one pool, and settles what became of them."""

    def __init__(
        self,
        engine: Engine,
        pool: Pool,
        settler: Settler,
        inflight: Inflight,
        *,
        worker_id: str,
        queues: tuple[str, ...],
        lease: timedelta,
        poll: timedelta,
        on_claimed: Callable[[Claims], None] = lambda _: None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._pool = pool
        pool.on_rest = self._hands_rest
        self._settler = settler
        settler.on_outcome = self._outcome_waits
        self._inflight = inflight
        self._wake_event = WakeEvent()
        self._worker_id = worker_id
        self._queues = queues
        self._lease = lease
        self._poll = poll.total_seconds()
        self._on_claimed = on_claimed
        self._on_answer = on_answer
        self._may_ask_ahead = engine.capabilities.has(Feature.CLAIMED_STATE)
        self._ahead: deque[HeldClaim] = deque()
        self._in_flight = False
        self._apart = engine.capabilities.split_settle_threshold
        self._has_company = False
        """Whether other workers share the store."""
        self._sending: asyncio.Task[None] | None = None
        """Stores outcomes while the loop goes on claiming: only where there are many."""
        self._quiet = WakeEvent()
        self._hungry = True
        self._told = False
        self._look_at = 0.0
        self._heed_from = 0.0
        """When the next signal is heeded."""
        self._gap = 0.0
        self._try_at = 0.0
        self._linger_until = 0.0
        """While the hands have enough to do, outcomes gather until then."""
        self._reserve = 0
        """What is left in line when gathering ends: as much as the hands use up during a round trip."""
        self._failures = 0
        self._resting = False
        self._closed = False
        self._abandoned = False
        self._asked_since: float | None = None
        """Since when the store owes an answer to an exchange."""
        self._sent_since: float | None = None
        """Since when it owes one to outcomes that have left by themselves."""
        self._pace = 0.0
        """Jobs finished per second of work: a moving average."""
        self._duration = 0.0
        """Seconds a run takes: a moving average."""
        self._trip = 0.0
        """Seconds a round trip takes: a moving average."""
        self._seen_finished = 0
        self._seen_worked = 0.0
        self._seen_spent = 0.0

    # What others may ask of it

    def work_may_wait(self) -> None:
        """Look soon: something has told that there may be work."""
        self._told = True
        self._wake_event.set()

    def _outcome_waits(self) -> None:
        """Send what has just ended, with the next round trip."""
        if not self._linger_until:
            self._wake_event.set()
        elif len(self._pool.line) <= self._reserve:
            self._linger_until = 0.0
            self._wake_event.set()

    def _hands_rest(self) -> None:
        """Bring the next round trip forward: a hand has nothing to do."""
        if self._linger_until:
            self._linger_until = 0.0
            self._wake_event.set()

    def rest(self) -> None:
        """Ask for no more jobs until :meth:`go_on`."""
        self._resting = True

    async def comes_to_rest(self, until: float | None) -> bool:
        """Wait, by the loop's clock, for all that is held to end and be settled; False: it did not in time."""
        while not self.is_quiet:
            wait = None if until is None else until - asyncio.get_running_loop().time()
            if wait is not None and wait <= 0:
                return False
            await self._quiet.wait(wait)
        return True

    def adopt(self, claim: Claim, requested_at: float) -> None:
        """Run a claim that somebody else has asked for."""
        self._pool.put(self._inflight.add(claim, requested_at))
        if self._closed:
            self._give_back()
        self._pool.wake()

    def go_on(self) -> None:
        """Ask for jobs again."""
        self._resting = False
        self._hungry = True
        self._wake_event.set()

    def close(self) -> None:
        """Ask for no more jobs, and give back what has not begun. The loop ends when all is settled."""
        self._closed = True
        self._linger_until = 0.0
        self._give_back()
        self._wake_event.set()

    def abandon(self) -> None:
        """Give back even what still runs: its handlers would not stop, and the process will end under them."""
        self._abandoned = True
        for held in self._inflight.running():
            self._settler.add(held, Release())
        self._wake_event.set()

    async def last_words(self) -> None:
        """Store what was left when the loop was cut short."""
        self._give_back()
        self._settler.bring_back()
        if settlements := self._settler.take(len(self._settler)):
            self._settler.stored(settlements, await self._engine.settle(settlements))

    @property
    def unanswered_since(self) -> float | None:
        """Since when, by the loop's clock, the store owes an answer; None: it owes none."""
        owed = [since for since in (self._asked_since, self._sent_since) if since is not None]
        return min(owed, default=None)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is held, and nothing on its way, in either direction."""
        at_rest = self._pool.is_idle or self._abandoned
        on_the_way = self._in_flight or self._sending is not None or self._settler.aside_until < math.inf
        return at_rest and not self._ahead and not self._settler and not on_the_way

    # The loop

    async def run(self) -> None:
        """Go on until closed and all is settled."""
        try:
            while True:
                if self.is_quiet:
                    self._quiet.set()
                    if self._closed:
                        return
                if (pause := self._pause()) is None or pause > 0:
                    await self._wake_event.wait(pause)
                if self._pause() == 0:
                    await self._round_trip()
        finally:
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.wait([self._sending])

    def _pause(self) -> float | None:
        """Say how long there is nothing to do: 0 for none, None for until the bell rings."""
        now = asyncio.get_running_loop().time()
        if now < self._try_at:
            return self._try_at - now
        if now >= self._settler.aside_until:
            self._settler.bring_back()
        to_send = len(self._settler) if self._sending is None else 0
        has_enough = len(self._pool.line) > self._reserve and to_send < _MOST_AT_ONCE // 2
        if now < self._linger_until and has_enough:
            return self._linger_until - now
        self._linger_until = 0.0
        if to_send or (self._ahead and self._room() > 0):
            return 0
        waits: list[float] = [] if self._settler.aside_until == math.inf else [self._settler.aside_until]
        if self._may_claim and self._room() > 0:
            if self._hungry:
                return 0
            waits.append(min(self._look_at, self._heed_from) if self._told else self._look_at)
        if self._pool.free < 0 or self._ahead:
            out_of_patience = (self._ahead or self._pool.line)[0].requested_at + self._trip + _PATIENCE
            if out_of_patience <= now:
                self._give_back_overflow()
                return 0
            waits.append(out_of_patience)
        return max(min(waits) - now, 0) if waits else None

    @property
    def _may_claim(self) -> bool:
        return not (self._closed or self._resting)

    def _room(self) -> int:
        """Say how many jobs more will find a hand: those free now, and those that will be until the trip after next.

        What an exchange brings comes when it returns, and must last until the next one does.
        """
        unsent = len(self._settler)  # the store is slower than the hands: let it catch up
        return self._pool.free + 2 * self._expected() - unsent

    def _expected(self) -> int:
        """Say how many jobs the pool will finish while a round trip is under way.

        As many as its hands can, by what a run takes on average, but at most twice as many as it lately did: runs that
        need the processor take turns, however many hands there are.
        """
        # What is over in a blink may come started: then no store need know of jobs that are claimed and wait.
        if not self._pace or not (self._may_ask_ahead or self._duration < _BLINK):
            return 0
        per_second = min(self._pool.size / max(self._duration, _SHORTEST_RUN), 2 * self._pace)
        trip = min(self._trip, _LONGEST_TRIP) + (_LINGER if self._lingers else 0)
        return min(int(per_second * trip), _MOST_AT_ONCE)

    @property
    def _lingers(self) -> bool:
        """Whether so many jobs end in a moment that it is worth gathering them."""
        return self._pace * _LINGER >= 4

    async def _round_trip(self) -> None:
        loop = asyncio.get_running_loop()
        settlements = self._settler.take(_MOST_AT_ONCE) if self._sending is None else ()
        starts = self._next_starts()
        request = self._next_request(len(starts))
        if request is not None and self._may_send_apart(len(settlements)):
            self._sending = asyncio.create_task(self._send(settlements), name="onward-settler")
            settlements = ()
        if request is not None:
            self._hungry = self._told = False
        self._in_flight = True
        requested_at = loop.time()
        if self._asked_since is None:
            self._asked_since = requested_at
        try:
            answer = await self._engine.exchange(
                Exchange(settlements=settlements, starts=tuple(held.claim for held in starts), request=request)
            )
        except asyncio.CancelledError:
            # Nobody knows what of it was done: it is said again, by the last words.
            self._ahead.extendleft(reversed(starts))
            self._settler.put_back(settlements)
            raise
        except Exception as error:  # noqa: BLE001 - the worker outlives its store
            self._ahead.extendleft(reversed(starts))
            await self._recover(settlements, error)
            return
        finally:
            self._in_flight = False
        now = loop.time()
        self._failures = 0
        self._asked_since = None
        self._on_answer()
        if settlements:
            self._sent_since = None
            self._stored(settlements, answer, now)
        self._begin(starts, answer)
        if request is not None:
            self._take(answer.claimed, request, requested_at, now)
        self._measure(now - requested_at, now)
        self._linger_until = now + _LINGER if self._lingers else 0.0
        self._reserve = int(self._pace * self._trip)
        if self._closed:
            self._give_back()
        self._pool.wake()
        if not self._hungry:
            await asyncio.sleep(0)  # what was brought begins first

    def _may_send_apart(self, outcomes: int) -> bool:
        """Whether so many outcomes should leave by themselves. Not if the last ones failed: nothing is claimed then.

        It has the store do two things at once, and costs it a tenth more for each job. Where others work too it has
        enough to do at once, and all of them get along better without.
        """
        if self._apart is None or self._has_company:
            return False
        return outcomes >= self._apart and self._sent_since is None

    async def _send(self, settlements: tuple[Settlement, ...]) -> None:
        """Store outcomes while the loop goes on claiming, and those that have come meanwhile if they are many too."""
        try:
            while settlements:
                self._sent_since = asyncio.get_running_loop().time()
                try:
                    answer = await self._engine.exchange(Exchange(settlements=settlements))
                except asyncio.CancelledError:
                    self._settler.put_back(settlements)
                    raise
                except Exception as error:  # noqa: BLE001 - the worker outlives its store
                    await self._recover(settlements, error)
                    return
                self._sent_since = None
                self._on_answer()
                self._stored(settlements, answer, asyncio.get_running_loop().time())
                self._wake_event.set()
                many = self._may_send_apart(len(self._settler))
                settlements = self._settler.take(_MOST_AT_ONCE) if many else ()
        finally:
            self._sending = None
            self._wake_event.set()

    def _stored(self, settlements: tuple[Settlement, ...], answer: Exchanged, now: float) -> None:
        """Let go of outcomes for which the store has answered."""
        if answer.busy:
            settlements = self._settler.set_aside(settlements, answer.busy, now)
        self._settler.stored(settlements, answer.lost)

    def _next_starts(self) -> list[HeldClaim]:
        starts: list[HeldClaim] = []
        room = self._room()
        while self._ahead and len(starts) < room:
            held = self._ahead.popleft()
            if held.stage is not LOST:
                starts.append(held)
        return starts

    def _next_request(self, starting: int) -> ClaimRequest | None:
        if not self._may_claim:
            return None
        slots = min(max(self._pool.free - starting, 0), _MOST_AT_ONCE)
        prefetch_started = prefetch_claimed = 0
        if self._duration < _BLINK:
            prefetch_started = min(max(self._room() - starting, 0), _MOST_AT_ONCE) - slots
        else:
            prefetch_claimed = max(self._expected() - len(self._ahead), 0)
        if not slots + prefetch_started + prefetch_claimed:
            return None
        return ClaimRequest(
            worker_id=self._worker_id,
            queues=self._queues,
            slots=slots,
            prefetch_started=prefetch_started,
            prefetch_claimed=prefetch_claimed,
            lease=self._lease,
        )

    def _begin(self, starts: list[HeldClaim], answer: Exchanged) -> None:
        for held in starts:
            if held.claim.token in answer.busy:
                self._ahead.append(held)
            elif held.claim.token in answer.lost:
                self._inflight.remove(held.claim.token)
                log.info("claim lost before its start", extra={"job_id": held.claim.ref.id})
            else:
                held.claim = replace(held.claim, started=True, attempts=held.claim.attempts + 1)
                self._pool.put(held)

    def _take(self, claimed: Claims, request: ClaimRequest, requested_at: float, now: float) -> None:
        for held in self._inflight.add_all(claimed.claims, requested_at):
            (self._pool.line if held.claim.started else self._ahead).append(held)
        self._on_claimed(claimed)
        if len(claimed.claims) >= request.slots + request.prefetch_started + request.prefetch_claimed:
            self._hungry = True
        if claimed.claims:
            self._has_company = claimed.is_shared_load
            self._gap = 0.0
        else:
            # Every change in the store is signalled, and most are none of our business.
            self._gap = min(max(self._gap * 2, _SHORTEST_GAP), _LONGEST_GAP)
        self._heed_from = now + self._gap
        retry_after = self._poll if claimed.retry_after is None else max(claimed.retry_after, _SHORTEST_GAP)
        self._look_at = now + min(retry_after, self._poll)

    def _measure(self, trip: float, now: float) -> None:
        """Learn how long a round trip takes, how long a run does, and how many end in a second of work."""
        self._trip += (trip - self._trip) * (_MEMORY if self._trip else 1)
        worked = self._pool.time_worked(now)
        finished, seconds = self._pool.finished - self._seen_finished, worked - self._seen_worked
        if seconds <= 0:
            return
        self._pace += (finished / seconds - self._pace) * (_MEMORY if self._pace else 1)
        if finished:
            duration = (self._pool.spent - self._seen_spent) / finished
            self._duration += (duration - self._duration) * (_MEMORY if self._duration else 1)
        self._seen_finished, self._seen_worked, self._seen_spent = self._pool.finished, worked, self._pool.spent

    def _give_back(self) -> None:
        """Release all that has not begun, for others to take."""
        for waiting in (self._pool.line, self._ahead):
            while waiting:
                self._release(waiting.popleft())

    def _give_back_overflow(self) -> None:
        """Release what was claimed ahead of hands that did not turn up; who has a hand coming stays in line."""
        while self._ahead:
            self._release(self._ahead.popleft())
        while self._pool.free < 0 and self._pool.line:
            self._release(self._pool.line.pop())

    def _release(self, held: HeldClaim) -> None:
        if held.stage is not LOST:
            self._settler.add(held, Release())

    async def _recover(self, settlements: tuple[Settlement, ...], error: Exception) -> None:
        """Lose nothing when an exchange fails, and leave the store in peace for a while."""
        self._failures += 1
        log_failure("claimer", error, self._failures)
        self._hungry = True
        if isinstance(error, StoreUnavailable) or not settlements:
            self._settler.put_back(settlements)
        else:
            try:
                await self._settler.settle_one_by_one(self._engine, settlements)
                self._sent_since = None
            except StoreUnavailable as away:
                log_failure("settler", away, self._failures)
        self._try_at = asyncio.get_running_loop().time() + STORE_RETRY_BACKOFF.delay(self._failures).total_seconds()
