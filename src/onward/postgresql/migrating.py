"""Brings a schema of ours up to date, under a lock of the database's: ten workers may start at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from onward.engine import migrations
from onward.engine.migrations import Migration
from onward.errors import SchemaTooOld, StoreUnavailable
from onward.postgresql.database import Database
from onward.postgresql.naming import put_in
from onward.postgresql.patience import PatientConnection

OLDEST: Final = 140_000
"""PostgreSQL 14: SQL-standard function bodies."""

_LEDGER: Final = """
create schema if not exists onward;
create table if not exists onward.migration (
  number     integer     primary key,
  name       text        not null,
  checksum   text        not null,
  applied_at timestamptz not null default now()
)
"""


class Migrations:
    """The steps of one schema, by its name, in one database."""

    def __init__(self, schema: str, database: Database, shipped: Sequence[Migration]) -> None:
        self._schema = schema
        self._database = database
        self._shipped = shipped

    def migrate(self, connection: psycopg.Connection[Any]) -> list[Migration]:
        """Apply what is missing and record it, all in one transaction; answer what was applied.

        A user that may not make tables can work all the same, as long as nothing is missing.
        """
        check_version(connection, self._database)
        if not self._missing(connection):
            return []
        if isinstance(connection, PatientConnection):
            connection.patience = None  # others may be at it, and what is changed may be large
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", [f"{self._schema}.migration"])
            missing = self._missing(connection)
            if missing:
                connection.execute(put_in(self._schema, _LEDGER))
            for migration in missing:
                connection.execute(put_in(self._schema, migration.sql))
                connection.execute(
                    put_in(self._schema, "insert into onward.migration (number, name, checksum) values ($1, $2, $3)"),
                    [migration.number, migration.name, migration.checksum],
                )
        return list(missing)

    def check(self, connection: psycopg.Connection[Any]) -> int:
        """Say which schema there is; refuse one that is too new, or too old to work with."""
        check_version(connection, self._database)
        have = self.applied(connection)
        if migrations.plan(self._shipped, have, store=str(self)):
            message = (
                f"{self} is at step {max(have, default=0)}, this version needs {len(self._shipped)}: run onward migrate"
            )
            raise SchemaTooOld(message)
        return max(have, default=0)

    def applied(self, connection: psycopg.Connection[Any]) -> dict[int, str]:
        """Read which steps a schema has, with their checksums."""
        # Not to_regclass(): it may remember that there was none before somebody else's transaction made it.
        found = connection.execute(
            "select from pg_catalog.pg_tables where schemaname = $1 and tablename = 'migration'", [self._schema]
        ).fetchone()
        if found is None:
            return {}
        return dict(
            connection.execute(put_in(self._schema, "select number, checksum from onward.migration")).fetchall()
        )

    def script(self) -> str:
        """Write the whole schema as SQL that can be applied by hand, and that records itself."""
        return script(self._schema, self._shipped)

    def _missing(self, connection: psycopg.Connection[Any]) -> Sequence[Migration]:
        return migrations.plan(self._shipped, self.applied(connection), store=str(self))

    def __str__(self) -> str:
        """Name it as errors do."""
        return f"{self._database}, schema {self._schema},"


def script(schema: str, shipped: Sequence[Migration]) -> str:
    """Write a whole schema as SQL that can be applied by hand, and that records itself."""
    parts = ["begin;", f"{put_in(schema, _LEDGER).strip()};"]
    for migration in shipped:
        parts.append(put_in(schema, migration.sql.strip()))
        values = f"{migration.number}, '{migration.name}', '{migration.checksum}'"
        record = f"insert into onward.migration (number, name, checksum) values ({values});"  # noqa: S608 - our own files
        parts.append(put_in(schema, record))
    return "\n\n".join([*parts, "commit;", ""])


def check_version(connection: psycopg.Connection[Any], database: Database) -> None:
    """Refuse a server that is too old."""
    if connection.info.server_version < OLDEST:
        have = connection.info.server_version // 10_000
        message = f"{database} is PostgreSQL {have}, Onward needs {OLDEST // 10_000}: upgrade the server"
        raise StoreUnavailable(message)
