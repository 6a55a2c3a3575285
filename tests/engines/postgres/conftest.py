"""A schema of its own for each test, on one server for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onward.engine.checked import CheckedEngine
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresStore]:
    """An empty schema."""
    store = PostgresStore(tmp_path)
    yield store
    await store.close()


@pytest.fixture
async def engine(store: PostgresStore) -> CheckedEngine:
    """An open handle on the schema."""
    return await store.connect()


@pytest.fixture
def driver(store: PostgresStore, engine: CheckedEngine) -> Driver:
    """The sentences that tests are written in, said to the engine."""
    return Driver(store, engine)
