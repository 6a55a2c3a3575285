"""How late delayed jobs start where nothing else is done: from when each is due to the handler's first line."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta
from typing import Final

from onward.bench.environment import Environment
from onward.bench.handlers import Handler, make_producer, task_of
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import ReportProgress, percentile
from onward.bench.verification import is_verified, wait_until_finished
from onward.bench.workers import WorkerProcesses

_MIN_DELAY: Final = 0.2
_MAX_DELAY: Final = 1.5
"""Seconds from the enqueue until jobs are due."""
_STEP: Final = 0.6180339887
"""By the golden section, any number of moments are spread evenly, and each job comes due before some that came first:
whoever waits for the next one must learn of it."""
_CLOCK_TOLERANCE: Final = 0.001
"""Seconds by which the store's clock and ours may differ over so short a time: a job that starts earlier was early."""


def due(
    environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, concurrency: int
) -> Report:
    """Enqueue jobs with delays, and see when an idle worker in another process starts each."""
    medians: list[float] = []
    most: list[float] = []
    worst: list[float] = []
    baseline: list[float] = []
    verified = True
    for number in range(1, rounds + 1):
        url = environment.fresh()
        with WorkerProcesses(url, concurrency=concurrency) as workers:
            asked = run_isolated(_enqueue_delayed, url, jobs)
        late = [workers.started[n][0] - moment for n, moment in enumerate(asked) if n in workers.started]
        verified &= (
            len(workers.ran) == jobs and is_verified(url, workers.ran) and min(late, default=0) > -_CLOCK_TOLERANCE
        )
        environment.remove(url)
        medians.append(percentile(late, 50))
        most.append(percentile(late, 99))
        worst.append(percentile(late, 100))
        report_progress(f"round {number} of {rounds}: {_format(late)}")
        late = run_isolated(_run_timers, jobs)
        baseline.append(percentile(late, 99))
        report_progress(f"round {number} of {rounds}: raw {_format(late)}")
    p99 = statistics.median(most) * 1e3
    return Report(
        engine=environment.engine,
        scenario="due",
        jobs=jobs,
        onward=p99,
        raw=statistics.median(baseline) * 1e3,
        unit="ms",
        verified=verified,
        against="as many timers of asyncio, in a process that has nothing else to do",
        rounds=rounds,
        more={"p50_ms": statistics.median(medians) * 1e3, "p99_ms": p99, "worst_ms": max(worst) * 1e3},
    )


def _delays(jobs: int) -> list[float]:
    return [_MIN_DELAY + (_MAX_DELAY - _MIN_DELAY) * (number * _STEP % 1) for number in range(jobs)]


def _enqueue_delayed(url: str, jobs: int) -> list[float]:
    """Enqueue jobs one after the other; answer when each is due, counted from before its enqueue."""

    async def run() -> list[float]:
        moments: list[float] = []
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            for number, delay in enumerate(_delays(jobs)):
                moments.append(time.monotonic() + delay)
                await task.using(delay=timedelta(seconds=delay)).enqueue(n=number)
            await asyncio.sleep(max(moments) - time.monotonic())  # so long, nobody asks the store anything
            await wait_until_finished(app, jobs, max_wait=30)
        return moments

    return asyncio.run(run())


def _run_timers(jobs: int) -> list[float]:
    """Have the event loop call at the same moments; answer how late it does."""

    async def wait(delay: float) -> float:
        moment = time.monotonic() + delay
        await asyncio.sleep(delay)
        return time.monotonic() - moment

    async def run() -> list[float]:
        return await asyncio.gather(*map(wait, _delays(jobs)))

    return asyncio.run(run())


def _format(late: list[float]) -> str:
    p50, p99, worst = (percentile(late, percent) * 1e3 for percent in (50, 99, 100))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {worst:.2f} ms late"
