"""Keeps a number of worker processes alive.

Each child is a whole worker, started as a command of its own (never by fork). One that dies is started again, later
each time if it dies young; one that ends in good order without being asked (it has done its share, or grown too large)
is replaced at once, unless its predecessors ended as young. In a burst it is not replaced, and the supervisor ends when
all of them have. Signals are passed on: the first stops all in good order, the second at once.

A child that cannot work at all, because its settings or its store are wrong, reports its exit code on a pipe before it
exits (:func:`report_final_exit`): then all stop, and the supervisor ends with that code. The exit code alone does not
count: a handler can exit with any code, and must not stop the worker for good.

Children hold the reading end of another pipe. When the supervisor goes, even by SIGKILL, the pipe closes and they stop.
As process 1 of a container the supervisor also reaps what others leave behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from onward.backoff import Backoff
from onward.worker.serve import SUPERVISOR_PIPE
from onward.worker.signals import STOP_SIGNALS

log = logging.getLogger("onward.supervisor")

_RESTART_BACKOFF: Final = Backoff.exponential(0.5, cap=30, jitter=0.5)
_FINISHED_BACKOFF: Final = Backoff.exponential(0.1, cap=5, jitter=0.5)
"""For processes that end in good order as soon as they have started: a start costs more than they get done."""
_MIN_UPTIME: Final = 10.0
"""Seconds. Who lives longer than this has started well: the next restart is prompt again."""
_CHECK_INTERVAL: Final = 0.2
"""Seconds between two looks at the children, where no signal says that one has died."""

_REPORT_PIPE: Final = "ONWARD_SUPERVISOR_REPORT"
"""The environment variable with the pipe on which a child reports that another start would end in the same way."""
_REPORT: Final = struct.Struct("=IB")
"""A report: the process id and the exit code. Shorter than PIPE_BUF, so that reports of two children do not mix."""


def report_final_exit(code: int) -> None:
    """Tell the supervisor, if there is one, that this process will exit with ``code`` on every start."""
    name = os.environ.pop(_REPORT_PIPE, None)
    if name is not None:
        os.write(int(name), _REPORT.pack(os.getpid(), code))


@dataclass(slots=True)
class _Child:
    """One of the N children: its process, and how many in a row ended young."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    start_at: float = 0.0
    is_finished: bool = False
    """It has ended in good order, and is not replaced."""


