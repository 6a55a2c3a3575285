"""The short sentences that these tests are written in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from onward.engine.values import Claim, ClaimRequest, GroupBy, JobFilter, Settlement
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.transaction import Transaction
from onward.job import JobRef, NewJob
from onward.lifecycle import Complete

T = TypeVar("T")

EVERY = JobFilter()
REPOSITORY = Path(__file__).parents[3]


def new_job(**fields: Any) -> NewJob:
    """Make a job to be, of which only some fields matter."""
    return NewJob(**{"type": "greet", **fields})


async def add(engine: SQLiteEngine, count: int = 1, **fields: Any) -> list[JobRef]:
    """Enqueue jobs that are all alike."""
    return [answer.ref for answer in await engine.enqueue([new_job(**fields)] * count)]


async def take(engine: SQLiteEngine, *queues: str, slots: int = 1, **fields: Any) -> tuple[Claim, ...]:
    """Claim jobs."""
    request = ClaimRequest(worker_id="worker-1", queues=queues or ("*",), slots=slots, **fields)
    return (await engine.claim(request)).claims


async def complete(engine: SQLiteEngine, *claims: Claim) -> None:
    """Settle claims that must be held."""
    assert not await engine.settle([Settlement(claim, Complete()) for claim in claims])


async def states(engine: SQLiteEngine) -> dict[str, int]:
    """Count the jobs by state."""
    return dict(await engine.count(EVERY, by=GroupBy.STATUS))


async def on_writer(engine: SQLiteEngine, work: Callable[[Transaction], T]) -> T:
    """Do something on the writer's own connection."""
    return await engine._writer.run(work)


class BusyWriter:
    """Keeps the writer busy with a transaction of its own until told to let go, so that requests pile up behind it."""

    def __init__(self, engine: SQLiteEngine) -> None:
        self._engine = engine
        self._began = threading.Event()
        self._released = threading.Event()

    async def __aenter__(self) -> Self:
        def work(transaction: Transaction) -> None:
            self._began.set()
            assert self._released.wait(30)

        self._task = asyncio.create_task(on_writer(self._engine, work))
        await asyncio.to_thread(self._began.wait, 30)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self._task

    def release(self) -> None:
        """Let the writer go on."""
        self._released.set()
