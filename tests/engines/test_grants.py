"""A role without rights on a foreign schema or on ours beside it is told which grants it needs, and they suffice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from os import getpid

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onward.engine.checked import CheckedEngine
from onward.engine.values import ClaimRequest, QueueChange, Settlement
from onward.engines.pgboss.engine import PgBossEngine
from onward.engines.pgmq.engine import PGMQEngine
from onward.errors import InvalidValue, SchemaTooOld, StoreUnavailable
from onward.job import NewJob
from onward.lifecycle import Complete
from tests.servers.pgboss import drop_schema, make_schema
from tests.servers.pgmq import drop_database, make_database
from tests.servers.postgres import postgres_url

_numbers = count()
MakeEngine = Callable[[str], PgBossEngine | PGMQEngine]


async def use(engine: CheckedEngine) -> None:
    """Do what a worker does."""
    await engine.open()
    try:
        await engine.enqueue([NewJob(type="t", queue="mail")])
        (claim,) = (await engine.claim(ClaimRequest(worker_id="w", queues=("mail",), slots=1))).claims
        assert not await engine.settle([Settlement(claim, Complete())])
        term = await engine.elect("w", lease=timedelta(seconds=30))
        assert term is not None
        await engine.promote(term)
        await engine.rescue(term, lease=timedelta(seconds=30), max_crashes=3)
        assert await engine.schedules() == []
    finally:
        await engine.close()


@pytest.mark.parametrize("kind", ["pgboss", "pgmq"])
@pytest.mark.parametrize("lacks", ["everything", "ours"])
async def test_the_grants_that_an_error_names_suffice(kind: str, lacks: str):  # S5
    number = f"{getpid()}_{next(_numbers)}"
    role, schema = f"limited_{number}", f"grants_{number}"
    url = postgres_url() if kind == "pgboss" else make_database()
    if kind == "pgboss":
        make_schema(url, schema)

    def make(url: str) -> CheckedEngine:
        return CheckedEngine(PgBossEngine(url, schema=schema) if kind == "pgboss" else PGMQEngine(url))

    foreign, own = (schema, f"{schema}_onward") if kind == "pgboss" else ("pgmq", "onward_pgmq")
    try:
        owner = make(url)
        await owner.open()
        await owner.configure("mail", QueueChange())
        await owner.close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create role {role} login")
            if lacks == "ours":
                connection.execute(f"grant usage on schema {foreign} to {role}")
                connection.execute(f"grant all on all tables in schema {foreign} to {role}")
                connection.execute(f"grant all on all sequences in schema {foreign} to {role}")
        theirs = make_conninfo(url, user=role)
        with pytest.raises(StoreUnavailable, match="permission denied") as refused:
            await use(make(theirs))
        _, found, grants = refused.value.remedy.partition("then: ")
        assert found
        assert own in grants
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in grants.split("; "):
                connection.execute(statement.encode())
        await use(make(theirs))
        with psycopg.connect(theirs) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"select from {own}.token")
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")
        if kind == "pgboss":
            drop_schema(url, schema)
        else:
            drop_database(url)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("MyBoss", "try schema=myboss"),
        ('"boss"', "try schema=boss"),
        ("my-boss", "must be lower-case letters, digits and '_'"),
        ("pg_boss", "not begin with pg_"),
        ("b" * 51, "must be at most 50 characters, this is 51"),
    ],
)
def test_a_schema_of_pgboss_that_cannot_be_named_says_why(schema: str, says: str):
    with pytest.raises(InvalidValue) as refused:
        PgBossEngine("postgresql:///x", schema=schema)
    assert says in str(refused.value)


async def test_a_schema_of_pgboss_may_be_as_long_as_pgboss_allows():
    url, schema = postgres_url(), f"{'b' * 30}_{getpid()}".ljust(50, "b")
    make_schema(url, schema)
    try:
        engine = CheckedEngine(PgBossEngine(url, schema=schema))
        await engine.open()
        await engine.close()
    finally:
        drop_schema(url, schema)


async def test_a_database_without_pgmq_says_how_to_install_it():
    with pytest.raises(SchemaTooOld, match=r"there is no PGMQ in .*create extension pgmq.*onward migrate --pgmq"):
        await CheckedEngine(PGMQEngine(postgres_url())).open()
