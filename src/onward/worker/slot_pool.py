"""The slots of a worker: long-lived tasks that take claims from one queue and run them, one after another each.

A task per job would cost more than most jobs do. A slot runs quick handlers inline, hundreds in a row, and is a task of
its own all the same, so that timeouts and task groups inside a handler mean what they should. While it runs one job the
next slot is woken for the next waiting job: a slow handler holds up nothing but its own slot.

A handler that leaves a context variable changed gets its slot replaced, so that nothing leaks into the next job.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from onward.engine.values import Claim, Token
from onward.lifecycle import Failure, Outcome, Raised, Release, Result, SelfCompleted, decide
from onward.worker.inflight import LOST, RUNNING, HeldClaim

log = logging.getLogger("onward.worker")

_YIELD_INTERVAL: Final = 0.002
"""Seconds for which slots may keep the loop from coming round: outcomes leave and answers arrive between turns."""
_MAX_WAKING: Final = 16
"""Slots woken at once where handlers wait for something: each round of the loop costs as much as a few that are woken
for nothing. Where they do not, one slot does the work of all, and one more is enough to go on if it is held up."""


class ClaimRunner(Protocol):
    """Runs one claim, and says how it ended."""

    async def run(self, claim: Claim, slot: asyncio.Task[None] | None) -> Result | SelfCompleted:
        """Run the claim's handler in this slot, the task that calls this; None: the handler has settled it."""
        ...

    def cancel(self, token: Token) -> bool:
        """Stop the handler of a claim, as far as it can be stopped; False: it does not run."""
        ...


