"""Brings a schema of ours up to date, under a lock of the database's: ten workers may start at once.

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
from typing import Any, Final

import psycopg
from psycopg import errors as pg

from onward.engine import migrations
from onward.engine.migrations import Migration
from onward.errors import InvalidJob, SchemaTooOld, StoreBusy, StoreUnavailable
from onward.pg.connection import TimedConnection
from onward.pg.database import Database
from onward.pg.schema_name import insert_schema_name, own_schema

log = logging.getLogger("onward.pg")

OLDEST: Final = 140_000
"""PostgreSQL 14: SQL-standard function bodies."""

WAIT: Final = 500
"""Milliseconds for which a step waits for a table, and others behind it. Less than the second after which the server
looks for a deadlock: who gives way in one is the step, and not a worker."""
PAUSE: Final = 1.0
"""Seconds until it is tried again."""
TRIES: Final = 40
"""How often it is tried: for a minute or so."""

NOTHING: Final = "select $1::text where false"
"""No statements to be run again."""

_LEDGER: Final = """
create table onward.migration (
  number     integer     primary key,
  name       text        not null,
  checksum   text        not null,
  applied_at timestamptz not null default now()
)
"""

# Not to_regclass() and the like: they may remember that there was none before somebody else's transaction made it.
_IS_THERE: Final = "exists (select from pg_catalog.pg_namespace where nspname = $1)"
_HAS_LEDGER: Final = """exists (
        select from pg_catalog.pg_attribute a
          join pg_catalog.pg_class c on c.oid = a.attrelid and c.relname = 'migration' and c.relkind = 'r'
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
         where a.attname in ('number', 'name', 'checksum', 'applied_at')
        having count(*) = 4)"""
# Whatever is in a schema depends on it; what is only said of it, such as default privileges, does so in another way.
_IS_USED: Final = """exists (
        select from pg_catalog.pg_depend d
          join pg_catalog.pg_namespace n on n.oid = d.refobjid and n.nspname = $1
         where d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass and d.deptype = 'n')"""
_HOLDER: Final = """
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
do {mark}
declare
  home    constant text := '{schema}';
  newest  constant integer := {newest};
  latest  integer;
  known   text;
  applied integer;
  tries   integer := 0;
  holder  text;
  step    record;
  again   text[];
  one     text;
begin
  if current_setting('server_version_num')::integer < {oldest} then
    raise exception 'this is PostgreSQL %, Onward needs {oldest_major}: upgrade the server',
      current_setting('server_version');
  end if;
  perform pg_advisory_xact_lock(hashtextextended(home || '.migration', 0));
  loop
    begin
      perform set_config('lock_timeout', '{wait}', true);
      if not {has_ledger} then
        if {is_used} then
          raise exception 'schema % {is_foreign}', home;
        end if;
        if not {is_there} then
          create schema onward;
        end if;
        {ledger};
      end if;
      latest := (select max(m.number) from onward.migration m);
      if latest > newest then
        raise exception 'schema % is at step %, this script knows %: upgrade Onward, and have it write the script',
          home, latest, newest;
      end if;
      applied := 0;
      again := array({again});
      for step in select s.* from (values
{steps}
      ) s (number, name, checksum, text) loop
        known := (select m.checksum from onward.migration m where m.number = step.number);
        if known <> step.checksum then
          raise exception 'schema % has another step % (%) than this script: it was made by a development version, '
            'or was edited; restore the file or start from a fresh store', home, step.number, step.name;
        elsif known is null then
          execute step.text;
          insert into onward.migration (number, name, checksum) values (step.number, step.name, step.checksum);
          applied := applied + 1;
        end if;
      end loop;
      if applied > 0 then
        foreach one in array again loop
          execute one;
        end loop;
      end if;
      exit;
    exception when lock_not_available or deadlock_detected then
      tries := tries + 1;
      if tries = {tries} then
        holder := ({holder});
        raise exception 'schema % was not brought up to date: % holds its tables; end that, or try again afterwards',
          home, coalesce(holder, 'another session') using errcode = 'lock_not_available';
      end if;
      perform pg_sleep({pause});
    end;
  end loop;
  raise notice 'schema % is at step %, steps applied now: %', home, newest, applied;
