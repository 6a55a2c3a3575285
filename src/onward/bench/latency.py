"""How long a job waits for an idle worker in another process: from before the enqueue to the handler's first line."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

from onward.bench.environment import Environment
from onward.bench.handlers import Handler, make_producer, task_of
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import ReportProgress, percentile
from onward.bench.verification import is_verified, wait_until_finished
from onward.bench.workers import WorkerProcesses

_INTERVAL: Final = 0.020
"""Seconds between two jobs: long enough for the worker to be idle again."""
_WARM_UP: Final = 10
"""Jobs at the beginning that do not count."""


def latency(
    environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, concurrency: int
) -> Report:
    """Enqueue a job every 20 ms, and see when another process starts it."""
    medians: list[float] = []
    worst: list[float] = []
    baseline: list[float] = []
    baseline_worst: list[float] = []
    verified = True
    for number in range(1, rounds + 1):
        url = environment.fresh()
        with WorkerProcesses(url, concurrency=concurrency) as workers:
            sent = run_isolated(_enqueue_at_intervals, url, jobs)
        waits = [workers.started[n][0] - moment for n, moment in enumerate(sent) if n in workers.started]
        waits = waits[_WARM_UP:] or waits
        verified &= len(workers.ran) == jobs and is_verified(url, workers.ran)
        environment.remove(url)
        medians.append(percentile(waits, 50))
        worst.append(percentile(waits, 99))
        report_progress(f"round {number} of {rounds}: p50 {medians[-1] * 1e3:.2f} ms, p99 {worst[-1] * 1e3:.2f} ms")
        waits = environment.baseline.pickup_times(jobs, _INTERVAL)
        waits = waits[_WARM_UP:] or waits
        baseline.append(percentile(waits, 50))
        baseline_worst.append(percentile(waits, 99))
        report_progress(
            f"round {number} of {rounds}: raw p50 {baseline[-1] * 1e3:.2f} ms, p99 {baseline_worst[-1] * 1e3:.2f} ms"
        )
    p50, p99 = statistics.median(medians) * 1e3, statistics.median(worst) * 1e3
    return Report(
        engine=environment.engine,
        scenario="latency",
        jobs=jobs,
        onward=p50,
        raw=statistics.median(baseline) * 1e3,
        unit="ms",
        verified=verified,
        against=environment.baseline.pickup_description,
        rounds=rounds,
        more={"p50_ms": p50, "p99_ms": p99, "raw_p99_ms": statistics.median(baseline_worst) * 1e3},
    )


def _enqueue_at_intervals(url: str, jobs: int) -> list[float]:
    """Enqueue jobs at intervals; answer when each was asked for."""

    async def run() -> list[float]:
        sent: list[float] = []
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            due = time.monotonic()
            for number in range(jobs):
                due += _INTERVAL
                await asyncio.sleep(max(due - time.monotonic(), 0))
                sent.append(time.monotonic())
                await task.enqueue(n=number)
            await wait_until_finished(app, jobs, max_wait=30)
        return sent

    return asyncio.run(run())