@dataclass(slots=True)
class Supervisor:
    """Runs ``processes`` copies of a command until told to stop."""

    command: Sequence[str]
    """What starts a worker, such as ``[sys.executable, "-m", "onward", "work", …]``."""
    processes: int
    grace: timedelta = timedelta(seconds=30)
    """How long children have to stop before they are killed; more than a worker's own grace."""
    replaces_finished: bool = True
    """Whether a child that ended in good order is replaced; otherwise the supervisor ends when all of them have."""
    _children: list[_Child] = field(default_factory=list, init=False)
    _stop_requests: int = field(default=0, init=False)
    _pipe_read: int = field(default=-1, init=False)
    _reports: tuple[int, int] = field(default=(-1, -1), init=False)
    """The pipe of final exits: its reading end, which does not block, and the end that children write to."""
    _final_exits: set[tuple[int, ...]] = field(default_factory=set, init=False)
    """Process id and exit code of the children that reported a final exit."""
    _final_code: int = field(default=0, init=False)
    """The exit code that a child reported as final."""

    def run(self) -> int:
        """Keep the children alive until a signal; answer the exit code: 0 if all of them ended in good order."""
        self._pipe_read, pipe_write = os.pipe()
        self._reports = os.pipe()
        os.set_blocking(self._reports[0], False)
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_write, False)
        previous_wakeup = signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        previous_handlers = {
            number: signal.signal(number, self._on_signal) for number in (*STOP_SIGNALS, signal.SIGCHLD)
        }
        self._children = [_Child(number) for number in range(self.processes)]
        try:
            while not self._stop_requests and not self._final_code:
                self._check_children()
                if all(child.is_finished for child in self._children):
                    break
                if select.select([wakeup_read], [], [], _CHECK_INTERVAL)[0]:
                    os.read(wakeup_read, 1024)
            if self._final_code:
                self._forward_signal(signal.SIGTERM)
            code = self._stop()
            return self._final_code or code
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_wakeup)
            for descriptor in (self._pipe_read, pipe_write, wakeup_read, wakeup_write, *self._reports):
                os.close(descriptor)

    @property
    def pids(self) -> list[int]:
        """The children that live now."""
        return [child.process.pid for child in self._children if child.process is not None]

    def _on_signal(self, number: int, _frame: object) -> None:
        if number in STOP_SIGNALS:
            self._stop_requests += 1
            self._forward_signal(signal.SIGTERM)

    def _check_children(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is not None and (code := child.process.poll()) is not None:
                self._read_reports()
                self._on_exit(child, code, now)
            if child.process is None and now >= child.start_at and not self._final_code and not child.is_finished:
                self._start(child, now)
        self._reap_orphans()

    def _start(self, child: _Child, now: float) -> None:
        environment = {**os.environ, SUPERVISOR_PIPE: str(self._pipe_read), _REPORT_PIPE: str(self._reports[1])}
        if self.processes > 1:
            environment["ONWARD_PROCESS_NUMBER"] = str(child.number)
        # A session of its own: Ctrl-C in a terminal reaches the children through us, once, and not also directly.
        child.process = subprocess.Popen(  # noqa: S603 - our own command
            list(self.command), env=environment, pass_fds=(self._pipe_read, self._reports[1]), start_new_session=True
        )
        child.started_at = now
        log.info("worker process started", extra={"pid": child.process.pid, "process_number": child.number})

    def _on_exit(self, child: _Child, code: int, now: float) -> None:
        assert child.process is not None  # noqa: S101 - for the type checker: only an exited child gets here
        pid, child.process = child.process.pid, None
        fields = {"pid": pid, "process_number": child.number, "exit_code": code}
        if (pid, code) in self._final_exits:
            self._final_code = code
            log.error("worker process cannot work, stopping", extra=fields)
            return
        if not code and not self.replaces_finished:
            child.is_finished = True
            log.info("worker process finished", extra=fields)
            return
        child.failures = child.failures + 1 if now - child.started_at < _MIN_UPTIME else 1
        backoff = _RESTART_BACKOFF if code else _FINISHED_BACKOFF
        delay = backoff.delay(child.failures).total_seconds() if child.failures > 1 else 0.0
        child.start_at = now + delay
        if code:
            log.error("worker process died", extra={**fields, "restart_in": delay})
        else:
            log.info("worker process finished", extra={**fields, "restart_in": delay})

    def _read_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._final_exits.update(_REPORT.iter_unpack(os.read(self._reports[0], 1024 * _REPORT.size)))

    def _stop(self) -> int:
        deadline = time.monotonic() + self.grace.total_seconds()
        code = 0
        while running := [child for child in self._children if child.process is not None]:
            if time.monotonic() > deadline:
                log.error("worker processes did not stop in time, killing them", extra={"pids": self.pids})
                self._forward_signal(signal.SIGKILL)
            for child in running:
                assert child.process is not None  # noqa: S101 - for the type checker
                with contextlib.suppress(subprocess.TimeoutExpired):
                    exit_status = child.process.wait(_CHECK_INTERVAL / len(running))
                    code = code or (1 if exit_status else 0)
                    child.process = None
        return code

    def _forward_signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(number)

    def _reap_orphans(self) -> None:
        """As process 1, take note of the deaths of processes that were left to us."""
        if os.getpid() != 1 or sys.platform == "win32":
            return
        child_pids = set(self.pids)
        while True:
            try:
                exit_status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if exit_status is None or exit_status.si_pid in child_pids:
                return
            with contextlib.suppress(ChildProcessError):
                os.waitpid(exit_status.si_pid, os.WNOHANG)
