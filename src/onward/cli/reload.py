"""Restarts commands whenever a source file changes: ``onward work --reload`` and ``onward dev``.

States of each: *running* (a change, or a signal, stops it), *broken* (it ended by itself, as code that does
not import does; nothing happens until a change). It looks at the times of files instead of asking the system to be
told: that works everywhere, and a few thousand files twice a second cost nothing that a developer would notice.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from onward.worker.signals import STOP_SIGNALS

log = logging.getLogger("onward.reload")

_POLL_INTERVAL: Final = 0.5
"""Seconds between two looks."""
_STOP_TIMEOUT: Final = 10.0
"""Seconds that a stopping command has before it is killed."""
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run, and what it inherits."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of ours."""
    descriptors: Sequence[int] = ()


class Reloader:
    """Runs commands, again after each change below ``folder``, until a signal."""

    def __init__(self, commands: Sequence[Command], folder: Path, *, stop_timeout: float = _STOP_TIMEOUT) -> None:
        self._commands = list(commands)
        self._folder = folder
        self._stop_timeout = stop_timeout
        self._stopping = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Go on until a signal; answer the exit code."""
        before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        try:
            seen = modification_times(self._folder)
            self._start()
            while not self._stopping.wait(_POLL_INTERVAL):
                now = modification_times(self._folder)
                if changed := changes(seen, now):
                    log.info("source changed, starting afresh", extra={"files": ", ".join(sorted(changed)[:5])})
                    self._stop()
                    self._start()
                seen = now
                self._check_processes()
            return self._stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._stopping.is_set():
            for process in self._processes:
                process.kill()
        self._stopping.set()

    def _start(self) -> None:
        for command in self._commands:
            # A session of its own: Ctrl-C in a terminal reaches it through us, once, and not also directly.
            process = subprocess.Popen(  # noqa: S603 - our own command
                list(command.argv),
                env={**os.environ, **command.environment},
                pass_fds=tuple(command.descriptors),
                start_new_session=True,
            )
            self._processes.append(process)

    def _check_processes(self) -> None:
        for process in list(self._processes):
            if (code := process.poll()) is not None:
                self._processes.remove(process)
                log.warning("it has ended; waiting for a change", extra={"code": code})

    def _stop(self) -> int:
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + self._stop_timeout
        codes = []
        for process in self._processes:
            try:
                codes.append(process.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self._processes = []
        # One that had not yet installed its handlers dies by the signal that asked it to stop.
        return next((code for code in codes if code not in {0, -signal.SIGTERM}), 0)


def modification_times(folder: Path) -> dict[str, int]:
    """Take down when each source file below a folder was last changed."""
    return dict(_sources(str(folder)))


def changes(before: dict[str, int], now: dict[str, int]) -> set[str]:
    """Name the files that have come, gone or changed."""
    return {name for name, _ in before.items() ^ now.items()}


def _sources(folder: str) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # removed while we looked
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                # A virtualenv has thousands of files that nobody edits.
                hidden = entry.name.startswith(".") or entry.name in _SKIPPED
                if not hidden and not os.path.exists(f"{entry.path}/pyvenv.cfg"):  # noqa: PTH110 - thousands of them
                    yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat().st_mtime_ns
        except FileNotFoundError:
            continue
