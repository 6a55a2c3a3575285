"""Brings a schema up to date, under a lock of the database's: ten workers may start at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from onward.engine import migrations
from onward.engine.migrations import Migration
from onward.engines.postgres.schema import Schema
from onward.errors import SchemaTooOld, StoreUnavailable
from onward.postgresql.database import Database

MIGRATIONS: Final = migrations.load("onward.engines.postgres")

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


def migrate(
    connection: psycopg.Connection[Any], schema: Schema, database: Database, shipped: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """Apply what is missing and record it, all in one transaction; answer what was applied.

    A user that may not make tables can work all the same, as long as nothing is missing.
    """
    check_version(connection, database)
    if not migrations.plan(shipped, applied(connection, schema), store=_named(database, schema)):
        return []
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", [f"{schema.name}.migration"])
        missing = migrations.plan(shipped, applied(connection, schema), store=_named(database, schema))
        if missing:
            connection.execute(_ledger(schema))
        for migration in missing:
            connection.execute(schema.put_in(migration.sql))
            connection.execute(
                schema.put_in("insert into onward.migration (number, name, checksum) values ($1, $2, $3)"),
                [migration.number, migration.name, migration.checksum],
            )
    return list(missing)


def check(
    connection: psycopg.Connection[Any], schema: Schema, database: Database, shipped: Sequence[Migration] = MIGRATIONS
) -> int:
    """Say which schema there is; refuse one that is too new, or too old to work with."""
    check_version(connection, database)
    have = applied(connection, schema)
    missing = migrations.plan(shipped, have, store=_named(database, schema))
    if missing:
        message = (
            f"{_named(database, schema)} is at step {max(have, default=0)}, this version needs {len(shipped)}: "
            "run onward migrate"
        )
        raise SchemaTooOld(message)
    return max(have, default=0)


def applied(connection: psycopg.Connection[Any], schema: Schema) -> dict[int, str]:
    """Read which steps a schema has, with their checksums."""
    # Not to_regclass(): it may remember that there was none before somebody else's transaction made it.
    found = connection.execute(
        "select from pg_catalog.pg_tables where schemaname = $1 and tablename = 'migration'", [schema.name]
    ).fetchone()
    if found is None:
        return {}
    return dict(connection.execute(schema.put_in("select number, checksum from onward.migration")).fetchall())


def check_version(connection: psycopg.Connection[Any], database: Database) -> None:
    """Refuse a server that is too old."""
    if connection.info.server_version < OLDEST:
        have = connection.info.server_version // 10_000
        message = f"{database} is PostgreSQL {have}, Onward needs {OLDEST // 10_000}: upgrade the server"
        raise StoreUnavailable(message)


def script(schema: Schema | None = None, shipped: Sequence[Migration] = MIGRATIONS) -> str:
    """Write the whole schema as SQL that can be applied by hand, and that records itself."""
    schema = schema or Schema()
    parts = ["begin;", f"{_ledger(schema).strip()};"]
    for migration in shipped:
        parts.append(schema.put_in(migration.sql.strip()))
        values = f"{migration.number}, '{migration.name}', '{migration.checksum}'"
        record = f"insert into onward.migration (number, name, checksum) values ({values});"  # noqa: S608 - our own files
        parts.append(schema.put_in(record))
    return "\n\n".join([*parts, "commit;", ""])


def _ledger(schema: Schema) -> str:
    return schema.put_in(_LEDGER)


def _named(database: Database, schema: Schema) -> str:
    return f"{database}, schema {schema.name},"
