"""What the handlers have really done: a file that they append to, and that no part of Onward reads or writes.

A line is written by one system call to the end of the file, so processes do not mix their lines, and one that is
killed leaves a whole line or none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

LEDGER_VARIABLE: Final = "ONWARD_DEMO_LEDGER"
"""Tells a worker process where the ledger is."""


class Entry(msgspec.Struct, frozen=True):
    """One thing that a handler did."""

    job: str
    kind: str
    done: bool
    """False: it has begun a run. True: the work of that run is done."""
    attempt: int
    pid: int


class Ledger:
    """The file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, job: str, kind: str, attempt: int, *, done: bool) -> None:
        """Take something down."""
        entry = Entry(job=job, kind=kind, done=done, attempt=attempt, pid=os.getpid())
        os.write(self._file, msgspec.json.encode(entry) + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read(path: Path) -> list[Entry]:
    """Read all that was taken down."""
    return [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines()]
