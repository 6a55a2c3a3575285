"""The steps of this engine's schema, and how they are applied: see :mod:`onward.pg.migrations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from onward.engine.migrations import Migration, load
from onward.engines.postgres.statements import Schema
from onward.pg import migrations
from onward.pg.database import Database
from onward.pg.migrations import Migrations

MIGRATIONS: Final = load("onward.engines.postgres")

# A step may bring a table that a trigger writes to, and then workers of the version before do; or make a function anew,
# and then nobody may call it. Who was allowed is asked before the steps. That somebody has a policy of theirs, or may
# call one of the two functions, does not make them a worker, a server or a producer.
_AGAIN: Final = """
with role as (select oid, rolname from pg_catalog.pg_roles union all select 0, 'public'),
ours as (select oid from pg_catalog.pg_namespace where nspname = $1)
select pg_catalog.format('select onward.allow_worker(%L)', r.rolname)
  from ours o
  join pg_catalog.pg_class c on c.relnamespace = o.oid and c.relname = 'job'
  join pg_catalog.pg_policy p on p.polrelid = c.oid and p.polname ~ '^worker_[0-9]+_'
  join role r on r.oid = any (p.polroles)
union all
select pg_catalog.format('select onward.allow_server(%L)', r.rolname)
  from ours o
  join pg_catalog.pg_class c on c.relnamespace = o.oid and c.relname = 'token'
  join pg_catalog.pg_policy p on p.polrelid = c.oid and p.polname ~ '^server_[0-9]+_'
  join role r on r.oid = any (p.polroles)
union all
select pg_catalog.format('select onward.allow_producer(%L, %L)', r.rolname, bool_or(p.proname = 'cancel'))
  from ours o
  join pg_catalog.pg_proc p on p.pronamespace = o.oid and p.proname in ('enqueue', 'cancel')
  cross join pg_catalog.aclexplode(p.proacl) a
  join role r on r.oid = a.grantee
 where a.grantee <> p.proowner
 group by r.rolname
having bool_or(p.proname = 'enqueue')"""


def migrate(
    connection: psycopg.Connection[Any], schema: Schema, database: Database, shipped: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """Apply what is missing; answer what was applied."""
    return Migrations(schema.name, database, shipped, post_query=_AGAIN).migrate(connection)


def check(
    connection: psycopg.Connection[Any], schema: Schema, database: Database, shipped: Sequence[Migration] = MIGRATIONS
) -> int:
    """Say which schema there is; refuse one that is too new, or too old to work with."""
    return Migrations(schema.name, database, shipped).check(connection)


def script(schema: Schema | None = None, shipped: Sequence[Migration] = MIGRATIONS) -> str:
    """Write the whole schema as SQL that can be applied by hand, and that records itself."""
    return migrations.script((schema or Schema()).name, shipped, post_query=_AGAIN)
