"""A browser for all tests of a process, one filled shop to look at, and fresh sites to change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.dashboard.browsing import Site, open_browser, serve
from tests.dashboard.screenshots import paths_of
from tests.dashboard.shop import fill, make_app
from tests.servers.node import node_packages


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shop() -> AsyncIterator[Site]:
    """A shop with a worker and a running job. Tests look and change nothing."""
    app = make_app()
    await fill(app, jobs=40)
    async with serve(app) as site, app.worker(concurrency=4):
        running = await app.tasks["encode"].enqueue(video="/films/harbour.mkv")
        async with asyncio.timeout(60):
            while (await app.jobs.get(running.ref)).progress is None:
                await asyncio.sleep(0.02)
        yield site
    await app.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def screens(shop: Site) -> dict[str, str]:
    """Every screen of the shop by name."""
    return await paths_of(shop.app)


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[Site]:
    """A fresh shop without a worker, to change."""
    app = make_app()
    await fill(app, jobs=12, with_usage=False)
    async with serve(app) as site:
        yield site
    await app.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe, from npm."""
    return (Path(node_packages("axe-core").folder) / "node_modules" / "axe-core" / "axe.min.js").read_text()
