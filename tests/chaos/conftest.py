"""The stores that programs of users are tried on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet, database, fleet_at


@pytest.fixture(params=["sqlite", "postgres"])
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on a file, and one on PostgreSQL."""
    if request.param == "sqlite":
        async with fleet_at(f"sqlite:///{tmp_path}/jobs.db", tmp_path) as fleet:
            yield fleet
    else:
        async with database() as url, fleet_at(url, tmp_path) as fleet:
            yield fleet
