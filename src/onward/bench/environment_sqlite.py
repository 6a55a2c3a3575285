"""Empty SQLite databases in a folder beside the one that the URL names."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from onward.app import App
from onward.bench import baseline_sqlite
from onward.bench.isolated import apart
from onward.bench.statistics import Pace, Side
from onward.errors import InvalidJob

_BATCH: Final = 100
"""Jobs that the bare store takes at a time, where nobody says."""


class SQLiteGround:
    """A folder of databases; it goes when the block ends."""

    engine = "SQLite"

    def __init__(self, url: str) -> None:
        self.bare = BareSQLite(self)
        self._query = url.partition("?")[2]
        path = None if url.partition("?")[0] == "sqlite://" else App(url).engine.describe()["path"]
        self._beside = None if path is None else Path(path).parent
        self._folder = Path()
        self._numbers = count(1)

    def __enter__(self) -> Self:
        """Make the folder."""
        if self._beside is not None and not self._beside.is_dir():
            raise InvalidJob("url", str(self._beside), "is no folder: make it first, the benchmark takes place in it")
        self._folder = Path(tempfile.mkdtemp(prefix="onward-bench-", dir=self._beside))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def fresh(self) -> str:
        """Give the URL of an empty store."""
        path = quote(str(self._folder / f"{next(self._numbers)}.db"))
        return f"sqlite:///{path}" + (f"?{self._query}" if self._query else "")

    def fresh_bare(self) -> tuple[Path, str]:
        """Give the path of a database for the bare side, which is not there yet, and how durable it is to be."""
        durable = "normal" if "synchronous=normal" in self._query else "full"
        return self._folder / f"{next(self._numbers)}.db", durable

    def remove(self, url: str) -> None:
        """Remove a database that has served."""
        name = url.partition("?")[0].rpartition("/")[2]
        for file in self._folder.glob(f"{name}*"):
            file.unlink(missing_ok=True)


class BareSQLite:
    """SQLite alone: see :mod:`onward.bench.baseline_sqlite`."""

    name = "SQLite alone"

    def __init__(self, ground: SQLiteGround) -> None:
        self._ground = ground

    def drain(self, jobs: int, batch: int | None) -> Pace:
        """Run jobs that are there already."""
        return apart(baseline_sqlite.drain, *self._ground.fresh_bare(), jobs, batch or _BATCH)

    def insert(self, jobs: int, producers: int) -> Pace:
        """Insert rows one by one."""
        if producers > 1:
            raise InvalidJob("producers", producers, "is for servers: SQLite has one writer at a time")
        return apart(baseline_sqlite.insert, *self._ground.fresh_bare(), jobs)

    @property
    def pickup(self) -> str:
        """What :meth:`pick_up` measures: SQLite has nothing to tell others with."""
        return f"one durable insert by {self.name}, which nobody picks up"

    def pick_up(self, jobs: int, gap: float) -> list[float]:
        """Insert a row now and then."""
        return apart(baseline_sqlite.insert_at_intervals, *self._ground.fresh_bare(), jobs, gap)

    def in_bulk(self, jobs: int, batch: int) -> Mapping[str, Side]:
        """Give the ways to insert rows in batches."""
        ground = self._ground
        return {
            "executemany": lambda: apart(baseline_sqlite.insert_by_executemany, *ground.fresh_bare(), jobs, batch),
            "json_each": lambda: apart(baseline_sqlite.insert_by_json, *ground.fresh_bare(), jobs, batch),
        }
