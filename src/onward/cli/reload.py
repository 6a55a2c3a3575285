"""Restarts a command whenever a source file changes: ``onward work --reload``, for development.

States: *running* (the command lives; a change, or a signal, stops it), *broken* (it ended by itself, as code that does
not import does; nothing happens until a change). It looks at the times of files instead of asking the system to be
told: that works everywhere, and a few thousand files twice a second cost nothing that a developer would notice.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from onward.worker.signals import STOP_SIGNALS

log = logging.getLogger("onward.reload")

_POLL_INTERVAL: Final = 0.5
"""Seconds between two looks."""
_STOP_TIMEOUT: Final = 10.0
"""Seconds that a stopping command has before it is killed."""
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


class Reloader:
    """Runs a command, again after each change below ``folder``, until a signal."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

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
                self._check_process()
            return self._stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._stopping.is_set() and self._process is not None:
            self._process.kill()
        self._stopping.set()

    def _start(self) -> None:
        # A session of its own: Ctrl-C in a terminal reaches it through us, once, and not also directly.
        self._process = subprocess.Popen(self._command, start_new_session=True)  # noqa: S603 - our own command

    def _check_process(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            log.warning("it has ended; waiting for a change", extra={"code": code})

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


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
