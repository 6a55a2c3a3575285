"""Workers in processes of their own, for what can only be seen from outside: pickup, and neighbours of a slow job."""

from __future__ import annotations

import asyncio
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from onward.bench.handlers import make_app
from onward.bench.stopwatch import Stopwatch


class Crew:
    """So many worker processes, at work for the length of a block."""

    def __init__(self, url: str, *, workers: int = 1, concurrency: int) -> None:
        self.started: dict[int, list[float]] = {}
        """When each job's handler was started, by the clock that all processes share. Known after the block."""
        spawn = get_context("spawn")
        self._lines = [spawn.Pipe() for _ in range(workers)]
        self._processes = [
            spawn.Process(target=_work, args=(url, concurrency, theirs), daemon=True) for _, theirs in self._lines
        ]

    @property
    def ran(self) -> list[int]:
        """The ledger: the number of every job that has started, as often as it has."""
        return [number for number, times in self.started.items() for _ in times]

    def __enter__(self) -> Self:
        """Start them, and wait until they wait for work."""
        for process in self._processes:
            process.start()
        for ours, theirs in self._lines:
            theirs.close()
            ours.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop them in good order, and gather their ledgers."""
        for ours, _ in self._lines:
            ours.send("stop")
        for ours, _ in self._lines:
            for number, moment in ours.recv():
                self.started.setdefault(number, []).append(moment)
            ours.close()
        for process in self._processes:
            process.join()


def _work(url: str, concurrency: int, line: Connection) -> None:
    async def live() -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        watch = Stopwatch(0)
        async with make_app(url, watch) as app, app.worker(concurrency=concurrency):
            loop.add_reader(line.fileno(), told.set)
            line.send("ready")
            await told.wait()
            loop.remove_reader(line.fileno())
        line.send(list(zip(watch.started, watch.times, strict=True)))

    asyncio.run(live())
