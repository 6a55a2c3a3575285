"""Whether a worker is slower, or larger, because much waits: ready jobs, or urgent ones that are not due for long."""

from __future__ import annotations

import statistics

from onward.bench import scenarios
from onward.bench.environment import Ground
from onward.bench.handlers import Handler
from onward.bench.isolated import apart
from onward.bench.report import Report
from onward.bench.statistics import Pace, Tell, take_turns
from onward.bench.verification import is_accounted_for


class _Store:
    """One store through all rounds, from which each round takes some jobs."""

    def __init__(self, ground: Ground) -> None:
        self.url = ground.fresh()
        self.memory: list[int] = []
        self._ran: list[int] = []
        self._ready = 0
        self._future = 0

    def fill(self, jobs: int, *, future: bool = False) -> None:
        apart(scenarios.fill, self.url, Handler.ASYNC, jobs, first=self._ready + self._future, future=future)
        if future:
            self._future += jobs
        else:
            self._ready += jobs

    def drain(self, jobs: int, concurrency: int) -> Pace:
        drained = apart(scenarios.drain, self.url, jobs, concurrency)
        self._ran += drained.ran
        self.memory.append(drained.memory)
        return drained.pace

    def is_accounted_for(self) -> bool:
        waiting = self._ready + self._future - len(self._ran)
        return is_accounted_for(self.url, self._ran, waiting=waiting)

    @property
    def megabytes(self) -> float:
        return statistics.median(self.memory) / 1e6


def backlog(ground: Ground, *, jobs: int, rounds: int, tell: Tell, concurrency: int, sample: int) -> Report:
    """Drain ``sample`` jobs where only those wait, where ``jobs`` wait, and where ``jobs`` wait for next year."""
    small, large, future = _Store(ground), _Store(ground), _Store(ground)
    tell(f"enqueueing {jobs} jobs twice")
    large.fill(jobs)
    future.fill(jobs, future=True)

    def of_few() -> Pace:
        small.fill(sample)
        return small.drain(sample, concurrency)

    def of_many() -> Pace:
        large.fill(sample)
        return large.drain(sample, concurrency)

    def beside_future() -> Pace:
        future.fill(sample)
        return future.drain(sample, concurrency)

    paces = take_turns(rounds, {"few": of_few, "many": of_many, "future": beside_future}, tell)
    few, many = paces.rate("few"), paces.rate("many")
    verified = all(store.is_accounted_for() for store in (small, large, future))
    return Report(
        engine=ground.engine,
        scenario="backlog",
        jobs=jobs,
        onward=many,
        raw=few,
        unit="jobs/s",
        verified=verified,
        against=f"the same worker where {sample} wait",
        rounds=rounds,
        more={
            "beside_future": paces.rate("future"),
            "future_ratio": paces.rate("future") / few,
            "few_cpu_us": paces.cpu_per_job("few") * 1e6,
            "many_cpu_us": paces.cpu_per_job("many") * 1e6,
            "future_cpu_us": paces.cpu_per_job("future") * 1e6,
            "memory_mb": large.megabytes,
            "few_memory_mb": small.megabytes,
        },
    )
