"""Workers in processes of their own, for what can only be seen from outside: pickup, neighbours, several at once."""

from __future__ import annotations

import asyncio
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Final, Self

from onward.bench.handlers import make_app
from onward.bench.statistics import Measurement
from onward.bench.stopwatch import Stopwatch

_COUNT_INTERVAL: Final = 0.05
"""Seconds between two counts that a worker sends while it works."""
_MIN_RATE: Final = 200
"""Jobs per second below which the workers are given up."""


class WorkerProcesses:
    """So many worker processes, at work for the length of a block."""

    def __init__(self, url: str, *, workers: int = 1, concurrency: int) -> None:
        self.started: dict[int, list[float]] = {}
        """When each job's handler was started, by the clock that all processes share. Known after the block."""
        self.cpu_seconds = 0.0
        spawn = get_context("spawn")
        self._pipes = [spawn.Pipe() for _ in range(workers)]
        self._processes = [
            spawn.Process(target=_work, args=(url, concurrency, theirs), daemon=True) for _, theirs in self._pipes
        ]

    @property
    def ran(self) -> list[int]:
        """The ledger: the number of every job that has started, as often as it has."""
        return [number for number, times in self.started.items() for _ in times]

    @property
    def measurement(self) -> Measurement:
        """How fast they were together, from the first start to the last. Known after the block."""
        times = [moment for moments in self.started.values() for moment in moments]
        return Measurement(len(times) - 1, max(times) - min(times), self.cpu_seconds) if times else Measurement(0, 0)

    def wait_for(self, jobs: int) -> None:
        """Wait until so many jobs have started, or for as long as the slowest may take; ask the store nothing."""
        counts = dict.fromkeys((ours for ours, _ in self._pipes), 0)
        deadline = time.monotonic() + 60 + jobs / _MIN_RATE
        while sum(counts.values()) < jobs and time.monotonic() < deadline:
            for ours in wait(list(counts), timeout=1):
                if isinstance(ours, Connection):
                    counts[ours] = ours.recv()

    def __enter__(self) -> Self:
        """Start them, and wait until they wait for work."""
        for process in self._processes:
            process.start()
        for ours, theirs in self._pipes:
            theirs.close()
            ours.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop them in good order, and gather their ledgers."""
        for ours, _ in self._pipes:
            ours.send("stop")
        for ours, _ in self._pipes:
            while isinstance(message := ours.recv(), int):
                pass
            ledger, cpu_seconds = message
            for number, moment in ledger:
                self.started.setdefault(number, []).append(moment)
            self.cpu_seconds += cpu_seconds
            ours.close()
        for process in self._processes:
            process.join()


def _work(url: str, concurrency: int, pipe: Connection) -> None:
    async def run() -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        watch = Stopwatch(0)
        async with make_app(url, watch) as app, app.worker(concurrency=concurrency):
            loop.add_reader(pipe.fileno(), stopping.set)
            pipe.send("ready")
            cpu, sent = time.process_time(), 0
            while not stopping.is_set():
                try:
                    async with asyncio.timeout(_COUNT_INTERVAL):
                        await stopping.wait()
                except TimeoutError:
                    pass
                if len(watch.started) > sent:
                    sent = len(watch.started)
                    pipe.send(sent)
            used = time.process_time() - cpu
            loop.remove_reader(pipe.fileno())
        pipe.send((list(zip(watch.started, watch.times, strict=True)), used))

    asyncio.run(run())
