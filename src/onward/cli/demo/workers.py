"""The demo's worker processes: one ``onward work --processes N``, as anybody would start it, with short leases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from onward.cli.demo.ledger import LEDGER_VARIABLE
from onward.config import URL_VARIABLE
from onward.engine.values import WorkerInfo

CONCURRENCY: Final = 4
LEASE: Final = "1s"
"""Short, so that a few seconds are enough to see a takeover; the default is 30 s."""
_STOP_TIMEOUT: Final = 15.0
"""Seconds in which the processes must have stopped."""


class WorkerProcesses:
    """Worker processes and their supervisor, for the length of a block."""

    def __init__(self, url: str, ledger: Path, log: Path, *, processes: int) -> None:
        self.processes = processes
        self._url = url
        self._ledger = ledger
        self._log = log
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start them."""
        command = [
            *(sys.executable, "-m", "onward.cli", "work", "--app", "onward.cli.demo.app:app"),
            *("--processes", str(self.processes), "--concurrency", str(CONCURRENCY)),
            *("--lease", LEASE, "--leader-lease", LEASE, "--grace", "5s"),
            # The job that crashes gets two runs alone, not three: the demo is to be short.
            *("--max-crashes", "2"),
        ]
        environment = {**os.environ, URL_VARIABLE: self._url, LEDGER_VARIABLE: str(self._ledger)}
        with self._log.open("wb") as log:
            self._supervisor = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop them in good order."""
        if self._supervisor is None or self._supervisor.poll() is not None:
            return
        self._supervisor.terminate()
        try:
            self._supervisor.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor lives."""
        return self._supervisor is not None and self._supervisor.poll() is None


def pid_of(worker: WorkerInfo | str) -> int:
    """Read a worker's process number out of its name: ``hostname-pid-random``."""
    return int((worker if isinstance(worker, str) else worker.id).split("-")[-2])


def is_alive(pid: int) -> bool:
    """Say whether a process lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def kill(pid: int) -> bool:
    """Kill a process as the kernel does when memory runs out; False: it was dead already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
