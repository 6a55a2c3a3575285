"""What a worker costs that has nothing to do: statements and processor time, once the work is done."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Final

from onward.bench import scenarios
from onward.bench.counting import count_statements
from onward.bench.environment import Environment
from onward.bench.handlers import Handler, make_app
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import ReportProgress
from onward.bench.stopwatch import Stopwatch
from onward.bench.verification import is_verified, wait_until_finished

_SETTLE_FRACTION: Final = 0.3
"""The part of the time, before it counts, in which the worker comes to rest."""


@dataclass(frozen=True, slots=True)
class _IdleSample:
    queries_per_s: float
    cpu_percent: float
    ran: list[int]


def idle(
    environment: Environment,
    *,
    jobs: int,
    rounds: int,
    report_progress: ReportProgress,
    concurrency: int,
    seconds: float,
) -> Report:
    """Run some jobs, then watch the worker wait for more."""
    samples: list[_IdleSample] = []
    verified = True
    for number in range(1, rounds + 1):
        url = environment.fresh()
        run_isolated(scenarios.fill, url, Handler.ASYNC, jobs)
        samples.append(run_isolated(_wait_for_work, url, jobs, concurrency, seconds))
        verified &= len(samples[-1].ran) == jobs and is_verified(url, samples[-1].ran)
        environment.remove(url)
        report_progress(
            f"round {number} of {rounds}: {samples[-1].queries_per_s:.1f} statements/s, "
            f"{samples[-1].cpu_percent:.2f} % CPU"
        )
    cpu = statistics.median(one.cpu_percent for one in samples)
    return Report(
        engine=environment.engine,
        scenario="idle",
        jobs=jobs,
        onward=cpu,
        unit="% of a processor",
        verified=verified,
        against="nothing: an idle store does nothing",
        rounds=rounds,
        more={
            "queries_per_s": statistics.median(one.queries_per_s for one in samples),
            "cpu_percent": cpu,
            "seconds": seconds,
        },
    )


def _wait_for_work(url: str, jobs: int, concurrency: int, seconds: float) -> _IdleSample:
    statements = count_statements(url)

    async def run() -> _IdleSample:
        watch = Stopwatch(jobs)
        async with make_app(url, watch) as app, app.worker(concurrency=concurrency):
            await wait_until_finished(app, jobs, max_wait=30)
            await asyncio.sleep(seconds * _SETTLE_FRACTION)
            before, cpu, began = statements[0], time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            asked, used, took = statements[0] - before, time.process_time() - cpu, time.monotonic() - began
        return _IdleSample(asked / took, used / took * 100, watch.started)

    return asyncio.run(run())
