"""What ``onward doctor`` is told of the database, in plain words and with a remedy (F10, F13)."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.examining import INDEXES, Facts, Pin, _pinned, _wrong, examine
from onward.engines.postgres.schema import Schema
from onward.postgresql.plans import run
from onward.postgresql.within import on_psycopg
from tests.conformance.desk import Desk
from tests.conformance.postgres_case import PostgresStore

HEALTHY = Facts(
    version="16.1", synchronous_commit="on", fsync="on", now=0, full_page_writes="on", autovacuum="on",
    isolation="read committed", statement_timeout=0.0, frozen_age=1000, sessions=10, max_connections=100, live=1000,
    dead=100, size=10_000_000, without_a_day=10, indexes=sorted(INDEXES),
)  # fmt: skip


def test_of_what_is_well_nothing_is_said():
    assert list(_wrong(HEALTHY)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"indexes": sorted(INDEXES - {"job_claim"})}, ["job_claim", "onward migrate --sql"]),
        ({"isolation": "serializable"}, ["serializable", "alter role"]),
        ({"autovacuum": "off"}, ["autovacuum = on"]),
        ({"statement_timeout": 2.0}, ["2 s", "statement_timeout = 0"]),
        ({"frozen_age": 1_500_000_000}, ["1,500,000,000", "vacuum (freeze)"]),
        ({"sessions": 98}, ["98 of 100", "PgBouncer"]),
        ({"dead": 5_000_000}, ["5,000,000 dead", "autovacuum"]),
        ({"size": 30 * 1024**3}, ["30.0 GB", "vacuum full"]),
        ({"without_a_day": 500_000}, ["500,000", "worker"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_wrong_is_said_with_figures_and_a_remedy(change: dict[str, object], words: list[str]):
    (said,) = _wrong(HEALTHY._replace(**change))  # type: ignore[arg-type]
    for word in words:
        assert word in said


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
    assert word in HEALTHY._replace(**change).durability  # type: ignore[arg-type]


def test_who_pins_is_named():
    assert "rollback prepared" in _pinned(Pin("prepared", "tx1", "web", "prepared", 400.0, ""))
    assert "pg_drop_replication_slot" in _pinned(Pin("slot", "old_standby", "", "inactive", None, ""))


async def test_a_session_that_pins_the_horizon_is_named_with_its_statement(desk: Desk, store: PostgresStore):
    with psycopg.connect(store.url) as culprit:
        pid = culprit.info.backend_pid
        culprit.execute("set transaction isolation level repeatable read")
        culprit.execute("select 'the culprit'")
        with psycopg.connect(store.url, cursor_factory=psycopg.RawCursor) as connection:
            _, said = run(examine(Schema(store.schema), long=timedelta(0)), on_psycopg(connection))
    (about,) = [line for line in said if "the culprit" in line]
    assert f"session {pid}" in about
    assert "idle in transaction" in about
    assert "pg_terminate_backend" in about


async def test_an_index_that_somebody_dropped_is_missed(desk: Desk, store: PostgresStore):
    assert (await desk.engine.check()).warnings == ()
    with psycopg.connect(store.url) as connection:
        connection.execute(f"drop index {store.schema}.job_claim")
    (said,) = (await desk.engine.check()).warnings
    assert "job_claim" in said


async def test_check_tells_version_schema_time_and_durability(desk: Desk, store: PostgresStore):
    info = await PostgresEngine(store.url, schema=store.schema).check()
    assert info.server.startswith("PostgreSQL 1")
    assert info.now is not None
    assert info.durability
