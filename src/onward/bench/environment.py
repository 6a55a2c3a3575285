"""Where the rounds take place: stores like the one that the URL names, empty, on the same disk or server.

The store at the URL itself is not touched: it may have somebody's jobs in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from onward.app import App
from onward.bench.statistics import Measurement, Variant
from onward.errors import InvalidValue


class BareStore(Protocol):
    """A table without a queue around it, for a route of a web application."""

    async def insert(self, payload: str) -> str:
        """Insert a row, durably, and return its id."""
        ...

    async def read(self, id: str) -> tuple[Any, ...] | None:
        """Read a row."""
        ...


class Baseline(Protocol):
    """The store without a queue around it. Each measurement takes place apart, on an empty store."""

    @property
    def name(self) -> str:
        """What it is called where figures are told."""
        ...

    def drain(self, jobs: int, batch: int | None) -> Measurement:
        """Run jobs that are there already, so many at a time; None: as many as are best."""
        ...

    def insert(self, jobs: int, producers: int) -> Measurement:
        """Insert rows one by one, each durable before the next, in so many processes at once."""
        ...

    @property
    def pickup_description(self) -> str:
        """What :meth:`pickup_times` measures, in words."""
        ...

    def pickup_times(self, jobs: int, interval: float) -> list[float]:
        """Insert a row now and then; answer after how many seconds each was held, or durable where nobody takes it."""
        ...

    def bare_store(self) -> Callable[[], BareStore]:
        """Make an empty table; return what opens it in another process."""
        ...

    def bulk_variants(self, jobs: int, batch: int) -> Mapping[str, Variant]:
        """Give the ways to insert rows in batches, by name."""
        ...


class Environment(Protocol):
    """Empty stores, for as long as a block lasts."""

    engine: str

    @property
    def baseline(self) -> Baseline:
        """The other side."""
        ...

    def __enter__(self) -> Self:
        """Make room."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear up."""
        ...

    def fresh(self) -> str:
        """Give the URL of an empty store."""
        ...

    def remove(self, url: str) -> None:
        """Remove a store that has served, so that a long run does not fill the disk."""
        ...


def environment_for(url: str) -> Environment:
    """Find the environment for a URL; ``postgresql://`` alone is a server of our own, started for the purpose."""
    from onward.bench.environment_postgres import PostgresEnvironment  # noqa: PLC0415 - drivers are loaded for who needs them
    from onward.bench.environment_sqlite import SQLiteEnvironment  # noqa: PLC0415

    if url.partition("?")[0] in {"postgresql://", "postgres://"}:
        return PostgresEnvironment(None)
    engine = App(url).capabilities.engine  # connects to nothing; refuses what is no URL of ours
    if engine == "SQLite":
        return SQLiteEnvironment(url)
    if engine == "PostgreSQL":
        return PostgresEnvironment(url)
    raise InvalidValue("url", url, f"there is no baseline for {engine}: give sqlite:///file.db or postgresql://…")
