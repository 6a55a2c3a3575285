"""Brings a schema of ours up to date, one at a time: ten workers may start at once.

There are two ways, which come to the same: our own, and a script for whoever applies SQL by hand. Both refuse a schema
that a later version made, one whose steps are not those shipped, and one that is in use for something else.

A step may need a table for itself alone. As long as it waits for that, behind a transaction that somebody has left
open, everybody else waits behind it. So it does not wait for long: it lets the others go first, and tries again.

What has to be done again when a schema has changed, such as giving roles what they need for what is new, is done in the
same transaction: workers of the version before go on, and come upon the new schema as soon as it is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import errors as pg

from onward.engine import migrations
from onward.engine.migrations import Migration
from onward.errors import InvalidValue, SchemaTooOld, StoreBusy, StoreUnavailable
from onward.pg.database import Database
from onward.pg.schema_name import insert_schema_name, own_schema
from onward.pg.timed_connection import TimedConnection

log = logging.getLogger("onward.pg")

MIN_SERVER_VERSION: Final = 140_000
"""PostgreSQL 14: SQL-standard function bodies."""

LOCK_TIMEOUT_MS: Final = 500
"""Milliseconds for which a step waits for a table, and others behind it. Less than the second after which the server
looks for a deadlock: who gives way in one is the step, and not a worker."""
RETRY_DELAY: Final = 1.0
"""Seconds until it is tried again."""
MAX_TRIES: Final = 40
"""How often it is tried: for a minute or so."""

CREATED_MEANWHILE: Final = (pg.DuplicateSchema, pg.DuplicateTable, pg.DuplicateObject, pg.UniqueViolation)
"""What the server says to those who create what another has just created."""

NO_STATEMENTS: Final = "select $1::text where false"
"""No statements to be run again."""

_MIGRATION_TABLE: Final = """
create table onward.migration (
  number     integer     primary key,
  name       text        not null,
  checksum   text        not null,
  applied_at timestamptz not null default now()
)
"""

# Not to_regclass() and the like: they may remember that there was none before somebody else's transaction made it.
_SCHEMA_EXISTS: Final = "exists (select from pg_catalog.pg_namespace where nspname = $1)"
_HAS_MIGRATION_TABLE: Final = """exists (
        select from pg_catalog.pg_attribute a
          join pg_catalog.pg_class c on c.oid = a.attrelid and c.relname = 'migration' and c.relkind = 'r'
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
         where a.attname in ('number', 'name', 'checksum', 'applied_at')
        having count(*) = 4)"""
# Whatever is in a schema depends on it; what is only said of it, such as default privileges, does so in another way.
_HAS_OBJECTS: Final = """exists (
        select from pg_catalog.pg_depend d
          join pg_catalog.pg_namespace n on n.oid = d.refobjid and n.nspname = $1
         where d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass and d.deptype = 'n')"""
_LOCK_HOLDER: Final = """
select pg_catalog.concat_ws(' ', 'session', a.pid, nullif(a.application_name, ''))
  from pg_catalog.pg_locks l
  join pg_catalog.pg_class c on c.oid = l.relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
  join pg_catalog.pg_database b on b.oid = l.database and b.datname = pg_catalog.current_database()
  join pg_catalog.pg_stat_activity a on a.pid = l.pid and a.pid <> pg_catalog.pg_backend_pid()
 where l.granted
 order by a.xact_start
 limit 1"""

# Some clients send a text statement by statement, and not all of them stop at the first that fails. So it is one.
_SCRIPT: Final = """\
-- Makes the schema {schema} of Onward, or brings an older one up to date. It can be run any number of times. It is one
-- statement, which is done as a whole or not at all. So that psql ends with an error if it is not:
-- psql -v ON_ERROR_STOP=1
do {quote}
declare
  schema_name constant text := '{schema}';
  newest  constant integer := {newest};
  latest  integer;
  known   text;
  applied integer;
  tries   integer := 0;
  holder  text;
  step    record;
  post_statements text[];
  statement       text;
