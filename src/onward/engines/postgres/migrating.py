"""The steps of this engine's schema, and how they are applied: see :mod:`onward.postgresql.migrating`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from onward.engine import migrations
from onward.engine.migrations import Migration
from onward.engines.postgres.schema import Schema
from onward.postgresql import migrating
from onward.postgresql.database import Database
from onward.postgresql.migrating import Migrations

MIGRATIONS: Final = migrations.load("onward.engines.postgres")


def migrate(
    connection: psycopg.Connection[Any], schema: Schema, database: Database, shipped: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """Apply what is missing; answer what was applied."""
    return Migrations(schema.name, database, shipped).migrate(connection)


def check(
    connection: psycopg.Connection[Any], schema: Schema, database: Database, shipped: Sequence[Migration] = MIGRATIONS
) -> int:
    """Say which schema there is; refuse one that is too new, or too old to work with."""
    return Migrations(schema.name, database, shipped).check(connection)


def script(schema: Schema | None = None, shipped: Sequence[Migration] = MIGRATIONS) -> str:
    """Write the whole schema as SQL that can be applied by hand, and that records itself."""
    return migrating.script((schema or Schema()).name, shipped)
