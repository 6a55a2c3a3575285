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
from onward.bench.environment import Environment
from onward.bench.handlers import QUEUE, Handler
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import Measurement, ReportProgress, Variant, run_interleaved
from onward.bench.verification import is_verified
from onward.events import Completed

_EVENT_TIMEOUT: Final = 60.0
"""Seconds until an event that does not come is given up."""


def listen(url: str, jobs: int) -> tuple[int, float]:
    """Hear all events until so many jobs have ended; answer how many have, and for how long the last was under way."""
    ended: set[str] = set()
    late = 0.0

    async def run() -> None:
        nonlocal late
        async with App(url) as app, app.events(QUEUE) as events:
            _barrier.wait()
            async with asyncio.timeout(_EVENT_TIMEOUT):
                async for event in events:
                    if isinstance(event, Completed):
                        ended.add(event.ref.id)
                        if len(ended) == jobs:
                            late = time.time() - event.at.timestamp()
                            return

    with suppress(TimeoutError):  # the number says what is missing
        asyncio.run(run())
    return len(ended), late


def events(
    environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, concurrency: int
) -> Report:
    """Run jobs where nothing is recorded, where everything is, and where somebody listens to it."""
    passed = True
    lateness: list[float] = []

    def drain(url: str) -> Measurement:
        nonlocal passed
        drained = run_isolated(scenarios.drain, url, jobs, concurrency)
        passed &= len(drained.ran) == jobs and is_verified(url, drained.ran)
        return drained.measurement

    def variant(*, recorded: bool = False, with_listener: bool = False) -> Variant:
        def measure() -> Measurement:
            nonlocal passed
            fresh = environment.fresh()
            # As many are kept as there are, or whoever listens might be left behind.
            recording = f"{'&' if '?' in fresh else '?'}events=all&max_events={jobs * 4}"
            url = fresh + recording if recorded or with_listener else fresh
            run_isolated(scenarios.fill, url, Handler.ASYNC, jobs)
            if not with_listener:
                measurement = drain(url)
            else:
                spawn = get_context("spawn")
                barrier = spawn.Barrier(2, timeout=_EVENT_TIMEOUT)
                with ProcessPoolExecutor(1, mp_context=spawn, initializer=_set_barrier, initargs=(barrier,)) as process:
                    listener = process.submit(listen, url, jobs)
                    barrier.wait()
                    measurement = drain(url)
                    ended, late = listener.result()
                passed &= ended == jobs
                lateness.append(late)
            environment.remove(fresh)
            return measurement

        return measure

    measurements = run_interleaved(
        rounds,
        {"unrecorded": variant(), "recorded": variant(recorded=True), "with_listener": variant(with_listener=True)},
        report_progress,
    )
    return Report(
        engine=environment.engine,
        scenario="events",
        jobs=jobs,
        onward=measurements.rate("recorded"),
        raw=measurements.rate("unrecorded"),
        unit="jobs/s",
        verified=passed,
        against="the same worker where nothing is recorded",
        rounds=rounds,
        more={
            "with_listener": measurements.rate("with_listener"),
            "of_unrecorded": measurements.rate("with_listener") / measurements.rate("unrecorded"),
            "last_event_ms": max(lateness) * 1e3,
            "cpu_us": measurements.cpu_per_job("recorded") * 1e6,
            "raw_cpu_us": measurements.cpu_per_job("unrecorded") * 1e6,
        },
    )


def _set_barrier(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - a process has one
    _barrier = barrier


_barrier: Barrier
