"""Brings a database's schema up to date, under its write lock: ten workers may start at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from onward.engine import migrations
from onward.engine.migrations import Migration
from onward.engines.sqlite.database import Database
from onward.engines.sqlite.transaction import Transaction
from onward.errors import SchemaChanged, SchemaTooOld

MIGRATIONS: Final = migrations.load("onward.engines.sqlite")

_MIGRATION_TABLE: Final = """
create table if not exists onward_migration (
  number     integer primary key,
  name       text    not null,
  checksum   text    not null,
  applied_at integer not null
)
"""


def migrate(transaction: Transaction, database: Database, shipped: Sequence[Migration] = MIGRATIONS) -> list[Migration]:
    """Apply what is missing and record it, all in this transaction; answer what was applied."""
    connection = transaction.connection
    missing = _plan(shipped, applied(connection), database)
    if missing:
        connection.execute(_MIGRATION_TABLE)
    for migration in missing:
        for statement in split(migration.sql):
            connection.execute(statement)
        connection.execute(
            "insert into onward_migration values (?, ?, ?, ?)",
            (migration.number, migration.name, migration.checksum, transaction.now),
        )
    return list(missing)


def check(connection: sqlite3.Connection, database: Database, shipped: Sequence[Migration] = MIGRATIONS) -> int:
    """Say which schema there is; refuse one that is too new, or too old to work with."""
    have = applied(connection)
    missing = _plan(shipped, have, database)
    if missing:
        message = f"{database} has schema {max(have, default=0)}, this version needs {len(shipped)}: run onward migrate"
        raise SchemaTooOld(message)
    return max(have, default=0)


def is_up_to_date(
    connection: sqlite3.Connection, database: Database, shipped: Sequence[Migration] = MIGRATIONS
) -> bool:
    """Say whether nothing is missing; refuse a schema that is too new."""
    return not _plan(shipped, applied(connection), database)


def _plan(shipped: Sequence[Migration], have: Mapping[int, str], database: Database) -> Sequence[Migration]:
    """Return the missing steps; a file that cannot be migrated is refused with how to make a new one."""
    try:
        return migrations.plan(shipped, have, store=str(database))
    except SchemaChanged as error:
        # All files beside it too: SQLite would apply a write-ahead log that is left there to the new file.
        remedy = f"To make a new one, move {database.path.name}* away or give another path, and run: onward migrate"
        message = f"{error}. {remedy}"
        raise SchemaChanged(message) from None


def applied(connection: sqlite3.Connection) -> dict[int, str]:
    """Read which steps a database has, with their checksums."""
    exists = connection.execute("select 1 from sqlite_schema where name = 'onward_migration'").fetchone()
    if exists is None:
        return {}
    return dict(connection.execute("select number, checksum from onward_migration").fetchall())


def script(shipped: Sequence[Migration] = MIGRATIONS) -> str:
    """Write the whole schema as SQL that can be applied by hand, and that records itself."""
    parts = ["begin immediate;", f"{_MIGRATION_TABLE.strip()};"]
    for migration in shipped:
        parts.append(migration.sql.strip())
        now = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
        values = f"{migration.number}, '{migration.name}', '{migration.checksum}', {now}"
        parts.append(f"insert into onward_migration values ({values});")  # noqa: S608 - our own file names
    return "\n\n".join([*parts, "commit;", ""])


def split(script: str) -> list[str]:
    """Cut a script into statements: ``executescript`` would commit our transaction."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    return statements
