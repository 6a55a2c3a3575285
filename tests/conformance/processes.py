"""What other processes do in a race: each opens its own handle on the store, by its address, on the real clock.

A :class:`ProcessGroup` starts them, hands each a pipe, and ends only them. They are started afresh (``spawn``), never
forked, so that they share nothing with the test but the store.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self, TypeVar

from onward.engine.checked import CheckedEngine
from onward.engine.values import ClaimRequest, Settlement, Term
from onward.lifecycle import MAX_CRASHES, Complete
from tests.conformance.cases import CASE_OF, EngineCase
from tests.conformance.driver import LEASE

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds after which a process that should have answered is given up; never reached where all is well."""

Role = Callable[[CheckedEngine, Connection], Awaitable[None]]


def play(role: Role, case_name: str, address: str, pipe: Connection) -> None:
    """Run a role on a handle of one's own. The first thing said is that one is ready, the first heard is to begin."""

    async def act() -> None:
        engine = CASE_OF[case_name].attach(address)
        pipe.send("ready")
        pipe.recv()
        try:
            await role(engine, pipe)
        finally:
            await engine.close()

    asyncio.run(act())


class Member:
    """One process of a crew, seen from the test."""

    def __init__(self, process: SpawnProcess, pipe: Connection) -> None:
        self.process = process
        self._pipe = pipe

    def say(self, word: object) -> None:
        """Tell the process something."""
        self._pipe.send(word)

    def hear(self) -> Any:
        """Wait for what the process has to say."""
        assert self._pipe.poll(DEADLINE), "the process does not answer"
        return self._pipe.recv()

    def stop(self) -> None:
        """Stop the process in its tracks, and wait until the kernel says that it stands."""
        pid = self._pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let a stopped process go on."""
        os.kill(self._pid, signal.SIGCONT)

    @property
    def _pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        self._pipe.close()


class ProcessGroup:
    """Processes that all begin at once."""

    def __init__(self, case: EngineCase, address: str) -> None:
        self._case = case
        self._address = address
        self._members: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members:
            member.end()

    def begin(self, role: Role, count: int) -> list[Member]:
        """Start processes in a role, and let them begin when all are ready."""
        context = multiprocessing.get_context("spawn")
        started = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=play, args=(role, self._case.name, self._address, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append(Member(process, ours))
        self._members += started
        for member in started:
            assert member.hear() == "ready"
        for member in started:
            member.say("begin")
        return started


async def eventually(ask: Callable[[], Awaitable[T | None]]) -> T:
    """Ask until there is an answer. For what other processes and real leases bring about, and nothing else."""
    deadline = time.monotonic() + DEADLINE
    while (answer := await ask()) is None:
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)
    return answer


# Roles ----------------------------------------------------------------------------------------------------------------


async def migrate(engine: CheckedEngine, pipe: Connection) -> None:
    """Open the store for the first time, and say what schema it has then."""
    await engine.open()
    pipe.send((await engine.check()).schema)


async def drain(engine: CheckedEngine, pipe: Connection) -> None:
    """Claim and complete until nothing is left, and say which claims were had."""
    await engine.open()
    worker_id = f"worker-{os.getpid()}"
    had: list[tuple[str, object]] = []
    while claims := (await engine.claim(ClaimRequest(worker_id=worker_id, slots=7))).claims:
        had += [(claim.ref.id, claim.token) for claim in claims]
        assert not await engine.settle([Settlement(claim, Complete()) for claim in claims])
    pipe.send(had)


async def lead(engine: CheckedEngine, pipe: Connection) -> None:
    """Become leader, say so, and do a leader's work when told to, with the term of then."""
    await engine.open()
    lease = pipe.recv()
    term = await engine.elect("stopped-leader", lease=lease)
    pipe.send(term)
    assert isinstance(term, Term)
    pipe.recv()
    batches = (
        await engine.promote(term),
        await engine.rescue(term, lease=LEASE, max_crashes=MAX_CRASHES),
        await engine.prune(term),
    )
    pipe.send([batch.changed for batch in batches])
    pipe.send(await engine.elect("stopped-leader", lease=lease, current_term=term))
