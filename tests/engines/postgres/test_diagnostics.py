"""What ``onward doctor`` is told of the database, in plain words and with a remedy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onward.engines.postgres.diagnostics import INDEXES, ServerFacts, _problems, _warnings, diagnose
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.statements import Schema
from onward.pg.caller_transaction import on_psycopg
from onward.pg.plan_runner import run
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore

HEALTHY = ServerFacts(
    version="16.1", now=0, role="web", database="shop", schema='"order"', fsync="on", full_page_writes="on",
    synchronous_commit="on", is_standby=False, read_only="off", autovacuum="on",
    track_counts="on", statement_timeout=0.0, transaction_timeout=0.0, lock_timeout=0.0, idle_session_timeout=0.0,
    frozen_age=1000, sessions=10, max_connections=100, live=1000, dead=100, size=10_000_000, in_default_partition=10,
    indexes=sorted(INDEXES), without_replica_identity=[],
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"statement_timeout": 60.0},
        {"transaction_timeout": 60.0},
        {"lock_timeout": 5.0},
        {"idle_session_timeout": 60.0},
    ],
    ids=str,
)
def test_of_what_is_well_nothing_is_said(change: dict[str, Any]):
    facts = HEALTHY._replace(**change)
    assert [*_problems(facts), *_warnings(facts)] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"indexes": sorted(INDEXES - {"job_claim"})}, ["job_claim", "onward migrate --sql"]),
        ({"without_replica_identity": ["lane"]}, ["lane", "Debezium", "onward migrate --sql"]),
        ({"full_page_writes": "off"}, ["ZFS", "alter system set full_page_writes = on"]),
        ({"synchronous_commit": "off"}, ["last moments", "synchronous_commit = on"]),
        ({"autovacuum": "off"}, ["autovacuum = on"]),
        ({"track_counts": "off"}, ["autovacuum", "track_counts = on"]),
        ({"statement_timeout": 2.0}, ["2 s", "statement_timeout = 0"]),
        ({"transaction_timeout": 9.0}, ["9 s", "alter role web in database shop set transaction_timeout = 0"]),
        ({"lock_timeout": 0.1}, ["0.1 s", "set lock_timeout = 0"]),
        ({"idle_session_timeout": 10.0}, ["10 s", "listen", "set idle_session_timeout = 0"]),
        ({"frozen_age": 1_500_000_000}, ["1,500,000,000", "vacuum (freeze)"]),
        ({"sessions": 98}, ["98 of 100", "PgBouncer"]),
        ({"dead": 5_000_000}, ["5,000,000 dead", "named below", 'vacuum "order".job', "raise autovacuum_max_workers"]),
        ({"size": 30 * 1024**3}, ["30.0 GB", 'vacuum full "order".job']),
        ({"in_default_partition": 500_000}, ["500,000", "worker"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_wrong_is_said_with_figures_and_a_remedy(change: dict[str, Any], words: list[str]):
    facts = HEALTHY._replace(**change)
    (said,) = _warnings(facts)
    for word in words:
        assert word in said
    assert list(_problems(facts)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fsync": "off"}, ["corrupt everything", "alter system set fsync = on"]),
        ({"is_standby": True, "read_only": "on"}, ["standby", "target_session_attrs=read-write"]),
        ({"read_only": "on"}, ["no job", "alter role web in database shop set default_transaction_read_only = off"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_loses_jobs_or_lets_none_run_is_a_problem(change: dict[str, Any], words: list[str]):  # X3
    facts = HEALTHY._replace(**change)
    (said,) = _problems(facts)
    for word in words:
        assert word in said
    assert list(_warnings(facts)) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, "survives a crash"),
        ({"synchronous_commit": "off"}, "may lose the last moments"),
        ({"fsync": "off"}, "corrupt"),
        ({"full_page_writes": "off"}, "corrupt"),
    ],
    ids=str,
)
def test_durability_is_stated_as_it_is(change: dict[str, str], word: str):  # X3
    assert word in str(HEALTHY._replace(**change).durability)  # type: ignore[arg-type]


async def test_what_is_in_force_for_our_role_is_read(driver: Driver, store: PostgresStore):
    """Each of them as another setting than any other, so that none is taken for another."""
    options = {
        "synchronous_commit": "local",
        "default_transaction_read_only": "on",
        "track_counts": "off",
        "statement_timeout": "1min",
        "lock_timeout": "200ms",
        "idle_session_timeout": "2h",
    }
    with psycopg.connect(store.url) as connection:
        knows = connection.info.server_version >= 170000
    if knows:
        options["transaction_timeout"] = "3min"
    asked = " ".join(f"-c {name}={value}" for name, value in options.items())
    with psycopg.connect(store.url, options=asked, cursor_factory=psycopg.RawCursor) as connection:
        facts = run(diagnose(Schema(store.schema)), on_psycopg(connection)).facts
    assert (facts.role, facts.database, facts.schema) == ("postgres", "postgres", store.schema)
    assert (facts.fsync, facts.full_page_writes, facts.synchronous_commit) == ("off", "on", "local")
    assert (facts.is_standby, facts.read_only) == (False, "on")
    assert (facts.autovacuum, facts.track_counts) == ("on", "off")
    assert (facts.statement_timeout, facts.lock_timeout, facts.idle_session_timeout) == (60.0, 0.2, 7200.0)
    assert facts.transaction_timeout == (180.0 if knows else 0.0)
    assert facts.max_connections == 300


async def test_a_schema_whose_name_is_a_word_of_sql_is_named_so_that_it_can_be_pasted(store: PostgresStore):
    store.schema = "order"
    await store.connect()
    with psycopg.connect(store.url, cursor_factory=psycopg.RawCursor) as connection:
        facts = run(diagnose(Schema(store.schema)), on_psycopg(connection)).facts
    with psycopg.connect(store.url) as connection:
        connection.execute('drop schema "order" cascade')
    store.schema = "gone"
    assert facts.schema == '"order"'


async def test_every_index_that_the_migrations_make_is_looked_for(driver: Driver, store: PostgresStore):
    made = """select c.relname from pg_class c
               where c.relnamespace = %s::regnamespace and c.relkind in ('i', 'I') and not c.relispartition"""
    with psycopg.connect(store.url) as connection:
        assert {name for (name,) in connection.execute(made, [store.schema])} == INDEXES


@pytest.mark.parametrize("index", ["job_claim", "history_batch", "archive_id", "dependency_unresolved"])
async def test_an_index_that_somebody_dropped_is_missed(driver: Driver, store: PostgresStore, index: str):
    assert (await driver.engine.check()).warnings == ()
    with psycopg.connect(store.url) as connection:
        connection.execute(f"drop index {store.schema}.{index}")
    (said,) = (await driver.engine.check()).warnings
    assert index in said


async def test_an_index_that_is_there_and_cannot_be_used_is_missed(driver: Driver, store: PostgresStore):
    with psycopg.connect(store.url) as connection:
        connection.execute(
            "update pg_index set indisvalid = false where indexrelid = %s::regclass", [f"{store.schema}.job_batch"]
        )
    (said,) = (await driver.engine.check()).warnings
    assert "job_batch" in said


async def test_check_tells_version_schema_time_and_durability(driver: Driver, store: PostgresStore):
    info = await PostgresEngine(store.url, schema=store.schema).check()
    assert info.server.startswith("PostgreSQL 1")
    assert info.now is not None
    assert info.durability
    assert "fsync is off" in " ".join(info.problems)  # of a server for tests


@pytest.mark.parametrize(("table", "mode"), [("claim_gate", "exclusive"), ("job", "share")])
async def test_who_lets_nobody_claim_is_named_with_the_remedy(
    driver: Driver, store: PostgresStore, table: str, mode: str
):  # O3
    schema = Schema(store.schema)

    def problems(**more: Any) -> list[str]:
        said = run(diagnose(schema, **more), on_psycopg(connection)).problems
        return [problem for problem in said if "claim" in problem]

    with psycopg.connect(store.url) as holder, psycopg.connect(store.url) as connection:
        holder.execute(f"lock table {store.schema}.{table} in {mode} mode")
        (said,) = problems(long_lock=timedelta(0))
        assert f"session {holder.info.backend_pid} (user " in said
        assert f"holds a lock on {store.schema}.{table}" in said
        assert f"pg_terminate_backend({holder.info.backend_pid})" in said
        assert problems(long_lock=timedelta(days=1)) == []
        holder.rollback()
        assert problems(long_lock=timedelta(0)) == []
