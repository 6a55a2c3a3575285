"""A server on a private store, and clients with tokens of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from onward import App
from onward.http import asgi
from onward.http.application import Server
from onward.service.identity import of_user
from onward.service.values import TokenRequest

ROOT = of_user("root", role="admin")
CANARY = "canary-7f3a-hunter2"

Client = Callable[..., Awaitable[httpx.AsyncClient]]


def make_app(url: str = "sqlite://") -> App:
    app = App(url, redact=["iban"])

    @app.task
    def add(a: int = 0, b: int = 0) -> int:
        return a + b

    @app.task(queue="mail/{org_id}", max_attempts=1)
    def send(to: str, password: str | None = None) -> None:
        raise RuntimeError(f"cannot log in with {password} for {to}")

    @app.task
    async def wait() -> None:
        import asyncio  # noqa: PLC0415

        await asyncio.sleep(60)

    return app


@pytest.fixture
async def app() -> AsyncIterator[App]:
    app = make_app()
    yield app
    await app.close()


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
