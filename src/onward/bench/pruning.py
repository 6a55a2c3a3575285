"""Whether claims suffer while a great many ended jobs are archived, a part at a time, by the worker that leads."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from onward.app import App
from onward.bench import scenarios
from onward.bench.environment import Environment
from onward.bench.handlers import QUEUE, Handler
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import Measurement, ReportProgress, run_interleaved
from onward.core import core_of
from onward.engine.values import Retention
from onward.lifecycle import JobStatus


class _Store:
    """One store through all rounds, in which many jobs have ended."""

    def __init__(self, environment: Environment, jobs: int, concurrency: int) -> None:
        self.url = environment.fresh()
        self.ran = 0
        self.run(jobs, concurrency)

    def run(self, jobs: int, concurrency: int) -> Measurement:
        run_isolated(scenarios.fill, self.url, Handler.ASYNC, jobs, first=self.ran)
        drained = run_isolated(scenarios.drain, self.url, jobs, concurrency)
        self.ran += len(set(drained.ran))
        return drained.measurement


def archive_immediately(url: str) -> None:
    """Have ended jobs archived as soon as somebody leads."""

    async def run() -> None:
        async with App(url) as app:
            await app.queues.configure(QUEUE, retention=Retention(completed=timedelta(0)))

    asyncio.run(run())


def count_jobs(url: str) -> tuple[int, int]:
    """Count the ended jobs that are kept, and those that are archived."""

    async def run() -> tuple[int, int]:
        async with App(url) as app:
            kept, archived = await app.jobs.count(), await app.archive.count()
            return kept.get(JobStatus.COMPLETED, 0), archived.get(JobStatus.COMPLETED, 0)

    return asyncio.run(run())


def archive_all(url: str) -> Measurement:
    """Lead, and archive until nothing is left to be."""

    async def run() -> Measurement:
        async with App(url) as app:
            archived, began, cpu = 0, time.monotonic(), time.process_time()
            term = await core_of(app).engine.elect("bench", lease=timedelta(minutes=30))
            while term is not None and (batch := await core_of(app).engine.prune(term)).changed:
                archived += batch.changed
            measurement = Measurement(archived, time.monotonic() - began, time.process_time() - cpu)
            if term is not None:
                await core_of(app).engine.resign(term)
            return measurement

    return asyncio.run(run())


def prune(
    environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, concurrency: int, sample: int
) -> Report:
    """Drain ``sample`` jobs where ``jobs`` ended ones are kept, and where their time is over."""
    report_progress(f"running {jobs} jobs twice")
    kept, expired = _Store(environment, jobs, concurrency), _Store(environment, jobs, concurrency)
    archive_immediately(expired.url)
    archived_counts: list[int] = []

    def beside_pruning() -> Measurement:
        before = count_jobs(expired.url)[1]
        measurement = expired.run(sample, concurrency)
        archived_counts.append(count_jobs(expired.url)[1] - before)
        return measurement

    measurements = run_interleaved(
        rounds, {"kept": lambda: kept.run(sample, concurrency), "over": beside_pruning}, report_progress
    )
    rest = run_isolated(archive_all, expired.url)
    # No job is in both places, or in neither. A round in which none went has shown nothing: see ``archived_least``.
    verified = count_jobs(expired.url) == (0, expired.ran) and count_jobs(kept.url) == (kept.ran, 0)
    return Report(
        engine=environment.engine,
        scenario="prune",
        jobs=jobs,
        onward=measurements.rate("over"),
        raw=measurements.rate("kept"),
        unit="jobs/s",
        verified=verified,
        against="the same worker where ended jobs are kept",
        rounds=rounds,
        more={
            "archived_meanwhile": sum(archived_counts) / rounds,
            "archived_least": min(archived_counts),
            "archived_per_second": rest.rate,
            "cpu_us": measurements.cpu_per_job("over") * 1e6,
            "raw_cpu_us": measurements.cpu_per_job("kept") * 1e6,
        },
    )