begin
  if current_setting('server_version_num')::integer < {min_server_version} then
    raise exception 'this is PostgreSQL %, Onward needs {min_major_version}: upgrade the server',
      current_setting('server_version');
  end if;
  -- One at a time. Of several that create the table at once, all but one wait for that one, and find it then.
  while not {has_migration_table} loop
    if {has_objects} then
      raise exception 'schema % {is_foreign}', schema_name;
    end if;
    begin
      if not {schema_exists} then
        create schema onward;
      end if;
      {migration_table};
    exception when duplicate_schema or duplicate_table or duplicate_object or unique_violation then
      tries := tries + 1;
      if tries = {max_tries} then
        raise exception 'another session has created schema %, and this transaction cannot see it: try again',
          schema_name;
      end if;
    end;
  end loop;
  tries := 0;
  lock table onward.migration in share row exclusive mode;
  loop
    begin
      perform set_config('lock_timeout', '{lock_timeout_ms}', true);
      latest := (select max(m.number) from onward.migration m);
      if latest > newest then
        raise exception 'schema % is at step %, this script knows %: upgrade Onward, and have it write the script',
          schema_name, latest, newest;
      end if;
      applied := 0;
      post_statements := array({post_query});
      for step in select s.* from (values
{steps}
      ) s (number, name, checksum, text) loop
        known := (select m.checksum from onward.migration m where m.number = step.number);
        if known <> step.checksum then
          raise exception 'schema % has another step % (%) than this script: it was made by a development version, '
            'or was edited; restore the file or start from a fresh store', schema_name, step.number, step.name;
        elsif known is null then
          execute step.text;
          insert into onward.migration (number, name, checksum) values (step.number, step.name, step.checksum);
          applied := applied + 1;
        end if;
      end loop;
      if applied > 0 then
        foreach statement in array post_statements loop
          execute statement;
        end loop;
      end if;
      exit;
    exception when lock_not_available or deadlock_detected then
      tries := tries + 1;
      if tries = {max_tries} then
        holder := ({holder});
        raise exception 'schema % was not brought up to date: % holds its tables; end that, or try again afterwards',
          schema_name, coalesce(holder, 'another session') using errcode = 'lock_not_available';
      end if;
      perform pg_sleep({retry_delay});
    end;
  end loop;
  raise notice 'schema % is at step %, steps applied now: %', schema_name, newest, applied;
