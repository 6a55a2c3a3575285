"""Whether a worker is slower, or larger, because much waits: ready jobs, or urgent ones that are not due for long."""

from __future__ import annotations

import statistics

from onward.bench import scenarios
from onward.bench.environment import Environment
from onward.bench.handlers import Handler
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import Measurement, ReportProgress, run_interleaved
from onward.bench.verification import is_verified


class _Store:
    """One store through all rounds, from which each round takes some jobs."""

    def __init__(self, environment: Environment) -> None:
        self.url = environment.fresh()
        self.memory: list[int] = []
        self._ran: list[int] = []
        self._ready = 0
        self._future = 0

    def fill(self, jobs: int, *, future: bool = False) -> None:
        run_isolated(scenarios.fill, self.url, Handler.ASYNC, jobs, first=self._ready + self._future, future=future)
        if future:
            self._future += jobs
        else:
            self._ready += jobs

    def drain(self, jobs: int, concurrency: int) -> Measurement:
        drained = run_isolated(scenarios.drain, self.url, jobs, concurrency)
        self._ran += drained.ran
        self.memory.append(drained.memory)
        return drained.measurement

    def is_verified(self) -> bool:
        waiting = self._ready + self._future - len(self._ran)
        return is_verified(self.url, self._ran, waiting=waiting)

    @property
    def megabytes(self) -> float:
        return statistics.median(self.memory) / 1e6


def backlog(
    environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, concurrency: int, sample: int
) -> Report:
    """Drain ``sample`` jobs where only those wait, where ``jobs`` wait, and where ``jobs`` wait for next year."""
    small, large, future = _Store(environment), _Store(environment), _Store(environment)
    report_progress(f"enqueueing {jobs} jobs twice")
    large.fill(jobs)
    future.fill(jobs, future=True)

    def of_few() -> Measurement:
        small.fill(sample)
        return small.drain(sample, concurrency)

    def of_many() -> Measurement:
        large.fill(sample)
        return large.drain(sample, concurrency)

    def beside_future() -> Measurement:
        future.fill(sample)
        return future.drain(sample, concurrency)

    measurements = run_interleaved(rounds, {"few": of_few, "many": of_many, "future": beside_future}, report_progress)
    few, many = measurements.rate("few"), measurements.rate("many")
    verified = all(store.is_verified() for store in (small, large, future))
    return Report(
        engine=environment.engine,
        scenario="backlog",
        jobs=jobs,
        onward=many,
        raw=few,
        unit="jobs/s",
        verified=verified,
        against=f"the same worker where {sample} wait",
        rounds=rounds,
        more={
            "beside_future": measurements.rate("future"),
            "future_ratio": measurements.rate("future") / few,
            "few_cpu_us": measurements.cpu_per_job("few") * 1e6,
            "many_cpu_us": measurements.cpu_per_job("many") * 1e6,
            "future_cpu_us": measurements.cpu_per_job("future") * 1e6,
            "memory_mb": large.megabytes,
            "few_memory_mb": small.megabytes,
        },
    )
