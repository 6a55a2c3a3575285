"""The stop-watch and ledger inside every handler that is measured. Costs well under a microsecond a job.

Nothing but the standard library is imported: ``bench/peers.py`` puts this very file into the handlers of other queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Which handlers have started, and when. From any thread: it only appends."""

    def __init__(self, expected: int, on_all: Callable[[], object] = lambda: None) -> None:
        self.expected = expected
        self.started: list[int] = []
        """The ledger: the number of each job whose handler has started, as often as it has."""
        self.times: list[float] = []
        """When, by the clock that all processes of a machine share."""
        self._on_all = on_all
        self._cpu_at_first = self._cpu_at_all = 0.0

    def start(self, number: int) -> None:
        """Note the start of a job's handler."""
        self.times.append(time.monotonic())
        self.started.append(number)
        count = len(self.started)
        if count == 1:
            self._cpu_at_first = time.process_time()
        elif count == self.expected:
            self._cpu_at_all = time.process_time()
            self._on_all()

    @property
    def has_all(self) -> bool:
        """Whether as many handlers have started as were expected."""
        return len(self.started) >= self.expected

    @property
    def seconds(self) -> float:
        """How long it took from the first start to the last that was expected: the worker's own start is not in it."""
        times = self.times[: self.expected]
        return times[-1] - times[0] if times else 0.0

    @property
    def cpu_seconds(self) -> float:
        """How much processor time this process has used meanwhile; 0 until all have started."""
        return max(self._cpu_at_all - self._cpu_at_first, 0.0)
