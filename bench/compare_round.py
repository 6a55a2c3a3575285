"""One round of :mod:`bench.compare`, run by the interpreter of either checkout: scenario, URL, jobs."""

from __future__ import annotations

import sys

from onward.bench import scenarios
from onward.bench.handlers import Handler
from onward.bench.isolated import run_isolated
from onward.bench.latency import _enqueue_at_intervals
from onward.bench.statistics import percentile
from onward.bench.workers import WorkerProcesses

WARM_UP = 10


def main(scenario: str, url: str, jobs: int) -> tuple[float, float]:
    """Give jobs a second, or the median latency in seconds; and the processor seconds for each job, or 0."""
    match scenario:
        case "drain":
            run_isolated(scenarios.fill, url, Handler.ASYNC, jobs)
            drained = run_isolated(scenarios.drain, url, jobs, 100)
            assert sorted(drained.ran) == list(range(jobs))
            return drained.measurement.rate, drained.measurement.cpu_per_job
        case "enqueue":
            measured = run_isolated(scenarios.enqueue, url, jobs)
            return measured.rate, measured.cpu_per_job
        case "latency":
            with WorkerProcesses(url, concurrency=100) as workers:
                sent = run_isolated(_enqueue_at_intervals, url, jobs)
            waits = [workers.started[number][0] - moment for number, moment in enumerate(sent)]
            return percentile(waits[WARM_UP:], 50), 0.0
        case _:
            raise ValueError(scenario)


if __name__ == "__main__":
    print(*main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
