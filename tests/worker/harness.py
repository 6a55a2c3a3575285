"""What the worker's tests stand on: a loop with virtual time, an engine that can be made to fail, and stand-ins."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from onward.engine.capabilities import NATIVE, Capabilities, Feature
from onward.engine.values import Claim, Claims, Exchange, Exchanged, MaintenanceResult, Term, Token
from onward.job import JobRef
from onward.lifecycle import Result, Returned, SelfCompleted

T = TypeVar("T")

ALL = Capabilities(engine="stand-in", features=dict.fromkeys(Feature, NATIVE), status_aliases={})


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as there is nothing else to do: nobody really waits."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready:
            while self._scheduled and self._scheduled[0]._cancelled:
                heapq.heappop(self._scheduled)._scheduled = False
            if not self._scheduled:
                raise AssertionError("everybody waits, and nothing will ever happen")
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a test's coroutine to its end without waiting for anything."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def advance_until(condition: Callable[[], bool]) -> None:
    """Let virtual time pass until something holds."""
    async with asyncio.timeout(3600):
        while not condition():
            await asyncio.sleep(0.001)


async def eventually(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], *, timeout: float = 20.0
) -> None:
    """Wait for something that another thread or process will bring about; fail if it does not happen at all."""
    async with asyncio.timeout(timeout):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)


def claim(number: int, *, started: bool = True, **more: Any) -> Claim:
    """Make a claim that no store has given."""
    given: dict[str, Any] = {
        "ref": JobRef("default", f"job-{number}"),
        "token": (number, 1),
        "type": "noop",
        "payload": "{}",
        "attempts": 1 if started else 0,
        "started": started,
    }
    return Claim(**(given | more))


class StubEngine:
    """Answers exchanges as the test says, and keeps what it was sent."""

    capabilities = ALL

    def __init__(self, answer: Callable[[Exchange], Exchanged] = lambda _: Exchanged()) -> None:
        self.answer = answer
        self.sent: list[Exchange] = []
        self.settled: list[Any] = []
        self.round_trip = 0.001
        """Seconds a round trip takes."""

    async def exchange(self, exchange: Exchange) -> Exchanged:
        self.sent.append(exchange)
        await asyncio.sleep(self.round_trip)
        answer = self.answer(exchange)
        self.settled.extend(exchange.settlements)
        return answer

    async def settle(self, settlements: Sequence[Any], **_: Any) -> frozenset[Token]:
        answer = await self.exchange(Exchange(settlements=tuple(settlements)))
        return answer.lost

    def schema_script(self) -> None:
        return None

    def describe(self) -> dict[str, str]:
        return {"engine": "stand-in"}


def answer_with(*claims: Claim, **more: Any) -> Exchanged:
    """Answer an exchange with claims."""
    return Exchanged(claimed=Claims(claims=claims, **more))


class StubRunner:
    """Runs claims as the test says: by default each returns at once."""

    def __init__(self, handler: Callable[[Claim], Awaitable[Result | SelfCompleted]] | None = None) -> None:
        self._handler = handler
        self.started: list[Claim] = []
        self.running = 0
        self.max_running = 0
        """The most that ever ran at once."""
        self.cancelled: list[Token] = []

    async def run(self, claim: Claim, slot: asyncio.Task[None] | None) -> Result | SelfCompleted:
        self.started.append(claim)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            return Returned() if self._handler is None else await self._handler(claim)
        finally:
            self.running -= 1

    def cancel(self, token: Token) -> bool:
        self.cancelled.append(token)
        return True


class StubMaintenance:
    """A store in which somebody leads."""

    def __init__(self) -> None:
        self.term: Term | None = None
        self.until = 0.0
        self.number = 0
        self.elections: list[tuple[str, Term | None]] = []
        self.resigned: list[Term] = []
        self.reply_delay = 0.0

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        loop = asyncio.get_running_loop()
        self.elections.append((candidate, current_term))
        granted_at = loop.time()
        if self.term is not None and granted_at < self.until and self.term != current_term:
            await asyncio.sleep(self.reply_delay)
            return None
        if self.term is None or self.term != current_term or granted_at >= self.until:
            self.number += 1
            self.term = Term(self.number, candidate, datetime(2030, 1, 1, tzinfo=UTC))
        self.until = granted_at + lease.total_seconds()
        term = self.term
        await asyncio.sleep(self.reply_delay)
        return term

    async def resign(self, term: Term) -> None:
        self.resigned.append(term)
        if term == self.term:
            self.term = None

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        raise NotImplementedError

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:
        raise NotImplementedError

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        raise NotImplementedError
