"""pg-boss under test: a schema of its own for each store, made by pg-boss's own SQL, on one server for all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from os import getpid
from pathlib import Path

import psycopg

from onward.clock import ManualClock
from onward.engine.checked import CheckedEngine
from onward.engine.contract import Engine
from onward.engines.pgboss.engine import CAPABILITIES, PgBossEngine
from onward.job import JobRef
from onward.lifecycle import JobStatus
from tests.conformance.cases import Caller, EngineCase, Store
from tests.conformance.postgres_case import PsycopgCaller, other_database, refuse_audit
from tests.servers.pgboss import drop_schema, make_schema
from tests.servers.postgres import postgres_url

_numbers = count()


class PgBossStore(Store):
    """A schema of the newest pg-boss in the test database. It is supervised by us, for no Node runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        # Time alone makes a job ready there, and other processes go by the real time.
        self.clock = ManualClock(datetime.now(UTC).replace(microsecond=0) - timedelta(days=1))
        self.url = postgres_url()
        self.schema = f"pgboss_{getpid()}_{next(_numbers)}"
        self.address = f"{self.schema} {self.url}"
        make_schema(self.url, self.schema)

    def bare(self) -> Engine:
        """See :class:`Store`."""
        return PgBossEngine(self.url, schema=self.schema, supervise=True, clock=self.clock)

    async def force(self, ref: JobRef, state: JobStatus) -> None:
        """See :class:`Store`."""
        assert state is JobStatus.BLOCKED
        self._by_hand(f"update {self.schema}.job set blocked = true where id = %s", ref.id)

    async def edit_by_hand(self, ref: JobRef) -> None:
        """See :class:`Store`."""
        self._by_hand(f"""update {self.schema}.job set data = '{{"by": "hand"}}' where id = %s""", ref.id)

    def refuse_audit(self) -> None:
        """See :class:`Store`."""
        refuse_audit(self.url, f"{self.schema}_onward")

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
        drop_schema(self.url, self.schema)
        with psycopg.connect(self.url) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute(f"drop table if exists note_{self.schema}")


def attach(address: str) -> CheckedEngine:
    """Make a handle on the store at an address."""
    schema, url = address.split(" ", 1)
    return CheckedEngine(PgBossEngine(url, schema=schema, supervise=True))


PGBOSS: EngineCase = EngineCase(
    name="pgboss", make=PgBossStore, attach=attach, capable=lambda: CAPABILITIES, has_native_ids=True
)
