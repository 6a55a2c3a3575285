"""PGMQ for tests: its own SQL, from the wheel ``pgmq``, in a database of its own; and a clock that tests can move.

PGMQ asks ``clock_timestamp()`` and ``now()`` what time it is, and so do our statements beside it. In a database with
:data:`CLOCK` both are found in a schema that stands before PostgreSQL's own, where a test sets the time. PGMQ's SQL
itself is not changed by a letter.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from itertools import count
from os import getpid
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from tests.servers.postgres import postgres_url

_numbers = count()

CLOCK: Final = """
create schema clock;
create table clock.hand (at timestamptz);
insert into clock.hand values (null);
create function clock.clock_timestamp() returns timestamptz language plpgsql stable as
  $$ begin return coalesce((select at from clock.hand), pg_catalog.clock_timestamp()); end $$;
create function clock.now() returns timestamptz language plpgsql stable as
  $$ begin return coalesce((select at from clock.hand), pg_catalog.now()); end $$;
"""
"""While nobody has set it, it is the real time."""


@cache
def pgmq_sql() -> bytes:
    """Give the SQL of PGMQ, as the wheel carries it."""
    return files("pgmq").joinpath("sql", "pgmq.sql").read_bytes()


def make_database(*, clock: bool = False, sql: bytes | None = None, template: str | None = None) -> str:
    """Make a database with a PGMQ in it, and give its URL."""
    name = f"pgmq_{getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"create database {name}" + (f" template {template}" if template else ""))
        if clock:
            connection.execute(f"alter database {name} set search_path = clock, pg_catalog, public")
    url = make_conninfo(postgres_url(), dbname=name)
    if template is None:
        with psycopg.connect(url) as connection:
            connection.execute(f"set client_min_messages = warning;{CLOCK if clock else ''}")
        with psycopg.connect(url) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute(sql or pgmq_sql())
    return url


def drop_database(url: str) -> None:
    """Take a database away, whoever is still connected."""
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        connection.execute(f"drop database if exists {name} with (force)")
