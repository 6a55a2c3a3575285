"""The hands of a worker: long-lived tasks that take claims from one line and run them, one after another each.

A task per job would cost more than most jobs do. A hand runs quick handlers inline, hundreds in a row, and is a task of
its own all the same, so that timeouts and task groups inside a handler mean what they should. While it runs one job the
next hand is woken for the next job in line: a slow handler holds up nothing but its own hand.

A handler that leaves a context variable changed gets its hand replaced, so that nothing leaks into the next job.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from onward.engine.values import Claim, Token
from onward.lifecycle import Failure, Outcome, Raised, Release, Result, decide
from onward.worker.inflight import LOST, RUNNING, HeldClaim

log = logging.getLogger("onward.worker")

_TURN: Final = 0.002
"""Seconds for which hands may keep the loop from coming round: outcomes leave and answers arrive between turns."""
_TOGETHER: Final = 16
"""Hands woken at once where handlers wait for something: each round of the loop costs as much as a few that are woken
for nothing. Where they do not, one hand does the work of all, and one more is enough to go on if it is held up."""


class Runs(Protocol):
    """Runs one claim, and says how it ended."""

    async def run(self, claim: Claim, hand: asyncio.Task[None] | None) -> Result | None:
        """Run the claim's handler in this hand, the task that calls this; None: the handler has settled it."""
        ...

    def cancel(self, token: Token) -> bool:
        """Stop the handler of a claim, as far as it can be stopped; False: it does not run."""
        ...


class Pool:
    """As many hands as jobs may run at once, and the line of claims before them."""

    def __init__(self, runner: Runs, *, size: int, settle: Callable[[HeldClaim, Outcome | None], None]) -> None:
        self.size = size
        self.on_rest: Callable[[], None] = lambda: None
        """Called when a hand finds nothing in line."""
        self.line: deque[HeldClaim] = deque()
        """Started in the store, and waiting for a hand: empty but for moments."""
        self.busy = 0
        self.finished = 0
        """Runs ended since the beginning."""
        self.spent = 0.0
        """Seconds that those runs took, all together."""
        self._worked = 0.0
        self._runner = runner
        self._context = contextvars.copy_context()
        self._settle = settle
        self._hands: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = 0
        """Hands that have been woken and have not looked at the line yet."""
        self._unborn: set[asyncio.Task[None]] = set()
        """Of these: those that have not begun."""
        self._turn = 0.0
        """When the loop last came round, by its own clock."""
        self._turning = False
        self._turns = 0
        """How often the loop has come round while there was work."""
        self._together = _TOGETHER
        self._closed = False
        self._working_since: float | None = None

    @property
    def free(self) -> int:
        """How many more claims could begin at once; negative: so many wait for a hand."""
        return self.size - self.busy - len(self.line)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.busy and not self.line

    def put(self, held: HeldClaim) -> None:
        """Line a claim up. Call :meth:`wake` when all are in line."""
        self.line.append(held)

    def wake(self) -> None:
        """Have the line looked at."""
        wanted = min(len(self.line), self._together)
        while self._waking < wanted:
            if self._idle:
                waiter = self._idle.pop()
                if waiter.done():
                    continue
                waiter.set_result(None)
            elif len(self._hands) < self.size:
                loop = asyncio.get_running_loop()
                hand = loop.create_task(self._work(), name="onward-hand", context=self._context.copy())
                self._hands.add(hand)
                self._unborn.add(hand)
                hand.add_done_callback(self._retire)
            else:
                return
            self._waking += 1

    def time_worked(self, now: float) -> float:
        """Say for how many seconds at least one hand has been at work, up to now."""
        return self._worked + (now - self._working_since if self._working_since is not None else 0.0)

    async def close(self) -> None:
        """Let the hands go, and wait for them. What they still run is cancelled, and settled as nobody's fault."""
        if self._closed:
            return
        self._closed = True
        for hand in self._hands:
            hand.cancel()
        if self._hands:
            await asyncio.wait(self._hands)

    @property
    def stubborn(self) -> int:
        """How many hands have been let go and will not stop."""
        return len(self._hands) if self._closed else 0

    def _retire(self, hand: asyncio.Task[None]) -> None:
        self._hands.discard(hand)
        if hand in self._unborn:  # cancelled before it began
            self._unborn.discard(hand)
            self._waking -= 1
        if not hand.cancelled() and (error := hand.exception()) is not None:
            log.critical("a hand died", exc_info=error)
        if not self._closed:
            self.wake()

    def _come_round(self) -> None:
        self._turning = False
        self._turns += 1
        self._turn = asyncio.get_running_loop().time()

    async def _work(self) -> None:
        loop, hand = asyncio.get_running_loop(), asyncio.current_task()
        line, decided, settle, run, clock = self.line, decide, self._settle, self._runner.run, loop.time
        pristine = contextvars.copy_context()
        if hand is not None:
            self._unborn.discard(hand)
        while True:
            self._waking -= 1
            now = clock()
            while line:
                held = line.popleft()
                if held.stage is LOST:
                    continue
                claim = held.claim
                if claim.start_within is not None and now - held.requested_at > claim.start_within:
                    settle(held, Release())
                    continue
                if line and not self._waking:
                    self.wake()
                if not self._turning:
                    self._turning = True
                    self._turn = now
                    loop.call_soon(self._come_round)
                if self._working_since is None:
                    self._working_since = now
                held.stage = RUNNING
                self.busy += 1
                turns = self._turns
                result: Result | None
                try:
                    result = await run(claim, hand)
                except asyncio.CancelledError as error:
                    if hand is not None and hand.cancelling():
                        settle(held, Release())
                        raise
                    result = Raised(Failure("CancelledError", str(error) or "the handler was cancelled from within"))
                except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler must not end the worker
                    result = Raised(Failure(type(error).__qualname__, str(error)))
                finally:
                    self.busy -= 1
                begun, now = now, clock()
                self._together = 1 if turns == self._turns else _TOGETHER
                self.finished += 1
                held.took = took = now - begun
                self.spent += took
                settle(held, None if result is None else decided(claim, result))
                if contextvars.copy_context() != pristine:
                    self._note_rest(now)
                    return
                if now - self._turn > _TURN and line:
                    await asyncio.sleep(0)
                    now = clock()
            self._note_rest(now)
            if self._closed:
                return  # the handler has kept the cancellation to itself
            self.on_rest()
            waiter = loop.create_future()
            self._idle.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # A run that was stopped as it ended may stop its hand only now. If the hand had been woken, nobody else
                # would be: the line would wait for one that never comes.
                if not waiter.cancelled():
                    self._waking -= 1
                raise

    def _note_rest(self, now: float) -> None:
        """Stop the watch when the last hand comes to rest."""
        if not self.busy and self._working_since is not None:
            self._worked += now - self._working_since
            self._working_since = None
