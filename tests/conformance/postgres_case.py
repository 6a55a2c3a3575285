"""PostgreSQL under test: a schema of its own for each store, on one server for all."""

from __future__ import annotations

from itertools import count
from os import getpid
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from onward.engine.checked import CheckedEngine
from onward.engine.contract import Engine
from onward.engines.postgres.engine import CAPABILITIES, PostgresEngine
from onward.job import JobRef
from onward.lifecycle import JobStatus
from tests.conformance.cases import Caller, EngineCase, Store
from tests.servers.pgbouncer import engines_url

_numbers = count()


class PostgresStore(Store):
    """A schema of the test database."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.url = engines_url()
        self.schema = f"onward_{getpid()}_{next(_numbers)}"
        self.address = f"{self.schema} {self.url}"

    def bare(self) -> Engine:
        """See :class:`Store`."""
        return PostgresEngine(
            self.url, schema=self.schema, clock=self.clock, events=self.recorded, max_events=self.max_events
        )

    async def force(self, ref: JobRef, state: JobStatus) -> None:
        """See :class:`Store`."""
        assert state is JobStatus.BLOCKED
        self._by_hand(f"update {self.schema}.job set pending_dependencies = 1, ready_at = null where id = %s", ref.id)

    async def edit_by_hand(self, ref: JobRef) -> None:
        """See :class:`Store`."""
        self._by_hand(f"""update {self.schema}.job set payload = '{{"by": "hand"}}' where id = %s""", ref.id)

    def refuse_audit(self) -> None:
        """See :class:`Store`."""
        refuse_audit(self.url, self.schema)

    def _by_hand(self, statement: str, *values: str) -> None:
        with psycopg.connect(self.url) as connection:
            assert connection.execute(statement, values).rowcount == 1

    def new_caller(self) -> Caller:
        """See :class:`Store`."""
        return PsycopgCaller(self.url, f"note_{self.schema}")

    def new_stranger(self) -> Caller:
        """See :class:`Store`."""
        return PsycopgCaller(other_database(self.url), f"note_{self.schema}")

    async def close(self) -> None:
        """See :class:`Store`."""
        await super().close()
        with psycopg.connect(self.url) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute(f"drop schema if exists {self.schema} cascade")
            connection.execute(f"drop table if exists note_{self.schema}")


def refuse_audit(url: str, schema: str) -> None:
    """Have a schema refuse new audit records from now on."""
    with psycopg.connect(url) as connection:
        connection.execute(f"alter table {schema}.audit add constraint refused check (false) not valid")


def other_database(url: str) -> str:
    """Give the address of another database on the same server."""
    return make_conninfo(url, dbname="template1")


class PsycopgCaller(Caller):
    """A plain psycopg connection, as ``psycopg.connect`` gives it."""

    handle: psycopg.Connection[Any]

    def __init__(self, url: str, table: str) -> None:
        self.handle = psycopg.connect(url)
        self._table = table
        if "template1" not in url:
            with self.handle.transaction():
                self.handle.execute(f"create table if not exists {table} (no serial, text text)")

    def begin(self) -> None:
        """See :class:`Caller`."""
        self.handle.execute("select 1")

    def note(self, text: str) -> None:
        """See :class:`Caller`."""
        self.handle.execute(f"insert into {self._table} (text) values (%s)", [text])

    def notes(self) -> list[str]:
        """See :class:`Caller`."""
        return [text for (text,) in self.handle.execute(f"select text from {self._table} order by no")]

    def commit(self) -> None:
        """See :class:`Caller`."""
        self.handle.commit()

    def rollback(self) -> None:
        """See :class:`Caller`."""
        self.handle.rollback()

    def close(self) -> None:
        """See :class:`Caller`."""
        self.handle.close()


def attach(address: str) -> CheckedEngine:
    """Make a handle on the store at an address."""
    schema, url = address.split(" ", 1)
    return CheckedEngine(PostgresEngine(url, schema=schema))


POSTGRES: EngineCase = EngineCase(
    name="postgres", make=PostgresStore, attach=attach, capable=lambda: CAPABILITIES, has_native_ids=True
)
