"""Every test here runs once for each engine case, on a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onward.engine.checked import CheckedEngine
from tests.conformance.cases import CASES, EngineCase, Store
from tests.conformance.driver import Driver


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> EngineCase:
    """The engine under test; left out where it lacks what the test needs."""
    case: EngineCase = request.param
    for mark in request.node.iter_markers("needs"):
        for feature in mark.args:
            if not case.capabilities.has(feature):
                pytest.skip(f"{case.name}: {feature} is absent, and test_refusals.py shows that it says so")
    return case


@pytest.fixture
async def store(case: EngineCase, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """An empty store."""
    store = case.make(tmp_path)
    store.needed = frozenset(feature for mark in request.node.iter_markers("needs") for feature in mark.args)
    yield store
    await store.close()


@pytest.fixture
async def engine(store: Store) -> CheckedEngine:
    """An open handle on the store."""
    return await store.connect()


@pytest.fixture
def driver(store: Store, engine: CheckedEngine) -> Driver:
    """The sentences that tests are written in, said to the engine."""
    return Driver(store, engine)
