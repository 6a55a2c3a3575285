"""A server on a private store, and clients with tokens of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from onward import App
from onward.core import core_of
from onward.engine.capabilities import Feature
from onward.engine.contract import Engine
from onward.engine.values import QueueChange
from onward.http import asgi, encode_name
from onward.http.application import API, Server
from onward.service.identity import of_user
from onward.service.values import TokenRequest
from tests.conformance.cases import CASE_OF, CASES, SQLITE, EngineCase

ROOT = of_user("root", role="admin")
CANARY = "canary-7f3a-hunter2"

Client = Callable[..., Awaitable[httpx.AsyncClient]]


_THREE = [CASE_OF[name] for name in ("sqlite", "postgres", "bullmq")]
each_engine = pytest.mark.parametrize("case", _THREE, ids=lambda case: case.name, indirect=True)
"""Runs a test on three engines, which stand for: everything, another server, ids that are not global."""
all_engines = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name, indirect=True)


def make_app(url: str | None = "sqlite://", engine: Engine | None = None) -> App:
    app = App(url, engine=engine, redact=["iban"])

    @app.task
    def add(a: int = 0, b: int = 0) -> int:
        return a + b

    @app.task(queue="mail/{org_id}", max_attempts=1)
    def send(to: str, password: str | None = None) -> None:
        raise RuntimeError(f"cannot log in with {password} for {to}")

    @app.task
    async def wait() -> None:
        await asyncio.sleep(60)

    return app


@pytest.fixture
def case(request: pytest.FixtureRequest) -> EngineCase:
    """The engine under test: SQLite, unless the test is for each."""
    case: EngineCase = getattr(request, "param", SQLITE)
    return case


@pytest.fixture
async def app(case: EngineCase, tmp_path: Path) -> AsyncIterator[App]:
    store = case.make(tmp_path)
    app = make_app(None, case.attach(store.address).inner)
    if not case.capabilities.has(Feature.QUEUES_BY_USE):
        await app.open()
        for name in ("default", "mail/a", "mail/mine", "mail/theirs"):
            await core_of(app).engine.configure(name, QueueChange())
    yield app
    await app.close()
    await store.close()


def job_url(job: Any) -> str:
    """Address a job as every engine can: by queue and id."""
    return f"{API}/queues/{encode_name(job['queue'])}/jobs/{job['id']}"


async def finished(http: httpx.AsyncClient, operation: str) -> Any:
    """Wait for the end of a change by filter, and return it."""
    async with asyncio.timeout(60):
        while (state := (await http.get(f"{API}/operations/{operation}")).json())["status"] != "completed":
            await asyncio.sleep(0.02)
    return state


@pytest.fixture
async def server(app: App) -> AsyncIterator[Server]:
    application = asgi(app, max_failures=10_000)
    found: Server = application.state.onward
    yield found
    if found.operations is not None:
        await found.operations.stop()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    """Makes a client with a token: ``await client("viewer", orgs=("a",))``; without a role, with none."""
    opened: list[httpx.AsyncClient] = []
    application = server.application()

    async def make(role: str | None = "admin", **fields: Any) -> httpx.AsyncClient:
        headers = {}
        if role is not None:
            request = TokenRequest(name=f"test-{role}-{len(opened)}", role=role, **fields)  # type: ignore[arg-type]
            new = await server.services.access.create_token(ROOT, request)
            headers["Authorization"] = f"Bearer {new.secret}"
        made = httpx.AsyncClient(
            transport=httpx.ASGITransport(application, raise_app_exceptions=False),
            base_url="http://localhost",
            headers=headers,
        )
        opened.append(made)
        return made

    yield make
    for each in opened:
        await each.aclose()