class Pool:
    """As many slots as jobs may run at once, and the claims that wait for them."""

    def __init__(
        self, runner: ClaimRunner, *, size: int, settle: Callable[[HeldClaim, Outcome | SelfCompleted], None]
    ) -> None:
        self.size = size
        self.on_idle: Callable[[], None] = lambda: None
        """Called when a slot finds nothing waiting."""
        self.waiting: deque[HeldClaim] = deque()
        """Started in the store, and waiting for a slot: empty but for moments."""
        self.busy = 0
        self.finished = 0
        """Runs ended since the beginning."""
        self.run_seconds = 0.0
        """Seconds that those runs took, all together."""
        self.lease = math.inf
        """Seconds that a claim holds without a heartbeat."""
        self.confirmed_at: Callable[[], float] = lambda: -math.inf
        """Says when, by the loop's clock, the last heartbeat that the store has answered was sent."""
        self._busy_seconds = 0.0
        self._runner = runner
        self._context = contextvars.copy_context()
        self._settle = settle
        self._slots: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = 0
        """Slots that have been woken and have not looked at the waiting claims yet."""
        self._unstarted: set[asyncio.Task[None]] = set()
        """Of these: those that have not begun."""
        self._iteration_at = 0.0
        """When the loop last came round, by its own clock."""
        self._is_iteration_scheduled = False
        self._iterations = 0
        """How often the loop has come round while there was work."""
        self._max_waking = _MAX_WAKING
        self._closed = False
        self._busy_since: float | None = None

    @property
    def free(self) -> int:
        """How many more claims could begin at once; negative: so many wait for a slot."""
        return self.size - self.busy - len(self.waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.busy and not self.waiting

    def put(self, held: HeldClaim) -> None:
        """Add a claim. Call :meth:`wake` when all are added."""
        self.waiting.append(held)

    def wake(self) -> None:
        """Wake slots for the waiting claims."""
        wake_target = min(len(self.waiting), self._max_waking)
        while self._waking < wake_target:
            if self._idle:
                waiter = self._idle.pop()
                if waiter.done():
                    continue
                waiter.set_result(None)
            elif len(self._slots) < self.size:
                loop = asyncio.get_running_loop()
                slot = loop.create_task(self._run_slot(), name="onward-slot", context=self._context.copy())
                self._slots.add(slot)
                self._unstarted.add(slot)
                slot.add_done_callback(self._on_slot_done)
            else:
                return
            self._waking += 1

    def busy_seconds(self, now: float) -> float:
        """Say for how many seconds at least one slot has been at work, up to now."""
        return self._busy_seconds + (now - self._busy_since if self._busy_since is not None else 0.0)

    async def close(self) -> None:
        """Let the slots go, and wait for them. What they still run is cancelled, and settled as nobody's fault."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.cancel()
        if self._slots:
            await asyncio.wait(self._slots)

    @property
    def unstoppable(self) -> int:
        """How many slots have been let go and will not stop."""
        return len(self._slots) if self._closed else 0

    def _on_slot_done(self, slot: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        if slot in self._unstarted:  # cancelled before it began
            self._unstarted.discard(slot)
            self._waking -= 1
        if not slot.cancelled() and (error := slot.exception()) is not None:
            log.critical("slot task died", exc_info=error)
        if not self._closed:
            self.wake()

    def _on_iteration(self) -> None:
        self._is_iteration_scheduled = False
        self._iterations += 1
        self._iteration_at = asyncio.get_running_loop().time()

    async def _run_slot(self) -> None:
        loop, slot = asyncio.get_running_loop(), asyncio.current_task()
        waiting, to_outcome, settle, run, clock = self.waiting, decide, self._settle, self._runner.run, loop.time
        clean_context = contextvars.copy_context()
        if slot is not None:
            self._unstarted.discard(slot)
        while True:
            self._waking -= 1
            now = clock()
            while waiting:
                held = waiting.popleft()
                if held.stage is LOST:
                    continue
                claim = held.claim
                if now - held.requested_at > self.lease and now - self.confirmed_at() > self.lease:
                    # The process was stopped, or kept from its heartbeat: the job may run elsewhere by now.
                    settle(held, Release())
                    continue
                if claim.start_within is not None and now - held.requested_at > claim.start_within:
                    settle(held, Release())
                    continue
                if waiting and not self._waking:
                    self.wake()
                if not self._is_iteration_scheduled:
                    self._is_iteration_scheduled = True
                    self._iteration_at = now
                    loop.call_soon(self._on_iteration)
                if self._busy_since is None:
                    self._busy_since = now
                held.stage = RUNNING
                self.busy += 1
                iterations = self._iterations
                result: Result | SelfCompleted
                try:
                    result = await run(claim, slot)
                except asyncio.CancelledError as error:
                    if slot is not None and slot.cancelling():
                        settle(held, Release())
                        raise
                    result = Raised(Failure("CancelledError", str(error) or "the handler was cancelled from within"))
                except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler must not end the worker
                    result = Raised(Failure(type(error).__qualname__, str(error)))
                finally:
                    self.busy -= 1
                started_at, now = now, clock()
                self._max_waking = 1 if iterations == self._iterations else _MAX_WAKING
                self.finished += 1
                held.run_seconds = run_seconds = now - started_at
                self.run_seconds += run_seconds
                settle(held, result if isinstance(result, SelfCompleted) else to_outcome(claim, result))
                if contextvars.copy_context() != clean_context:
                    self._note_idle(now)
                    return
                if now - self._iteration_at > _YIELD_INTERVAL and waiting:
                    await asyncio.sleep(0)
                    now = clock()
            self._note_idle(now)
            if self._closed:
                return  # the handler has kept the cancellation to itself
            self.on_idle()
            waiter = loop.create_future()
            self._idle.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # A run that was stopped as it ended may stop its slot only now. If the slot had been woken, nobody else
                # would be: the claims would wait for one that never comes.
                if not waiter.cancelled():
                    self._waking -= 1
                raise

    def _note_idle(self, now: float) -> None:
        """Stop the watch when the last slot becomes idle."""
        if not self.busy and self._busy_since is not None:
            self._busy_seconds += now - self._busy_since
            self._busy_since = None
