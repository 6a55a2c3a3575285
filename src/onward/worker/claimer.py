"""The round trips of one pool: outcomes out, starts made, claims in, all in one exchange with the store.

One exchange is in flight at a time. What finishes meanwhile leaves with the next, so batches are of one when the
worker is idle and large under a backlog, without anything being held back: an outcome waits for one round trip at
most. Where there are many outcomes, the store can do two things at once and no other worker has it do something
meanwhile, they leave by themselves: then neither they nor the claims wait for the other, and slots wait for neither.

To keep slots busy during a round trip the claimer prefetches: as many jobs as the pool has lately finished in the
time a round trip takes, and no more. They come claimed, are started by the next exchange, and if then no slot turns up
for them within moments (the jobs became slow) they are given back for others to take. On limited queues the store
gives none ahead.

States: *backlog* (the store had as much as was asked for: ask at once), *idle* (it had less: ask with the next outcome,
at a signal, at the time the store named, or by polling), *closed* (the worker stops: what has not begun goes back, the
rest is settled, then the loop ends).

The claimer of a pool that runs suspects asks for one at a time, and only after a claim of another pool has said that
suspects wait.
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
from onward.engine.values import ClaimRequest, Claims, Exchange, Exchanged, Settlement
from onward.errors import StoreUnavailable
from onward.lifecycle import Release
from onward.worker.inflight import LOST, HeldClaim, Inflight
from onward.worker.periodic import STORE_RETRY_BACKOFF, WakeEvent, log_failure
from onward.worker.settler import Settler
from onward.worker.slot_pool import Pool

log = logging.getLogger("onward.worker")

_MAX_BATCH: Final = 500
"""Jobs in one exchange: more saves nothing, and each waits for all the others to be written."""
_MAX_ROUND_TRIP: Final = 0.01
"""Seconds that a round trip should take at most; asking ahead stops growing there."""
_MAX_SLOT_WAIT: Final = 0.02
"""Seconds that a claim may wait for a slot before it is given back."""
_COALESCING_DELAY: Final = 0.005
"""Seconds in which outcomes gather under load: a round trip costs about the same for one job as for ten."""
_MIN_WAKE_INTERVAL: Final = 0.001
_MAX_WAKE_INTERVAL: Final = 0.01
"""Seconds between two looks that signals brought about and that found nothing: new work is seen within that at worst,
and a worker beside a busy one stays cheap."""
_SUSPECT_WAKE_INTERVALS: Final = (0.05, 5.0)
"""The same for suspects: each claim of another pool says again that one waits, even if its queue is paused."""
_QUICK_RUN: Final = 0.001
"""Seconds. Of runs as quick as this a slot begins hundreds within moments, so they need not be claimed first and then
started, which costs the store a write each. The store gives none so from a limited queue."""
_MIN_RUN: Final = 1e-5
"""Seconds. No run is quicker, whatever a clock says."""
_GIVE_WAY_SECONDS: Final = 60.0
"""For how long a worker that had a job which it cannot run gives way to others."""
_HEAD_START: Final = 0.1
"""Seconds that others have then, from the news of a job, to claim it first."""
_SMOOTHING: Final = 0.3
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
        claims_suspects: bool = False,
        on_claimed: Callable[[Claims], None] = lambda _: None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._pool = pool
        pool.on_idle = self._on_slot_idle
        self._settler = settler
        settler.on_outcome = self._on_outcome
        self._inflight = inflight
        self._wake_event = WakeEvent()
        self._worker_id = worker_id
        self._queues = queues
        self._lease = lease
        self._claims_suspects = claims_suspects
        self._poll = math.inf if claims_suspects else poll.total_seconds()
        self._min_wake_interval, self._max_wake_interval = (
            _SUSPECT_WAKE_INTERVALS if claims_suspects else (_MIN_WAKE_INTERVAL, _MAX_WAKE_INTERVAL)
        )
        self._on_claimed = on_claimed
        self._on_answer = on_answer
        self._can_prefetch_claimed = engine.capabilities.has(Feature.CLAIMED_STATE)
        self._prefetched: deque[HeldClaim] = deque()
        self._is_exchanging = False
        self._split_threshold = engine.capabilities.split_settle_threshold
        self._has_shared_load = False
        """Whether other workers share the store."""
        self._settle_task: asyncio.Task[None] | None = None
        """Stores outcomes while the loop goes on claiming: only where there are many."""
        self._has_backlog = not claims_suspects
        self._is_notified = False
        self._poll_at = math.inf if claims_suspects else 0.0
        self._wake_not_before = 0.0
        """When the next signal is heeded."""
        self._wake_interval = 0.0
        self._gives_way_until = 0.0
        self._retry_at = 0.0
        self._coalesce_until = 0.0
        """While the slots have enough to do, outcomes are coalesced until then."""
        self._low_watermark = 0
        """What is left waiting when coalescing ends: as much as the slots use up during a round trip."""
        self._failures = 0
        self._max_claims = _MAX_BATCH
        """Jobs to ask for at once: fewer after a claim that failed though the store was there, as by its size."""
        self._is_quiet = False
        self._closed = False
        self._has_released_running = False
        self._found_nothing = claims_suspects
        """Whether the last claim found no job, and none that a rate will permit."""
        self._exchange_since: float | None = None
        """Since when the store owes an answer to an exchange."""
        self._settle_since: float | None = None
        """Since when it owes one to outcomes that have left by themselves."""
        self._throughput = 0.0
        """Jobs finished per second of work: a moving average."""
        self._run_duration = 0.0
        """Seconds a run takes: a moving average."""
        self._round_trip_time = 0.0
        """Seconds a round trip takes: a moving average."""
        self._measured_finished = 0
        self._measured_busy_seconds = 0.0
        self._measured_run_seconds = 0.0

    # What others may ask of it

    def notify(self) -> None:
        """Look soon: something has told that there may be work."""
        if self._gives_way_until and not self._is_notified and self._gives_way:
            self._wake_not_before = max(self._wake_not_before, asyncio.get_running_loop().time() + _HEAD_START)
        self._is_notified = True
        self._wake_event.set()

    def give_way(self) -> None:
        """Let other workers claim first for a while: a job came here that this worker cannot run (O8)."""
        self._gives_way_until = asyncio.get_running_loop().time() + _GIVE_WAY_SECONDS

    @property
    def _gives_way(self) -> bool:
        return asyncio.get_running_loop().time() < self._gives_way_until

    def _on_outcome(self) -> None:
        """Send what has just ended, with the next round trip."""
        if not self._coalesce_until:
            self._wake_event.set()
        elif len(self._pool.waiting) <= self._low_watermark:
            self._coalesce_until = 0.0
            self._wake_event.set()

    def _on_slot_idle(self) -> None:
        """Bring the next round trip forward: a slot has nothing to do."""
        if self._coalesce_until:
            self._coalesce_until = 0.0
            self._wake_event.set()

    def set_quiet(self, *, is_quiet: bool) -> None:
        """Ask for no more jobs, or ask for them again, as the worker was told from afar."""
        if is_quiet != self._is_quiet:
            self._is_quiet = is_quiet
            self._has_backlog = True
            self._wake_event.set()

    def close(self) -> None:
        """Ask for no more jobs, and give back what has not begun. The loop ends when all is settled."""
        self._closed = True
        self._coalesce_until = 0.0
        self._release_waiting()
        self._wake_event.set()

    def release_running(self) -> None:
        """Give back even what still runs: its handlers would not stop, and the process will end under them."""
        self._has_released_running = True
        for held in self._inflight.running():
            self._settler.add(held, Release())
        self._wake_event.set()

    async def flush(self) -> None:
        """Store what was left when the loop was cut short."""
        self._release_waiting()
        self._settler.requeue_deferred()
        if settlements := self._settler.take(len(self._settler)):
            try:
                lost = await self._engine.settle(settlements)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - one outcome that cannot be stored must not cost the others
                log_failure("settler", error, 1)
                await self._settler.settle_one_by_one(self._engine, settlements)
            else:
                self._settler.confirm(settlements, lost)

    @property
    def unanswered_since(self) -> float | None:
        """Since when, by the loop's clock, the store owes an answer; None: it owes none."""
        unanswered = [since for since in (self._exchange_since, self._settle_since) if since is not None]
        return min(unanswered, default=None)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is held, and nothing on its way, in either direction."""
        is_idle = self._pool.is_idle or self._has_released_running
        is_sending = self._is_exchanging or self._settle_task is not None or self._settler.deferred_until < math.inf
        return is_idle and not self._prefetched and not self._settler and not is_sending

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is held, and the last claim found nothing to hold."""
        return self._found_nothing and self.is_drained and not self._has_backlog and not self._is_notified

    # The loop

    async def run(self) -> None:
        """Go on until closed and all is settled."""
        try:
            while True:
                if self._closed and self.is_drained:
                    return
                if (delay := self._seconds_to_wait()) is None or delay > 0:
                    await self._wake_event.wait(delay)
                if self._seconds_to_wait() == 0:
                    await self._exchange()
        finally:
            if self._settle_task is not None:
                self._settle_task.cancel()
                await asyncio.wait([self._settle_task])

    def _seconds_to_wait(self) -> float | None:
        """Say how long there is nothing to do: 0 for none, None for until the wake event is set."""
        now = asyncio.get_running_loop().time()
        if now < self._retry_at:
            return self._retry_at - now
        if now >= self._settler.deferred_until:
            self._settler.requeue_deferred()
        to_send = len(self._settler) if self._settle_task is None else 0
        has_enough = len(self._pool.waiting) > self._low_watermark and to_send < _MAX_BATCH // 2
        if now < self._coalesce_until and has_enough:
            return self._coalesce_until - now
        self._coalesce_until = 0.0
        if to_send or (self._prefetched and self._free_capacity() > 0):
            return 0
        deadlines: list[float] = [] if self._settler.deferred_until == math.inf else [self._settler.deferred_until]
        if self._may_claim and self._free_capacity() > 0:
            if self._has_backlog:
                return 0
            deadlines.append(min(self._poll_at, self._wake_not_before) if self._is_notified else self._poll_at)
        if self._pool.free < 0 or self._prefetched:
            release_at = (
                (self._prefetched or self._pool.waiting)[0].requested_at + self._round_trip_time + _MAX_SLOT_WAIT
            )
            if release_at <= now:
                self._release_overflow()
                return 0
            deadlines.append(release_at)
        soonest = min(deadlines, default=math.inf)
        return max(soonest - now, 0) if soonest < math.inf else None

    @property
    def _may_claim(self) -> bool:
        return not (self._closed or self._is_quiet)

    def _free_capacity(self) -> int:
        """Say how many jobs more will find a slot: those free now, and those that will be until the trip after next.

        What an exchange brings comes when it returns, and must last until the next one does.
        """
        unsent = len(self._settler)  # the store is slower than the slots: let it catch up
        return self._pool.free + 2 * self._expected_finishes() - unsent

    def _expected_finishes(self) -> int:
        """Say how many jobs the pool will finish while a round trip is under way.

        As many as its slots can, by what a run takes on average, but at most twice as many as it lately did: runs that
        need the processor take turns, however many slots there are.
        """
        # What is over in a blink may come started: then no store need know of jobs that are claimed and wait.
        if not self._throughput or not (self._can_prefetch_claimed or self._run_duration < _QUICK_RUN):
            return 0
        per_second = min(self._pool.size / max(self._run_duration, _MIN_RUN), 2 * self._throughput)
        round_trip_time = min(self._round_trip_time, _MAX_ROUND_TRIP) + (
            _COALESCING_DELAY if self._should_coalesce else 0
        )
        return min(int(per_second * round_trip_time), _MAX_BATCH)

    @property
    def _should_coalesce(self) -> bool:
        """Whether so many jobs end in a moment that it is worth gathering them."""
        return self._throughput * _COALESCING_DELAY >= 4

    async def _exchange(self) -> None:
        loop = asyncio.get_running_loop()
        settlements = self._settler.take(_MAX_BATCH) if self._settle_task is None else ()
        starts = self._next_starts()
        request = self._next_request(len(starts))
        if self._claims_suspects and settlements:
            request = None  # one by one: a claim of suspects is not part of an exchange
        if request is not None and self._should_settle_separately(len(settlements)):
            self._settle_task = asyncio.create_task(self._settle_separately(settlements), name="onward-settler")
            settlements = ()
        if request is not None:
            self._has_backlog = self._is_notified = False
        self._is_exchanging = True
        requested_at = loop.time()
        if self._exchange_since is None:
            self._exchange_since = requested_at
        try:
            if request is not None and request.alone:
                answer = Exchanged(claimed=await self._engine.claim(request))
            else:
                answer = await self._engine.exchange(
                    Exchange(settlements=settlements, starts=tuple(held.claim for held in starts), request=request)
                )
        except asyncio.CancelledError:
            # Nobody knows what of it was done: it is sent again by :meth:`flush`.
            self._prefetched.extendleft(reversed(starts))
            self._settler.requeue(settlements)
            raise
        except Exception as error:
            self._prefetched.extendleft(reversed(starts))
            if request is not None and not isinstance(error, StoreUnavailable):
                self._max_claims = max(min(self._max_claims, _size(request)) // 2, 1)
            if isinstance(error, StoreUnavailable) and error.is_permanent:
                self._settler.requeue(settlements)
                raise  # which ends the worker
            await self._recover(settlements, error)
            return
        finally:
            self._is_exchanging = False
        now = loop.time()
        self._failures = 0
        self._exchange_since = None
        self._on_answer()
        if settlements:
            self._settle_since = None
            self._on_settled(settlements, answer, now)
        self._on_started(starts, answer)
        if request is not None:
            self._max_claims = min(self._max_claims * 2, _MAX_BATCH)
            self._on_claims(answer.claimed, request, requested_at, now)
        self._measure(now - requested_at, now)
        self._coalesce_until = now + _COALESCING_DELAY if self._should_coalesce else 0.0
        self._low_watermark = int(self._throughput * self._round_trip_time)
        if self._closed:
            self._release_waiting()
        self._pool.wake()
        if not self._has_backlog:
            await asyncio.sleep(0)  # what was brought begins first

    def _should_settle_separately(self, outcomes: int) -> bool:
        """Whether so many outcomes should leave by themselves. Not if the last ones failed: nothing is claimed then.

        It has the store do two things at once, and costs it a tenth more for each job. Where others work too it has
        enough to do at once, and all of them get along better without.
        """
        if self._split_threshold is None or self._has_shared_load:
            return False
        return outcomes >= self._split_threshold and self._settle_since is None

    async def _settle_separately(self, settlements: tuple[Settlement, ...]) -> None:
        """Store outcomes while the loop goes on claiming, and those that have come meanwhile if they are many too."""
        try:
            while settlements:
                self._settle_since = asyncio.get_running_loop().time()
                try:
                    answer = await self._engine.exchange(Exchange(settlements=settlements))
                except asyncio.CancelledError:
                    self._settler.requeue(settlements)
                    raise
                except Exception as error:  # noqa: BLE001 - the worker outlives its store
                    await self._recover(settlements, error)
                    return
                self._settle_since = None
                self._on_answer()
                self._on_settled(settlements, answer, asyncio.get_running_loop().time())
                self._wake_event.set()
                is_large_batch = self._should_settle_separately(len(self._settler))
                settlements = self._settler.take(_MAX_BATCH) if is_large_batch else ()
        finally:
            self._settle_task = None
            self._wake_event.set()

    def _on_settled(self, settlements: tuple[Settlement, ...], answer: Exchanged, now: float) -> None:
        """Let go of outcomes for which the store has answered."""
        if answer.busy:
            settlements = self._settler.defer(settlements, answer.busy, now)
        self._settler.confirm(settlements, answer.lost)
        if self._claims_suspects:
            self._is_notified = True  # one that crashed, or was given back, waits again

    def _next_starts(self) -> list[HeldClaim]:
        starts: list[HeldClaim] = []
        capacity = self._free_capacity()
        while self._prefetched and len(starts) < capacity:
            held = self._prefetched.popleft()
            if held.stage is not LOST:
                starts.append(held)
        return starts

    def _next_request(self, starting: int) -> ClaimRequest | None:
        if not self._may_claim:
            return None
        if self._claims_suspects:
            return self._next_suspect_request()
        slots = min(max(self._pool.free - starting, 0), self._max_claims)
        prefetch_started = prefetch_claimed = 0
        if self._run_duration < _QUICK_RUN:
            prefetch_started = min(max(self._free_capacity() - starting, 0), self._max_claims) - slots
        else:
            expected = max(self._expected_finishes() - len(self._prefetched), 0)
            prefetch_claimed = min(expected, self._max_claims - slots)
        if not slots + prefetch_started + prefetch_claimed:
            return None
        return ClaimRequest(
            worker_id=self._worker_id,
            queues=self._queues,
            slots=slots,
            prefetch_started=prefetch_started,
            prefetch_claimed=prefetch_claimed,
            lease=self._lease,
            gives_way=self._gives_way_until > 0.0 and self._gives_way,
        )

    def _next_suspect_request(self) -> ClaimRequest | None:
        if self._pool.free <= 0:
            return None
        return ClaimRequest(worker_id=self._worker_id, queues=self._queues, slots=1, lease=self._lease, alone=True)

    def _on_started(self, starts: list[HeldClaim], answer: Exchanged) -> None:
        for held in starts:
            if held.claim.token in answer.busy:
                self._prefetched.append(held)
            elif held.claim.token in answer.lost:
                self._inflight.remove(held.claim.token)
                log.info("claim lost before its start", extra={"job_id": held.claim.ref.id})
            else:
                held.claim = replace(held.claim, started=True, attempts=held.claim.attempts + 1)
                self._pool.put(held)

    def _on_claims(self, claimed: Claims, request: ClaimRequest, requested_at: float, now: float) -> None:
        for held in self._inflight.add_all(claimed.claims, requested_at):
            (self._pool.waiting if held.claim.started else self._prefetched).append(held)
        self._on_claimed(claimed)
        self._found_nothing = not claimed.claims and claimed.retry_after is None
        if len(claimed.claims) >= _size(request):
            self._has_backlog = True
        if claimed.claims:
            self._has_shared_load = claimed.is_shared_load
            self._wake_interval = 0.0
        else:
            # Every change in the store is signalled, and most are none of our business.
            self._wake_interval = min(max(self._wake_interval * 2, self._min_wake_interval), self._max_wake_interval)
        self._wake_not_before = now + self._wake_interval
        retry_after = self._poll if claimed.retry_after is None else max(claimed.retry_after, _MIN_WAKE_INTERVAL)
        self._poll_at = now + min(retry_after, self._poll) + (_HEAD_START if request.gives_way else 0.0)

    def _measure(self, round_trip_time: float, now: float) -> None:
        """Learn how long a round trip takes, how long a run does, and how many end in a second of work."""
        self._round_trip_time += (round_trip_time - self._round_trip_time) * (
            _SMOOTHING if self._round_trip_time else 1
        )
        busy_seconds = self._pool.busy_seconds(now)
        finished, seconds = self._pool.finished - self._measured_finished, busy_seconds - self._measured_busy_seconds
        if seconds <= 0:
            return
        self._throughput += (finished / seconds - self._throughput) * (_SMOOTHING if self._throughput else 1)
        if finished:
            duration = (self._pool.run_seconds - self._measured_run_seconds) / finished
            self._run_duration += (duration - self._run_duration) * (_SMOOTHING if self._run_duration else 1)
        self._measured_finished, self._measured_busy_seconds, self._measured_run_seconds = (
            self._pool.finished,
            busy_seconds,
            self._pool.run_seconds,
        )

    def _release_waiting(self) -> None:
        """Release all that has not begun, for others to take."""
        for claims in (self._pool.waiting, self._prefetched):
            while claims:
                self._release(claims.popleft())

    def _release_overflow(self) -> None:
        """Release what was claimed ahead of slots that did not turn up; who has a slot coming keeps waiting."""
        while self._prefetched:
            self._release(self._prefetched.popleft())
        while self._pool.free < 0 and self._pool.waiting:
            self._release(self._pool.waiting.pop())

    def _release(self, held: HeldClaim) -> None:
        if held.stage is not LOST:
            self._settler.add(held, Release())

    async def _recover(self, settlements: tuple[Settlement, ...], error: Exception) -> None:
        """Lose nothing when an exchange fails, and leave the store in peace for a while."""
        self._failures += 1
        log_failure("claimer", error, self._failures)
        self._has_backlog = True
        if isinstance(error, StoreUnavailable) or not settlements:
            self._settler.requeue(settlements)
        else:
            try:
                await self._settler.settle_one_by_one(self._engine, settlements)
                self._settle_since = None
            except StoreUnavailable as unavailable:
                log_failure("settler", unavailable, self._failures)
        self._retry_at = asyncio.get_running_loop().time() + STORE_RETRY_BACKOFF.delay(self._failures).total_seconds()


def _size(request: ClaimRequest) -> int:
    """Return how many jobs a request asks for."""
    return request.slots + request.prefetch_started + request.prefetch_claimed
