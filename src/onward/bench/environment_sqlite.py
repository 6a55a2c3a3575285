"""Empty SQLite databases in a folder beside the one that the URL names."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from onward.app import App
from onward.bench import baseline_sqlite
from onward.bench.environment import BareStore
from onward.bench.isolated import run_isolated
from onward.bench.statistics import Measurement, Variant
from onward.core import core_of
from onward.errors import InvalidValue

_BATCH: Final = 100
"""Jobs that the baseline takes at a time by default."""


class SQLiteEnvironment:
    """A folder of databases; it goes when the block ends."""

    engine = "SQLite"

    def __init__(self, url: str) -> None:
        self.baseline = SQLiteBaseline(self)
        self._query = url.partition("?")[2]
        path = None if url.partition("?")[0] == "sqlite://" else core_of(App(url)).engine.describe()["path"]
        self._beside = None if path is None else Path(path).parent
        self._folder = Path()
        self._numbers = count(1)

    def __enter__(self) -> Self:
        """Make the folder."""
        if self._beside is not None and not self._beside.is_dir():
            raise InvalidValue("url", str(self._beside), "is no folder: make it first, the benchmark takes place in it")
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

    def fresh_baseline(self) -> tuple[Path, str]:
        """Give the path of a database for the baseline, which is not there yet, and how durable it is to be."""
        durable = "normal" if "synchronous=normal" in self._query else "full"
        return self._folder / f"{next(self._numbers)}.db", durable

    def remove(self, url: str) -> None:
        """Remove a database that has served."""
        name = url.partition("?")[0].rpartition("/")[2]
        for file in self._folder.glob(f"{name}*"):
            file.unlink(missing_ok=True)


class SQLiteBaseline:
    """SQLite alone: see :mod:`onward.bench.baseline_sqlite`."""

    name = "SQLite alone"

    def __init__(self, environment: SQLiteEnvironment) -> None:
        self._environment = environment

    def drain(self, jobs: int, batch: int | None) -> Measurement:
        """Run jobs that are there already."""
        return run_isolated(baseline_sqlite.drain, *self._environment.fresh_baseline(), jobs, batch or _BATCH)

    def insert(self, jobs: int, producers: int) -> Measurement:
        """Insert rows one by one."""
        if producers > 1:
            raise InvalidValue("producers", producers, "is for servers: SQLite has one writer at a time")
        return run_isolated(baseline_sqlite.insert, *self._environment.fresh_baseline(), jobs)

    @property
    def pickup_description(self) -> str:
        """What :meth:`pickup_times` measures: SQLite has nothing to tell others with."""
        return f"one durable insert by {self.name}, which nobody picks up"

    def pickup_times(self, jobs: int, interval: float) -> list[float]:
        """Insert a row now and then."""
        return run_isolated(baseline_sqlite.insert_at_intervals, *self._environment.fresh_baseline(), jobs, interval)

    def bare_store(self) -> Callable[[], BareStore]:
        """Give what opens an empty table."""
        return partial(baseline_sqlite.BareStore, *self._environment.fresh_baseline())

    def bulk_variants(self, jobs: int, batch: int) -> Mapping[str, Variant]:
        """Give the ways to insert rows in batches."""
        environment = self._environment
        return {
            "executemany": lambda: run_isolated(
                baseline_sqlite.insert_by_executemany, *environment.fresh_baseline(), jobs, batch
            ),
            "json_each": lambda: run_isolated(
                baseline_sqlite.insert_by_json, *environment.fresh_baseline(), jobs, batch
            ),
        }
