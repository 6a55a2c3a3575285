"""Keeps a number of worker processes alive.

Each child is a whole worker, started as a command of its own (never by fork). One that dies is started again, later
each time if it dies young; one that ends in good order without being asked (it has done its share, or grown too large)
is replaced at once. Signals are passed on: the first stops all in good order, the second at once.

Children hold the reading end of a pipe. When the supervisor goes, even by SIGKILL, the pipe closes and they stop. As
process 1 of a container the supervisor also reaps what others leave behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from onward.backoff import Backoff
from onward.worker.serve import LIFELINE
from onward.worker.signals import STOPPING

log = logging.getLogger("onward.supervisor")

_RESTART: Final = Backoff.exponential(0.5, cap=30, jitter=0.5)
_YOUNG: Final = 10.0
"""Seconds. Who lives longer than this has started well: the next restart is prompt again."""
_LOOK: Final = 0.2
"""Seconds between two looks at the children, where no signal says that one has died."""


@dataclass(slots=True)
class _Place:
    """One of the N places: the process in it, and how often the last ones died young."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    born_at: float = 0.0
    deaths: int = 0
    start_at: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """Runs ``processes`` copies of a command until told to stop."""

    command: Sequence[str]
    """What starts a worker, such as ``[sys.executable, "-m", "onward", "work", …]``."""
    processes: int
    grace: timedelta = timedelta(seconds=30)
    """How long children have to stop before they are killed; more than a worker's own grace."""
    _places: list[_Place] = field(default_factory=list, init=False)
    _asked: int = field(default=0, init=False)
    _lifeline: int = field(default=-1, init=False)

    def run(self) -> int:
        """Keep the children alive until a signal; answer the exit code: 0 if all of them ended in good order."""
        self._lifeline, held_open = os.pipe()
        heard, rung = os.pipe()
        os.set_blocking(rung, False)
        wakeup = signal.set_wakeup_fd(rung, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._on_signal) for number in (*STOPPING, signal.SIGCHLD)}
        self._places = [_Place(number) for number in range(self.processes)]
        try:
            while not self._asked:
                self._tend()
                if select.select([heard], [], [], _LOOK)[0]:
                    os.read(heard, 1024)
            return self._stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            for end in (self._lifeline, held_open, heard, rung):
                os.close(end)

    @property
    def pids(self) -> list[int]:
        """The children that live now."""
        return [place.process.pid for place in self._places if place.process is not None]

    def _on_signal(self, number: int, _frame: object) -> None:
        if number in STOPPING:
            self._asked += 1
            self._pass_on(signal.SIGTERM)

    def _tend(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.process is not None and (code := place.process.poll()) is not None:
                self._bury(place, code, now)
            if place.process is None and now >= place.start_at:
                self._start(place, now)
        self._reap_strangers()

    def _start(self, place: _Place, now: float) -> None:
        environment = {**os.environ, LIFELINE: str(self._lifeline), "ONWARD_PLACE": str(place.number)}
        # A session of its own: Ctrl-C in a terminal reaches the children through us, once, and not also directly.
        place.process = subprocess.Popen(  # noqa: S603 - our own command
            list(self.command), env=environment, pass_fds=(self._lifeline,), start_new_session=True
        )
        place.born_at = now
        log.info("worker process started", extra={"pid": place.process.pid, "place": place.number})

    def _bury(self, place: _Place, code: int, now: float) -> None:
        assert place.process is not None  # noqa: S101 - for the type checker: only a dead child is buried
        fields = {"pid": place.process.pid, "place": place.number, "code": code}
        place.process = None
        if code == 0:
            place.deaths, place.start_at = 0, now
            log.info("worker process retired", extra=fields)
            return
        place.deaths = place.deaths + 1 if now - place.born_at < _YOUNG else 1
        delay = _RESTART.delay(place.deaths).total_seconds() if place.deaths > 1 else 0.0
        place.start_at = now + delay
        log.error("worker process died", extra={**fields, "restart_in": delay})

    def _stop(self) -> int:
        deadline = time.monotonic() + self.grace.total_seconds()
        code = 0
        while living := [place for place in self._places if place.process is not None]:
            if time.monotonic() > deadline:
                log.error("worker processes did not stop in time, killing them", extra={"pids": self.pids})
                self._pass_on(signal.SIGKILL)
            for place in living:
                assert place.process is not None  # noqa: S101 - for the type checker
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ended = place.process.wait(_LOOK / len(living))
                    code = code or (1 if ended else 0)
                    place.process = None
        return code

    def _pass_on(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    place.process.send_signal(number)

    def _reap_strangers(self) -> None:
        """As process 1, take note of the deaths of processes that were left to us."""
        if os.getpid() != 1 or sys.platform == "win32":
            return
        ours = set(self.pids)
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in ours:
                return
            with contextlib.suppress(ChildProcessError):
                os.waitpid(ended.si_pid, os.WNOHANG)
