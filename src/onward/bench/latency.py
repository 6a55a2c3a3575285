"""How long a job waits for an idle worker in another process: from before the enqueue to the handler's first line."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

from onward.bench.environment import Ground
from onward.bench.handlers import Handler, make_producer, task_of
from onward.bench.isolated import apart
from onward.bench.report import Report
from onward.bench.statistics import Tell, percentile
from onward.bench.verification import all_finished, is_accounted_for
from onward.bench.workers import Crew

_GAP: Final = 0.020
"""Seconds between two jobs: long enough for the worker to be idle again."""
_WARM_UP: Final = 10
"""Jobs at the beginning that do not count."""


def latency(ground: Ground, *, jobs: int, rounds: int, tell: Tell, concurrency: int) -> Report:
    """Enqueue a job every 20 ms, and see when another process starts it."""
    halves: list[float] = []
    worst: list[float] = []
    bare: list[float] = []
    bare_worst: list[float] = []
    verified = True
    for number in range(1, rounds + 1):
        url = ground.fresh()
        with Crew(url, concurrency=concurrency) as crew:
            sent = apart(_send, url, jobs)
        waits = [crew.started[n][0] - moment for n, moment in enumerate(sent) if n in crew.started]
        waits = waits[_WARM_UP:] or waits
        verified &= len(crew.ran) == jobs and is_accounted_for(url, crew.ran)
        ground.remove(url)
        halves.append(percentile(waits, 50))
        worst.append(percentile(waits, 99))
        tell(f"round {number} of {rounds}: p50 {halves[-1] * 1e3:.2f} ms, p99 {worst[-1] * 1e3:.2f} ms")
        waits = ground.bare.pick_up(jobs, _GAP)
        waits = waits[_WARM_UP:] or waits
        bare.append(percentile(waits, 50))
        bare_worst.append(percentile(waits, 99))
        tell(f"round {number} of {rounds}: raw p50 {bare[-1] * 1e3:.2f} ms, p99 {bare_worst[-1] * 1e3:.2f} ms")
    p50, p99 = statistics.median(halves) * 1e3, statistics.median(worst) * 1e3
    return Report(
        engine=ground.engine,
        scenario="latency",
        jobs=jobs,
        onward=p50,
        raw=statistics.median(bare) * 1e3,
        unit="ms",
        verified=verified,
        against=ground.bare.pickup,
        rounds=rounds,
        more={"p50_ms": p50, "p99_ms": p99, "raw_p99_ms": statistics.median(bare_worst) * 1e3},
    )


def _send(url: str, jobs: int) -> list[float]:
    """Enqueue jobs at intervals; answer when each was asked for."""

    async def live() -> list[float]:
        sent: list[float] = []
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            due = time.monotonic()
            for number in range(jobs):
                due += _GAP
                await asyncio.sleep(max(due - time.monotonic(), 0))
                sent.append(time.monotonic())
                await task.enqueue(n=number)
            await all_finished(app, jobs, within=30)
        return sent

    return asyncio.run(live())
