"""Jobs of a batch beside jobs of none: put in, in bulk, and run."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from onward.bench import scenarios
from onward.bench.environment import Environment
from onward.bench.handlers import Handler, make_producer, task_of
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import Measurement, ReportProgress, run_interleaved
from onward.bench.verification import is_verified

_NAME: Final = "bench"
_FILL_BATCH: Final = 5_000


def enqueue_all(url: str, jobs: int, *, batched: bool) -> Measurement:
    """Enqueue jobs in bulk; as a batch, one job fewer and its callback."""

    async def run() -> Measurement:
        async with make_producer(url) as app:
            task = task_of(app, Handler.ASYNC)
            members = jobs - batched
            batch = app.batch(_NAME, on_finished=task.job(n=members))
            if batched:
                await batch.add(())
            began, cpu = time.monotonic(), time.process_time()
            for first in range(0, members, _FILL_BATCH):
                calls = [{"n": number} for number in range(first, min(first + _FILL_BATCH, members))]
                if batched:
                    await batch.add(task.jobs(calls))
                else:
                    await task.enqueue_many(calls)
            measurement = Measurement(members, time.monotonic() - began, time.process_time() - cpu)
            if batched:
                await batch.seal()
            return measurement

    return asyncio.run(run())


def batch_is_complete(url: str, jobs: int) -> bool:
    """Say whether a batch whose jobs have all been run has counted them all, and finished."""

    async def run() -> bool:
        async with make_producer(url) as app:
            info = await (await app.batches.get(_NAME)).info()
            return info.is_finished and (info.total, info.completed, info.progress) == (jobs - 1, jobs - 1, 100)

    return asyncio.run(run())


def batches(
    environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, concurrency: int
) -> Report:
    """Put jobs in and run them, as a batch and without one."""
    passed = True
    drained: dict[bool, list[float]] = {True: [], False: []}

    def variant(*, batched: bool) -> Measurement:
        nonlocal passed
        url = environment.fresh()
        measurement = run_isolated(enqueue_all, url, jobs, batched=batched)
        run = run_isolated(scenarios.drain, url, jobs, concurrency)
        drained[batched].append(run.measurement.rate)
        passed &= len(run.ran) == jobs and is_verified(url, run.ran) and (not batched or batch_is_complete(url, jobs))
        environment.remove(url)
        return measurement

    variants = {"onward": lambda: variant(batched=True), "raw": lambda: variant(batched=False)}
    measurements = run_interleaved(rounds, variants, report_progress)
    batched, plain = (sorted(drained[kind])[rounds // 2] for kind in (True, False))
    return Report(
        engine=environment.engine,
        scenario="batches",
        jobs=jobs,
        onward=measurements.rate("onward"),
        raw=measurements.rate("raw"),
        unit="jobs/s",
        verified=passed,
        against="Onward's bulk enqueue without a batch",
        rounds=rounds,
        more={"drained": batched, "drained_plain": plain, "of_plain": batched / plain},
    )
