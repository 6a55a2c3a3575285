"""What a transaction reads, as the server itself counts it: from which table or index, and how many rows.

Plans are driven on a connection of one's own: while its transaction is open, what it has read can be asked for in it,
through a pooler too. So what is seen are the plans that workers really get, with the settings that our functions pin,
whatever those functions do inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import psycopg

from onward.engine.values import Claim, ClaimRequest
from onward.engines.postgres import claims
from onward.engines.postgres.statements import Schema
from onward.pg.caller_transaction import on_psycopg
from onward.pg.plan_runner import Plan, Statement, run

T = TypeVar("T")

_COUNTS = """
select of.relname, max(c.relkind), sum(pg_stat_get_xact_numscans(c.oid))::bigint,
       sum(pg_stat_get_xact_tuples_returned(c.oid))::bigint
  from pg_class c join pg_class of on of.oid = coalesce(pg_partition_root(c.oid), c.oid)
 where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'i')
 group by of.relname"""


class Count(NamedTuple):
    """What was read by one index, or of one table without any. The parts of a partitioned one count as one."""

    scans: int
    rows: int


class Reads(dict[str, Count]):
    """What was read: by the name of the index, or of the table that was read without one."""

    @property
    def rows(self) -> int:
        """How many rows or entries, of all."""
        return sum(count.rows for count in self.values())

    def of(self, *beginnings: str) -> Reads:
        """Keep what has a name that begins so."""
        return Reads({name: count for name, count in self.items() if name.startswith(beginnings)})


class Session:
    """A connection on which plans are driven in one transaction, until it is committed or undone."""

    def __init__(self, url: str, schema: Schema) -> None:
        self.connection: psycopg.Connection[Any] = psycopg.connect(url)
        self.schema = schema
        self.commit, self.rollback = self.connection.commit, self.connection.rollback

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def run(self, plan: Plan[T]) -> T:
        """Drive a plan."""
        return run(plan, on_psycopg(self.connection))

    def ask(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Execute a single statement of a plan."""
        return list(on_psycopg(self.connection)(statement))

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        """Execute what a test has to say by hand; ``onward.`` stands for the schema."""
        return self.ask(Statement(self.schema.insert_schema_name(text)))

    def take(self, *queues: str, slots: int = 0, **fields: Any) -> tuple[Claim, ...]:
        """Claim jobs, as a worker that begins its way round."""
        request = ClaimRequest(worker_id="w", queues=queues or ("default",), slots=slots, **fields)
        return self.run(claims.claim(self.schema, request, claims.RoundRobin())).claims

    @contextmanager
    def reading(self) -> Iterator[Reads]:
        """Count what is read in a block, in the transaction that is open at its end. To be looked at behind it."""
        reads, before = Reads(), self._counts()
        yield reads
        for name, count in self._counts().items():
            scans, rows = count.scans - before[name].scans, count.rows - before[name].rows
            if scans:
                reads[name] = Count(scans, rows)

    def _counts(self) -> dict[str, Count]:
        found = self.ask(Statement(_COUNTS, [self.schema.name]))
        # Of a table it is the rows that count: a part with none in it may as well be read from end to end.
        return {name: Count(rows if kind == "r" else scans, rows) for name, kind, scans, rows in found}
