"""A schema of the newest pg-boss for each test, made by pg-boss's own SQL, on one server for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onward.engine.checked import CheckedEngine
from onward.engines.pgboss.engine import PgBossEngine
from onward.pgboss import PgBoss
from tests.conformance.driver import Driver
from tests.conformance.pgboss_case import PgBossStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PgBossStore]:
    """An empty schema."""
    store = PgBossStore(tmp_path)
    yield store
    await store.close()


@pytest.fixture
async def engine(store: PgBossStore) -> CheckedEngine:
    """An open handle on the schema."""
    return await store.connect()


@pytest.fixture
def driver(store: PgBossStore, engine: CheckedEngine) -> Driver:
    """The sentences that tests are written in, said to the engine."""
    return Driver(store, engine)


@pytest.fixture
def boss(engine: CheckedEngine) -> PgBoss:
    """pg-boss's own verbs."""
    assert isinstance(engine.inner, PgBossEngine)
    return PgBoss(engine.inner)


def run_sql(store: PgBossStore, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Execute a statement as a person with a console would; ``boss.`` stands for the schema."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        cursor = connection.execute(statement.replace("boss.", f"{store.schema}."), values)
        return cursor.fetchall() if cursor.description else []
