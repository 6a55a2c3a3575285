"""What a worker costs that has nothing to do: statements and processor time, once the work is done."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Final

from onward.bench import scenarios
from onward.bench.counting import count_statements
from onward.bench.environment import Ground
from onward.bench.handlers import Handler, make_app
from onward.bench.isolated import apart
from onward.bench.report import Report
from onward.bench.statistics import Tell
from onward.bench.stopwatch import Stopwatch
from onward.bench.verification import all_finished, is_accounted_for

_SETTLE: Final = 0.3
"""The part of the time, before it counts, in which the worker comes to rest."""


@dataclass(frozen=True, slots=True)
class _Idled:
    queries_per_s: float
    cpu_percent: float
    ran: list[int]


def idle(ground: Ground, *, jobs: int, rounds: int, tell: Tell, concurrency: int, seconds: float) -> Report:
    """Run some jobs, then watch the worker wait for more."""
    idled: list[_Idled] = []
    verified = True
    for number in range(1, rounds + 1):
        url = ground.fresh()
        apart(scenarios.fill, url, Handler.ASYNC, jobs)
        idled.append(apart(_wait_for_work, url, jobs, concurrency, seconds))
        verified &= len(idled[-1].ran) == jobs and is_accounted_for(url, idled[-1].ran)
        ground.remove(url)
        tell(
            f"round {number} of {rounds}: {idled[-1].queries_per_s:.1f} statements/s, {idled[-1].cpu_percent:.2f} % CPU"
        )
    cpu = statistics.median(one.cpu_percent for one in idled)
    return Report(
        engine=ground.engine,
        scenario="idle",
        jobs=jobs,
        onward=cpu,
        unit="% of a processor",
        verified=verified,
        against="nothing: an idle store does nothing",
        rounds=rounds,
        more={
            "queries_per_s": statistics.median(one.queries_per_s for one in idled),
            "cpu_percent": cpu,
            "seconds": seconds,
        },
    )


def _wait_for_work(url: str, jobs: int, concurrency: int, seconds: float) -> _Idled:
    statements = count_statements(url)

    async def live() -> _Idled:
        watch = Stopwatch(jobs)
        async with make_app(url, watch) as app, app.worker(concurrency=concurrency):
            await all_finished(app, jobs, within=30)
            await asyncio.sleep(seconds * _SETTLE)
            before, cpu, began = statements[0], time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            asked, used, took = statements[0] - before, time.process_time() - cpu, time.monotonic() - began
        return _Idled(asked / took, used / took * 100, watch.started)

    return asyncio.run(live())
