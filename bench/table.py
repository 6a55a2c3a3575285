"""What a comparison has found, as a table: kept as JSON, printed as text, drawn by :mod:`bench.chart`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec

ONWARD = "Onward"


class Row(msgspec.Struct, frozen=True):
    """One queue on one store."""

    store: str
    name: str
    version: str
    per_s: float
    """Jobs per second: the median of the rounds."""
    cpu_us: float
    """Microseconds of processor time a job, of the worker's process."""
    how: str = ""
    """With which settings."""


class Table(msgspec.Struct, frozen=True):
    """All that was measured in one run."""

    date: str
    machine: str
    rounds: int
    stores: dict[str, str]
    """By name, what exactly each is."""
    rows: tuple[Row, ...]
    verified: bool
    """Whether each of Onward's jobs ran once, and was completed at its first attempt with its own result."""
    load: float

    def of(self, store: str) -> list[Row]:
        """Give the rows of a store: Onward's first, then the fastest."""
        return sorted(
            (row for row in self.rows if row.store == store), key=lambda row: (row.name != ONWARD, -row.per_s)
        )

    def times(self, row: Row) -> float:
        """Say how many times as fast Onward is, on the same store."""
        (ours,) = (other for other in self.rows if other.store == row.store and other.name == ONWARD)
        return ours.per_s / row.per_s

    def text(self) -> str:
        """Write it out."""
        lines = [f"{self.date}, {self.machine}, medians of {self.rounds}, load {self.load:.1f}"]
        for store, what in self.stores.items():
            lines += ["", f"{what}"]
            for row in self.of(store):
                times = "" if row.name == ONWARD else f"{self.times(row):6.1f} x"
                name = f"{row.name} {row.version}"
                lines.append(f"  {name:<38} {row.per_s:>9,.0f}/s {row.cpu_us:>7.0f} us {times:>9}  {row.how}")
        return "\n".join(lines)


def read(path: Path) -> Table:
    """Read a table that was kept."""
    return msgspec.json.decode(path.read_bytes(), type=Table)


def write(table: Table, path: Path) -> None:
    """Keep a table."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")


def machine() -> str:
    """Say what this machine is, and not which."""
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"