end
{quote};
"""


class Migrations:
    """The steps of one schema, by its name, in one database.

    ``post_query`` asks, given that name and before any step, for the statements that are run after the last one.
    """

    def __init__(
        self, schema: str, database: Database, shipped: Sequence[Migration], *, post_query: str = NO_STATEMENTS
    ) -> None:
        self._schema = schema
        self._database = database
        self._shipped = shipped
        self._post_query = post_query

    def migrate(self, connection: psycopg.Connection[Any]) -> list[Migration]:
        """Apply what is missing and record it, all in one transaction; answer what was applied.

        A user that may not make tables can work all the same, as long as nothing is missing.
        """
        check_version(connection, self._database)
        if not self._missing(connection):
            return []
        if isinstance(connection, TimedConnection):
            connection.query_timeout = None  # others may be at it, and what is changed may be large
        with connection.transaction():
            # Whatever the role's default: who has waited for another's commit must see it.
            connection.execute("set transaction isolation level read committed")
            # Kept while we pause: of ten that wait for a table one after the other, nobody would get past.
            self._lock(connection)
            tries = 1
            while True:
                try:
                    with connection.transaction():
                        return self._apply(connection)
                except (pg.LockNotAvailable, pg.DeadlockDetected) as error:
                    self._on_lock_timeout(connection, tries, error)
                connection.execute("select pg_sleep($1)", [RETRY_DELAY])
                tries += 1

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        """Let one migrate at a time.

        Of several that create the table at once, all but one wait for that one, and find it then. No advisory lock: any
        role that can connect can take one.
        """
        while True:
            self.applied(connection)  # refuses a schema that is in use for something else
            schema_exists, has_migration_table, _ = self._inspect(connection)
            if has_migration_table:
                break
            with suppress(*CREATED_MEANWHILE), connection.transaction():
                if not schema_exists:
                    connection.execute(insert_schema_name(self._schema, "create schema onward"))
                connection.execute(insert_schema_name(self._schema, _MIGRATION_TABLE))
        connection.execute(insert_schema_name(self._schema, "lock table onward.migration in share row exclusive mode"))

    def _apply(self, connection: psycopg.Connection[Any]) -> list[Migration]:
        missing = list(self._missing(connection))
        connection.execute(f"set local lock_timeout = {LOCK_TIMEOUT_MS}")
        post_statements = connection.execute(
            insert_schema_name(self._schema, self._post_query), [self._schema]
        ).fetchall()
        for migration in missing:
            connection.execute(insert_schema_name(self._schema, migration.sql))
            connection.execute(
                insert_schema_name(
                    self._schema, "insert into onward.migration (number, name, checksum) values ($1, $2, $3)"
                ),
                [migration.number, migration.name, migration.checksum],
            )
        for (statement,) in post_statements:
            connection.execute(statement)
        return missing

    def _on_lock_timeout(self, connection: psycopg.Connection[Any], tries: int, error: psycopg.Error) -> None:
        """Say who holds the tables; give up when it has been tried often enough."""
        found = connection.execute(_LOCK_HOLDER, [self._schema]).fetchone()
        holder = "another session" if found is None else found[0]
        if tries >= MAX_TRIES:
            message = f"{self} was not brought up to date: {holder} holds its tables; end that, or try again afterwards"
            raise StoreBusy(message) from error
        if tries == 1:
            log.warning("%s is not brought up to date yet: %s holds its tables", self, holder)

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
        """Read which steps a schema has, with their checksums; refuse one that is in use for something else."""
        _, has_migration_table, has_objects = self._inspect(connection)
        if has_migration_table:
            return dict(
                connection.execute(
                    insert_schema_name(self._schema, "select number, checksum from onward.migration")
                ).fetchall()
            )
        if has_objects:
            raise InvalidValue("schema", self._schema, _foreign(self._schema))
        return {}

    def script(self) -> str:
        """Write the whole schema as SQL that can be applied by hand, and that records itself."""
        return script(self._schema, self._shipped, post_query=self._post_query)

    def _inspect(self, connection: psycopg.Connection[Any]) -> tuple[bool, bool, bool]:
        """See whether the schema is there, whether it is ours, and whether there is anything in it."""
        query = f"select {_SCHEMA_EXISTS}, {_HAS_MIGRATION_TABLE}, {_HAS_OBJECTS}"
        ((schema_exists, has_migration_table, has_objects),) = connection.execute(query, [self._schema]).fetchall()
        return schema_exists, has_migration_table, has_objects

    def _missing(self, connection: psycopg.Connection[Any]) -> Sequence[Migration]:
        return migrations.plan(self._shipped, self.applied(connection), store=str(self))

    def __str__(self) -> str:
        """Name it as errors do."""
        return f"{self._database}, schema {self._schema},"


def script(schema: str, shipped: Sequence[Migration], *, post_query: str = NO_STATEMENTS) -> str:
    """Write a whole schema as SQL that can be applied by hand: it makes what is missing, and records that."""
    steps = ",\n".join(
        f"({step.number}, '{step.name}', '{step.checksum}', {_quoted(insert_schema_name(schema, step.sql))})"
        for step in shipped
    )
    return insert_schema_name(schema, _SCRIPT).format(
        schema=schema,
        newest=len(shipped),
        min_server_version=MIN_SERVER_VERSION,
        min_major_version=MIN_SERVER_VERSION // 10_000,
        lock_timeout_ms=LOCK_TIMEOUT_MS,
        retry_delay=RETRY_DELAY,
        max_tries=MAX_TRIES,
        schema_exists=_SCHEMA_EXISTS.replace("$1", "schema_name"),
        has_migration_table=_HAS_MIGRATION_TABLE.replace("$1", "schema_name"),
        has_objects=_HAS_OBJECTS.replace("$1", "schema_name"),
        holder=_LOCK_HOLDER.replace("$1", "schema_name"),
        is_foreign=_foreign(schema).replace("'", "''"),
        migration_table=insert_schema_name(schema, _MIGRATION_TABLE.strip()),
        post_query=insert_schema_name(schema, post_query.strip()).replace("$1", "schema_name"),
        steps=steps,
        quote=_dollar_quote("script", steps),
    )


def _foreign(schema: str) -> str:
    return f"holds objects that are not Onward's: {own_schema(schema)}"


def _quoted(text: str) -> str:
    quote = _dollar_quote("step", text)
    return f"{quote}\n{text.strip()}\n{quote}"


def _dollar_quote(tag: str, text: str) -> str:
    """Make of a word what a text can be quoted with, because it is not in it."""
    while f"${tag}$" in text:
        tag += "_"
    return f"${tag}$"


def check_version(connection: psycopg.Connection[Any], database: Database) -> None:
    """Refuse a server that is too old."""
    if connection.info.server_version < MIN_SERVER_VERSION:
        have = connection.info.server_version // 10_000
        message = f"{database} is PostgreSQL {have}, Onward needs {MIN_SERVER_VERSION // 10_000}: upgrade the server"
        raise StoreUnavailable(message)
