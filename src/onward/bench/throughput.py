"""How many jobs a second: in, one by one and in bulk, and out."""

from __future__ import annotations

from onward.bench import scenarios
from onward.bench.environment import Environment
from onward.bench.handlers import SLEEP_SECONDS, Handler
from onward.bench.isolated import run_in_parallel, run_isolated
from onward.bench.report import Report
from onward.bench.statistics import Measurement, Measurements, ReportProgress, Variant, run_interleaved
from onward.bench.verification import is_verified
from onward.bench.workers import WorkerProcesses


class _Verification:
    """Whether all rounds could be accounted for."""

    def __init__(self, environment: Environment, jobs: int) -> None:
        self.passed = True
        self._environment = environment
        self._jobs = jobs

    def check(self, url: str, ran: list[int] | None = None) -> None:
        """Look whether each job of a store was completed once; run them first if that has not been done."""
        if ran is None:
            ran = run_isolated(scenarios.drain, url, self._jobs, 100).ran
        self.passed &= len(ran) == self._jobs and is_verified(url, ran)
        self._environment.remove(url)


def drain(
    environment: Environment,
    *,
    jobs: int,
    rounds: int,
    report_progress: ReportProgress,
    handler: Handler,
    concurrency: int,
    batch: int | None = None,
    processes: int = 1,
) -> Report:
    """Run jobs that are there already: the worker's own start is not counted, storing every outcome is."""
    verification = _Verification(environment, jobs)

    def by_one(handler: Handler) -> Variant:
        def measure() -> Measurement:
            url = environment.fresh()
            run_isolated(scenarios.fill, url, handler, jobs)
            drained = run_isolated(scenarios.drain, url, jobs, concurrency)
            verification.check(url, drained.ran)
            return drained.measurement

        return measure

    def by_several(workers: int) -> Variant:
        def measure() -> Measurement:
            url = environment.fresh()
            run_isolated(scenarios.fill, url, handler, jobs, paused=True)
            with WorkerProcesses(url, workers=workers, concurrency=concurrency) as worker_processes:
                run_isolated(scenarios.resume, url)
                worker_processes.wait_for(jobs)
            verification.check(url, worker_processes.ran)
            return worker_processes.measurement

        return measure

    variants: dict[str, Variant] = {"onward": by_one(handler) if processes == 1 else by_several(processes)}
    if handler is Handler.SLEEP10:
        against = "as many sleeps at once by asyncio alone"
        variants["raw"] = lambda: run_isolated(scenarios.sleep_without_queue, jobs, concurrency, SLEEP_SECONDS)
    else:
        against = f"{environment.baseline.name}, finished rows kept" + (f", {batch} at a time" if batch else "")
        variants["raw"] = lambda: environment.baseline.drain(jobs, batch)
    if handler is Handler.DEF:
        variants["async"] = by_one(Handler.ASYNC)
    if processes > 1:
        variants["one"] = by_several(1)
    measurements = run_interleaved(rounds, variants, report_progress)

    more: dict[str, float | str] = {"handler": handler.value, **_cpu(measurements)}
    if handler is Handler.DEF:
        more |= {
            "async": measurements.rate("async"),
            "of_async": measurements.rate("onward") / measurements.rate("async"),
        }
    if processes > 1:
        more |= {
            "processes": processes,
            "one": measurements.rate("one"),
            "of_one": measurements.rate("onward") / measurements.rate("one"),
        }
    if handler is Handler.SLEEP10:
        # From the first start to the last, the last row of slots has yet to sleep.
        ideal = (jobs - 1) / (max(-(-jobs // (concurrency * processes)) - 1, 1) * SLEEP_SECONDS)
        more |= {"ideal": ideal, "of_ideal": measurements.rate("onward") / ideal}
    return Report(
        engine=environment.engine,
        scenario="drain",
        jobs=jobs,
        onward=measurements.rate("onward"),
        raw=measurements.rate("raw"),
        unit="jobs/s",
        verified=verification.passed,
        against=against,
        rounds=rounds,
        more=more,
    )


def enqueue(
    environment: Environment,
    *,
    jobs: int,
    rounds: int,
    report_progress: ReportProgress,
    callers: int,
    producers: int = 1,
) -> Report:
    """Enqueue one by one, each durable before the next; with several callers, each waits for its own."""
    verification = _Verification(environment, jobs)

    def alone() -> Measurement:
        url = environment.fresh()
        run_isolated(scenarios.fill, url, Handler.ASYNC, 0)  # the schema is made by nobody's watch
        measurement = run_in_parallel(producers, scenarios.enqueue, url, jobs)
        verification.check(url)
        return measurement

    def by_callers() -> Measurement:
        url = environment.fresh()
        measurement = run_isolated(scenarios.enqueue_concurrently, url, jobs, callers)
        verification.check(url)
        return measurement

    variants: dict[str, Variant] = {
        "onward": alone if callers == 1 else by_callers,
        "raw": lambda: environment.baseline.insert(jobs, producers),
    }
    if callers > 1:
        variants["single"] = alone
    measurements = run_interleaved(rounds, variants, report_progress)
    more: dict[str, float | int] = {"callers": callers, **_cpu(measurements)}
    if producers > 1:
        more["producers"] = producers
    if callers > 1:
        more |= {
            "single": measurements.rate("single"),
            "of_single": measurements.rate("onward") / measurements.rate("single"),
        }
    return Report(
        engine=environment.engine,
        scenario="enqueue",
        jobs=jobs,
        onward=measurements.rate("onward"),
        raw=measurements.rate("raw"),
        unit="jobs/s",
        verified=verification.passed,
        against=f"one durable insert after the other, by {environment.baseline.name}",
        rounds=rounds,
        more=more,
    )


def bulk(environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, batch: int) -> Report:
    """Enqueue in batches, each durable before the next."""
    verification = _Verification(environment, jobs)

    def onward() -> Measurement:
        url = environment.fresh()
        measurement = run_isolated(scenarios.enqueue_many, url, jobs, batch)
        verification.check(url)
        return measurement

    baseline = environment.baseline.bulk_variants(jobs, batch)
    measurements = run_interleaved(rounds, {"onward": onward, **baseline}, report_progress)
    ways = {way: measurements.rate(way) for way in baseline}
    best = max(ways, key=lambda way: ways[way])
    return Report(
        engine=environment.engine,
        scenario="bulk",
        jobs=jobs,
        onward=measurements.rate("onward"),
        raw=ways[best],
        unit="jobs/s",
        verified=verification.passed,
        against=f"{environment.baseline.name}, {batch} in a transaction, by {best}, the faster way",
        rounds=rounds,
        more={"batch": batch, **ways, **_cpu(measurements, best)},
    )


def _cpu(measurements: Measurements, raw: str = "raw") -> dict[str, float]:
    """Compare processor time: what still means something on a machine that is busy with other things."""
    onward, baseline = measurements.cpu_per_job("onward"), measurements.cpu_per_job(raw)
    if not onward or not baseline:
        return {}
    return {"cpu_us": onward * 1e6, "raw_cpu_us": baseline * 1e6}
