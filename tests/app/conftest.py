"""An App on a private SQLite file, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from onward import App
from onward.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(clock: ManualClock) -> AsyncIterator[App]:
    app = App("sqlite://", clock=clock)
    yield app
    await app.close()
