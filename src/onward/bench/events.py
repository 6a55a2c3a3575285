"""What it costs a worker that events are recorded, and that somebody in another process listens to all of them."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Final

from onward.app import App
from onward.bench import scenarios
from onward.bench.environment import Ground
from onward.bench.handlers import QUEUE, Handler
from onward.bench.isolated import apart
from onward.bench.report import Report
from onward.bench.statistics import Pace, Side, Tell, take_turns
from onward.bench.verification import is_accounted_for
from onward.events import JobCompleted

_PATIENCE: Final = 60.0
"""Seconds until an event that does not come is given up."""


def listen(url: str, jobs: int) -> tuple[int, float]:
    """Hear all events until so many jobs have ended; answer how many have, and for how long the last was under way."""
    ended: set[str] = set()
    late = 0.0

    async def live() -> None:
        nonlocal late
        async with App(url) as app, app.events(QUEUE) as events:
            _everybody.wait()
            async with asyncio.timeout(_PATIENCE):
                async for event in events:
                    if isinstance(event, JobCompleted):
                        ended.add(event.ref.id)
                        if len(ended) == jobs:
                            late = time.time() - event.at.timestamp()
                            return

    with suppress(TimeoutError):  # the number says what is missing
        asyncio.run(live())
    return len(ended), late


def events(ground: Ground, *, jobs: int, rounds: int, tell: Tell, concurrency: int) -> Report:
    """Run jobs where nothing is recorded, where everything is, and where somebody listens to it."""
    holds = True
    lateness: list[float] = []

    def drain(url: str) -> Pace:
        nonlocal holds
        drained = apart(scenarios.drain, url, jobs, concurrency)
        holds &= len(drained.ran) == jobs and is_accounted_for(url, drained.ran)
        return drained.pace

    def side(*, recorded: bool = False, heard: bool = False) -> Side:
        def measure() -> Pace:
            nonlocal holds
            fresh = ground.fresh()
            # As many are kept as there are, or whoever listens might be left behind.
            told = f"{'&' if '?' in fresh else '?'}events=all&keep_events={jobs * 4}"
            url = fresh + told if recorded or heard else fresh
            apart(scenarios.fill, url, Handler.ASYNC, jobs)
            if not heard:
                pace = drain(url)
            else:
                spawn = get_context("spawn")
                barrier = spawn.Barrier(2, timeout=_PATIENCE)
                with ProcessPoolExecutor(1, mp_context=spawn, initializer=_meet_at, initargs=(barrier,)) as process:
                    hearing = process.submit(listen, url, jobs)
                    barrier.wait()
                    pace = drain(url)
                    ended, late = hearing.result()
                holds &= ended == jobs
                lateness.append(late)
            ground.remove(fresh)
            return pace

        return measure

    paces = take_turns(rounds, {"silent": side(), "recorded": side(recorded=True), "heard": side(heard=True)}, tell)
    return Report(
        engine=ground.engine,
        scenario="events",
        jobs=jobs,
        onward=paces.rate("recorded"),
        raw=paces.rate("silent"),
        unit="jobs/s",
        verified=holds,
        against="the same worker where nothing is recorded",
        rounds=rounds,
        more={
            "heard": paces.rate("heard"),
            "of_silent": paces.rate("heard") / paces.rate("silent"),
            "last_heard_ms": max(lateness) * 1e3,
            "cpu_us": paces.cpu_per_job("recorded") * 1e6,
            "raw_cpu_us": paces.cpu_per_job("silent") * 1e6,
        },
    )


def _meet_at(barrier: Barrier) -> None:
    global _everybody  # noqa: PLW0603 - a process has one
    _everybody = barrier


_everybody: Barrier
