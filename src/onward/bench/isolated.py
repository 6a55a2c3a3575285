"""Runs a measurement in a fresh process that does nothing else: no heap, no threads and no garbage of the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Final, ParamSpec, TypeVar

from onward.bench.statistics import Measurement

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_barrier: Barrier | None = None
"""Where those meet that are to begin together; None: this process is by itself."""
_BARRIER_TIMEOUT: Final = 60.0
"""Seconds until somebody who does not come is given up."""


def run_isolated(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of a module in a process of its own, and give what it returns or raise what it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def run_in_parallel(times: int, function: Callable[[str, int, int], Measurement], url: str, jobs: int) -> Measurement:
    """Call a function in so many processes at once, each for its share of the jobs; they count as one.

    It is handed the URL, how many jobs it is to do and the number of the first, and says by
    :func:`everybody_is_ready` when its watch is about to start.
    """
    with _processes(times) as processes:
        shares = [jobs // times + (number < jobs % times) for number in range(times)]
        asked = [processes.submit(function, url, share, sum(shares[:number])) for number, share in enumerate(shares)]
        measurements = [one.result() for one in asked]
    return Measurement(
        jobs,
        max(measurement.seconds for measurement in measurements),
        sum(measurement.cpu_seconds for measurement in measurements),
    )


def run_pair(one: Callable[[], R], other: Callable[[], S]) -> tuple[R, S]:
    """Call two functions of modules in two processes; each says by :func:`everybody_is_ready` when it may begin."""
    with _processes(2) as processes:
        first, second = processes.submit(one), processes.submit(other)
        return first.result(), second.result()


def _processes(number: int) -> ProcessPoolExecutor:
    """Make processes that can wait for each other."""
    spawn = get_context("spawn")
    barrier = spawn.Barrier(number, timeout=_BARRIER_TIMEOUT)
    return ProcessPoolExecutor(number, mp_context=spawn, initializer=_set_barrier, initargs=(barrier,))


def wait_at_barrier() -> None:
    """Wait for the others that are to begin at the same moment, if there are any."""
    if _barrier is not None:
        _barrier.wait()


def _set_barrier(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - a process has one
    _barrier = barrier