end
{mark};
"""


class Migrations:
    """The steps of one schema, by its name, in one database.

    ``again`` asks, given that name and before any step, for the statements that are run after the last one.
    """

    def __init__(self, schema: str, database: Database, shipped: Sequence[Migration], *, again: str = NOTHING) -> None:
        self._schema = schema
        self._database = database
        self._shipped = shipped
        self._again = again

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
            # Kept while we pause: of ten that wait for a table one after the other, nobody would get past.
            connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", [f"{self._schema}.migration"])
            tries = 1
            while True:
                try:
                    with connection.transaction():
                        return self._apply(connection)
                except (pg.LockNotAvailable, pg.DeadlockDetected) as error:
                    self._gave_way(connection, tries, error)
                connection.execute("select pg_sleep($1)", [PAUSE])
                tries += 1

    def _apply(self, connection: psycopg.Connection[Any]) -> list[Migration]:
        missing = list(self._missing(connection))
        connection.execute(f"set local lock_timeout = {WAIT}")
        is_there, has_ledger, _ = self._look(connection)
        if not is_there:
            connection.execute(insert_schema_name(self._schema, "create schema onward"))
        if not has_ledger:
            connection.execute(insert_schema_name(self._schema, _LEDGER))
        again = connection.execute(insert_schema_name(self._schema, self._again), [self._schema]).fetchall()
        for migration in missing:
            connection.execute(insert_schema_name(self._schema, migration.sql))
            connection.execute(
                insert_schema_name(
                    self._schema, "insert into onward.migration (number, name, checksum) values ($1, $2, $3)"
                ),
                [migration.number, migration.name, migration.checksum],
            )
        for (statement,) in again:
            connection.execute(statement)
        return missing

    def _gave_way(self, connection: psycopg.Connection[Any], tries: int, error: psycopg.Error) -> None:
        """Say who holds the tables; give up when it has been tried often enough."""
        found = connection.execute(_HOLDER, [self._schema]).fetchone()
        holder = "another session" if found is None else found[0]
        if tries >= TRIES:
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
        _, has_ledger, is_used = self._look(connection)
        if has_ledger:
            return dict(
                connection.execute(
                    insert_schema_name(self._schema, "select number, checksum from onward.migration")
                ).fetchall()
            )
        if is_used:
            raise InvalidJob("schema", self._schema, _foreign(self._schema))
        return {}

    def script(self) -> str:
        """Write the whole schema as SQL that can be applied by hand, and that records itself."""
        return script(self._schema, self._shipped, again=self._again)

    def _look(self, connection: psycopg.Connection[Any]) -> tuple[bool, bool, bool]:
        """See whether the schema is there, whether it is ours, and whether there is anything in it."""
        asked = f"select {_IS_THERE}, {_HAS_LEDGER}, {_IS_USED}"
        ((is_there, has_ledger, is_used),) = connection.execute(asked, [self._schema]).fetchall()
        return is_there, has_ledger, is_used

    def _missing(self, connection: psycopg.Connection[Any]) -> Sequence[Migration]:
        return migrations.plan(self._shipped, self.applied(connection), store=str(self))

    def __str__(self) -> str:
        """Name it as errors do."""
        return f"{self._database}, schema {self._schema},"


def script(schema: str, shipped: Sequence[Migration], *, again: str = NOTHING) -> str:
    """Write a whole schema as SQL that can be applied by hand: it makes what is missing, and records that."""
    steps = ",\n".join(
        f"({step.number}, '{step.name}', '{step.checksum}', {_quoted(insert_schema_name(schema, step.sql))})"
        for step in shipped
    )
    return insert_schema_name(schema, _SCRIPT).format(
        schema=schema,
        newest=len(shipped),
        oldest=OLDEST,
        oldest_major=OLDEST // 10_000,
        wait=WAIT,
        pause=PAUSE,
        tries=TRIES,
        is_there=_IS_THERE.replace("$1", "home"),
        has_ledger=_HAS_LEDGER.replace("$1", "home"),
        is_used=_IS_USED.replace("$1", "home"),
        holder=_HOLDER.replace("$1", "home"),
        is_foreign=_foreign(schema).replace("'", "''"),
        ledger=insert_schema_name(schema, _LEDGER.strip()),
        again=insert_schema_name(schema, again.strip()).replace("$1", "home"),
        steps=steps,
        mark=_mark("script", steps),
    )


def _foreign(schema: str) -> str:
    return f"holds objects that are not Onward's: {own_schema(schema)}"


def _quoted(text: str) -> str:
    mark = _mark("step", text)
    return f"{mark}\n{text.strip()}\n{mark}"


def _mark(word: str, text: str) -> str:
    """Make of a word what a text can be quoted with, because it is not in it."""
    while f"${word}$" in text:
        word += "_"
    return f"${word}$"


def check_version(connection: psycopg.Connection[Any], database: Database) -> None:
    """Refuse a server that is too old."""
    if connection.info.server_version < OLDEST:
        have = connection.info.server_version // 10_000
        message = f"{database} is PostgreSQL {have}, Onward needs {OLDEST // 10_000}: upgrade the server"
        raise StoreUnavailable(message)
