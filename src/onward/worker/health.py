"""Whether a worker does its work: the time since the store last answered it, not whether the process exists.

A worker that was cut off and came back half-way looks alive from outside; what tells is that its rounds to the store
succeed. The file is written by the heartbeat's thread, so it also tells of a loop that is stuck: then the beats go on
and the polls grow old.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from pathlib import Path

import msgspec


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker last wrote about itself. Moments are seconds since 1970, by the clock of its machine."""

    worker_id: str
    pid: int
    heartbeat_at: float
    """The last heartbeat that the store answered."""
    polled_at: float
    """The last claim that the store answered."""
    poll_interval: float
    """Seconds between two polls at most, when there is nothing else to do."""


class HealthRecorder:
    """Keeps the times of a worker's last successes, and writes them to a file if there is to be one."""

    def __init__(self, worker_id: str, *, poll_interval: timedelta, file: Path | None = None) -> None:
        self._worker_id = worker_id
        self._poll_interval = poll_interval.total_seconds()
        self._file = file
        self._polled_at = self._heartbeat_at = time.time()

    def record_poll(self) -> None:
        """The store has answered a claim."""
        self._polled_at = time.time()

    def record_heartbeat(self) -> None:
        """The store has answered a heartbeat."""
        self._heartbeat_at = time.time()
        self.write()

    def write(self) -> None:
        """Bring the file up to date, in one step, so that no reader sees half of it."""
        if self._file is None:
            return
        health = Health(
            worker_id=self._worker_id,
            pid=os.getpid(),
            heartbeat_at=self._heartbeat_at,
            polled_at=self._polled_at,
            poll_interval=self._poll_interval,
        )
        temporary = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(health))
        temporary.replace(self._file)

    def remove(self) -> None:
        """Take the file away: the worker has stopped in good order."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def check_health(file: Path, *, max_age: timedelta, now: float | None = None) -> str | None:
    """Read a worker's health file and say what is wrong; None: it has beaten and polled within the time given."""
    try:
        health = msgspec.json.decode(file.read_bytes(), type=Health)
    except FileNotFoundError:
        return f"{file} does not exist: no worker writes it"
    except (OSError, msgspec.DecodeError) as error:
        return f"{file} cannot be read: {error}"
    now = time.time() if now is None else now
    for what, at in (("heartbeat", health.heartbeat_at), ("poll", health.polled_at)):
        if now - at > max_age.total_seconds():
            return f"worker {health.worker_id}: its last successful {what} was {now - at:.0f} s ago"
    return None
