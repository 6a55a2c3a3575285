"""Empty databases on a PostgreSQL server: the one that the URL names, or one of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from onward.bench import baseline_postgres
from onward.bench.environment import BareStore
from onward.bench.isolated import run_in_parallel, run_isolated, run_pair
from onward.bench.server import temporary_server
from onward.bench.statistics import Measurement, Variant
from onward.errors import InvalidValue, StoreUnavailable


class PostgresEnvironment:
    """Databases with names of their own; they go when the block ends."""

    engine = "PostgreSQL"

    def __init__(self, url: str | None) -> None:
        """``url`` None: on a server that is started for the length of the block."""
        self.baseline = PostgresBaseline(self)
        self._url = url or ""
        self._stack = ExitStack()
        self._made: set[str] = set()
        self._names = (f"onward_bench_{uuid4().hex[:8]}_{number}" for number in count(1))

    def __enter__(self) -> Self:
        """Start the server, if it is to be ours."""
        if not self._url:
            self._url = self._stack.enter_context(temporary_server())
        with self._server() as connection:
            version = connection.info.server_version // 10_000
            self.baseline.name = f"PostgreSQL {version} alone"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the databases, and stop the server if it is ours."""
        with self._stack:
            for name in list(self._made):
                self._drop(name)

    def fresh(self) -> str:
        """Give the URL of an empty database."""
        name = next(self._names)
        with self._server() as connection:
            connection.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
        self._made.add(name)
        return _in_database(self._url, name)

    def fresh_baseline(self) -> str:
        """Give the address of a database for the baseline, with its tables in it."""
        url = _without_ours(self.fresh())
        baseline_postgres.prepare(url)
        return url

    def remove(self, url: str) -> None:
        """Drop a database that has served."""
        self._drop(urlsplit(url).path.removeprefix("/"))

    def _drop(self, name: str) -> None:
        with self._server() as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        self._made.discard(name)

    @contextmanager
    def _server(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with psycopg.connect(_without_ours(self._url), autocommit=True) as connection:
                yield connection
        except psycopg.errors.InsufficientPrivilege as error:
            raise InvalidValue(
                "url", "postgresql://…", f"its user must be allowed to make databases: {error}"
            ) from error
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"PostgreSQL: {error}") from error


class PostgresBaseline:
    """PostgreSQL alone: see :mod:`onward.bench.baseline_postgres`."""

    def __init__(self, environment: PostgresEnvironment) -> None:
        self.name = "PostgreSQL alone"
        self._environment = environment

    def drain(self, jobs: int, batch: int | None) -> Measurement:
        """Run jobs that are there already."""
        url = self._environment.fresh_baseline()
        measurement = run_isolated(baseline_postgres.drain, url, jobs, batch)
        self._environment.remove(url)
        return measurement

    def insert(self, jobs: int, producers: int) -> Measurement:
        """Insert rows one by one."""
        url = self._environment.fresh_baseline()
        measurement = run_in_parallel(producers, baseline_postgres.insert, url, jobs)
        self._environment.remove(url)
        return measurement

    @property
    def pickup_description(self) -> str:
        """What :meth:`pickup_times` measures."""
        return f"a durable insert that tells, and a durable claim by one who listens, by {self.name}"

    def pickup_times(self, jobs: int, interval: float) -> list[float]:
        """Insert a row now and then, and have another process take it."""
        url = self._environment.fresh_baseline()
        began, held = run_pair(
            partial(baseline_postgres.insert_and_notify, url, jobs, interval),
            partial(baseline_postgres.listen_and_claim, url, jobs),
        )
        self._environment.remove(url)
        return [held[number] - moment for number, moment in enumerate(began) if number in held]

    def bare_store(self) -> Callable[[], BareStore]:
        """Give what opens an empty table."""
        return partial(baseline_postgres.BareStore, self._environment.fresh_baseline())

    def bulk_variants(self, jobs: int, batch: int) -> Mapping[str, Variant]:
        """Give the ways to insert rows in batches."""

        def measure(way: Any) -> Measurement:
            url = self._environment.fresh_baseline()
            measurement: Measurement = run_isolated(way, url, jobs, batch)
            self._environment.remove(url)
            return measurement

        ways = {"unnest": baseline_postgres.insert_by_unnest, "copy": baseline_postgres.insert_by_copy}
        return {name: partial(measure, way) for name, way in ways.items()}


def _in_database(url: str, name: str) -> str:
    parts = urlsplit(url)
    asked = [(key, value) for key, value in parse_qsl(parts.query) if key not in {"dbname", "direct"}]
    return f"postgresql://{parts.netloc}/{name}?{urlencode(asked, quote_via=quote, safe='')}"


def _without_ours(url: str) -> str:
    """Leave out what only Onward understands: libpq and asyncpg refuse what they do not know."""
    address, _, query = url.partition("?")
    rest = [(key, value) for key, value in parse_qsl(query) if key not in {"schema", "notify", "direct"}]
    return f"{address}?{urlencode(rest, quote_via=quote, safe='')}" if rest else address
