"""Jobs of a batch beside jobs of none: put in, in bulk, and run."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from onward.bench import scenarios
from onward.bench.environment import Ground
from onward.bench.handlers import Handler, make_producer, task_of
from onward.bench.isolated import apart
from onward.bench.report import Report
from onward.bench.statistics import Pace, Tell, take_turns
from onward.bench.verification import is_accounted_for

_NAME: Final = "bench"
_TOGETHER: Final = 5_000


def put_in(url: str, jobs: int, *, batched: bool) -> Pace:
    """Enqueue jobs in bulk; as a batch, one job fewer and its callback."""

    async def live() -> Pace:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            members = jobs - batched
            batch = app.batch(_NAME, on_finished=task.job(n=members))
            if batched:
                await batch.add(())
            began, cpu = time.monotonic(), time.process_time()
            for first in range(0, members, _TOGETHER):
                calls = [{"n": number} for number in range(first, min(first + _TOGETHER, members))]
                if batched:
                    await batch.add(task.jobs(calls))
                else:
                    await task.enqueue_many(calls)
            pace = Pace(members, time.monotonic() - began, time.process_time() - cpu)
            if batched:
                await batch.seal()
            return pace

    return asyncio.run(live())


def is_exact(url: str, jobs: int) -> bool:
    """Say whether a batch whose jobs have all been run has counted them all, and finished."""

    async def live() -> bool:
        async with make_producer(url) as app:
            info = await (await app.batches.get(_NAME)).info()
            return info.is_finished and (info.total, info.completed, info.progress) == (jobs - 1, jobs - 1, 100)

    return asyncio.run(live())


def batches(ground: Ground, *, jobs: int, rounds: int, tell: Tell, concurrency: int) -> Report:
    """Put jobs in and run them, as a batch and without one."""
    holds = True
    drained: dict[bool, list[float]] = {True: [], False: []}

    def side(*, batched: bool) -> Pace:
        nonlocal holds
        url = ground.fresh()
        pace = apart(put_in, url, jobs, batched=batched)
        run = apart(scenarios.drain, url, jobs, concurrency)
        drained[batched].append(run.pace.rate)
        holds &= len(run.ran) == jobs and is_accounted_for(url, run.ran) and (not batched or is_exact(url, jobs))
        ground.remove(url)
        return pace

    sides = {"onward": lambda: side(batched=True), "raw": lambda: side(batched=False)}
    paces = take_turns(rounds, sides, tell)
    batched, plain = (sorted(drained[kind])[rounds // 2] for kind in (True, False))
    return Report(
        engine=ground.engine,
        scenario="batches",
        jobs=jobs,
        onward=paces.rate("onward"),
        raw=paces.rate("raw"),
        unit="jobs/s",
        verified=holds,
        against="Onward's bulk enqueue without a batch",
        rounds=rounds,
        more={"drained": batched, "drained_plain": plain, "of_plain": batched / plain},
    )
