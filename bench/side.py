"""What every peer of Python's has in its handlers: Onward's own stop-watch, and how it tells what was found.

Loaded by the scripts that run in the peers' virtualenvs, where nothing of Onward's is installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import Callable
from types import ModuleType

CONCURRENCY = 50
TOGETHER = 1000
LONGEST = 120


def load(path: str) -> ModuleType:
    """Load Onward's stop-watch, without the rest of Onward."""
    spec = importlib.util.spec_from_file_location("stopwatch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Measure:
    """One measurement: what to do, where, how many jobs, and the watch in the handlers."""

    def __init__(self, what: str, stopwatch: str, url: str, jobs: int) -> None:
        self.what, self.url, self.jobs = what, url, jobs
        self.done = threading.Event()
        self._wakes: list[Callable[[], object]] = [self.done.set]
        self.watch = load(stopwatch).Stopwatch(jobs, self._all)
        self.start = self.watch.start

    def _all(self) -> None:
        for wake in self._wakes:
            wake()

    @property
    def is_fill(self) -> bool:
        """Whether jobs are to be put in, not to be run."""
        return self.what == "fill"

    async def until_done(self) -> None:
        """Await the last handler's start, without a thread that looks for it."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self._wakes.append(lambda: loop.call_soon_threadsafe(done.set))
        if not self.watch.has_all:
            await asyncio.wait_for(done.wait(), LONGEST)

    def on_done(self, wake: Callable[[], object]) -> None:
        """Have something called when the last handler has started."""
        self._wakes.append(wake)

    def tell(self, left: int) -> None:
        """Print what was found; ``left`` jobs are still in the store."""
        once = sorted(self.watch.started) == list(range(self.jobs)) and left == 0
        found = {"seconds": self.watch.seconds, "cpu_seconds": self.watch.cpu_seconds}
        print(json.dumps({"jobs": self.jobs - 1, "once": once, **found}))
