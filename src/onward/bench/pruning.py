"""Whether claims suffer while a great many ended jobs are archived, a part at a time, by the worker that leads."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from onward.app import App
from onward.bench import scenarios
from onward.bench.environment import Ground
from onward.bench.handlers import QUEUE, Handler
from onward.bench.isolated import apart
from onward.bench.report import Report
from onward.bench.statistics import Pace, Tell, take_turns
from onward.engine.values import Retention
from onward.lifecycle import State


class _Store:
    """One store through all rounds, in which many jobs have ended."""

    def __init__(self, ground: Ground, jobs: int, concurrency: int) -> None:
        self.url = ground.fresh()
        self.ran = 0
        self.run(jobs, concurrency)

    def run(self, jobs: int, concurrency: int) -> Pace:
        apart(scenarios.fill, self.url, Handler.ASYNC, jobs, first=self.ran)
        drained = apart(scenarios.drain, self.url, jobs, concurrency)
        self.ran += len(set(drained.ran))
        return drained.pace


def keep_nothing(url: str) -> None:
    """Have ended jobs archived as soon as somebody leads."""

    async def live() -> None:
        async with App(url) as app:
            await app.queues.configure(QUEUE, retention=Retention(completed=timedelta(0)))

    asyncio.run(live())


def look(url: str) -> tuple[int, int]:
    """Count the ended jobs that are kept, and those that are archived."""

    async def live() -> tuple[int, int]:
        async with App(url) as app:
            kept, archived = await app.jobs.count(), await app.archive.count()
            return kept.get(State.COMPLETED, 0), archived.get(State.COMPLETED, 0)

    return asyncio.run(live())


def archive_the_rest(url: str) -> Pace:
    """Lead, and archive until nothing is left to be."""

    async def live() -> Pace:
        async with App(url) as app:
            archived, began, cpu = 0, time.monotonic(), time.process_time()
            term = await app.engine.elect("bench", lease=timedelta(minutes=30))
            while term is not None and (batch := await app.engine.prune(term)).changed:
                archived += batch.changed
            pace = Pace(archived, time.monotonic() - began, time.process_time() - cpu)
            if term is not None:
                await app.engine.resign(term)
            return pace

    return asyncio.run(live())


def prune(ground: Ground, *, jobs: int, rounds: int, tell: Tell, concurrency: int, sample: int) -> Report:
    """Drain ``sample`` jobs where ``jobs`` ended ones are kept, and where their time is over."""
    tell(f"running {jobs} jobs twice")
    kept, over = _Store(ground, jobs, concurrency), _Store(ground, jobs, concurrency)
    keep_nothing(over.url)
    went: list[int] = []

    def beside_pruning() -> Pace:
        before = look(over.url)[1]
        pace = over.run(sample, concurrency)
        went.append(look(over.url)[1] - before)
        return pace

    paces = take_turns(rounds, {"kept": lambda: kept.run(sample, concurrency), "over": beside_pruning}, tell)
    rest = apart(archive_the_rest, over.url)
    # No job is in both places, or in neither. A round in which none went has shown nothing: see ``archived_least``.
    verified = look(over.url) == (0, over.ran) and look(kept.url) == (kept.ran, 0)
    return Report(
        engine=ground.engine,
        scenario="prune",
        jobs=jobs,
        onward=paces.rate("over"),
        raw=paces.rate("kept"),
        unit="jobs/s",
        verified=verified,
        against="the same worker where ended jobs are kept",
        rounds=rounds,
        more={
            "archived_meanwhile": sum(went) / rounds,
            "archived_least": min(went),
            "archived_per_second": rest.rate,
            "cpu_us": paces.cpu_per_job("over") * 1e6,
            "raw_cpu_us": paces.cpu_per_job("kept") * 1e6,
        },
    )
