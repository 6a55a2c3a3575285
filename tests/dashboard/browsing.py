"""A server on a store, and Debian's Chromium to look at it with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright
from starlette.applications import Starlette
from starlette.routing import Mount

from onward import App
from onward.http import asgi
from onward.http.application import Server
from onward.service.access import NewSession
from onward.service.values import TokenRequest
from tests.dashboard.shop import ROOT
from tests.servers import missing

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


def chromium_program() -> str:
    """Find Chromium, or say how to get it: a failure in CI, a skip elsewhere."""
    found = os.environ.get("ONWARD_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        missing("there is no Chromium here: apt install chromium, or set ONWARD_TEST_CHROMIUM to its path")
    return found


@contextlib.asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Start Chromium."""
    program = chromium_program()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(FLAGS), timeout=120_000)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Site:
    """A server."""

    app: App
    server: Server
    root: str
    """Its address, without a slash at the end."""
    prefix: str = ""

    async def session(self, role: str = "admin", **fields: Any) -> NewSession:
        """Log a role in."""
        request = TokenRequest(name=f"test-{role}", role=role, **fields)  # type: ignore[arg-type]
        access = self.server.services.access
        return await access.login((await access.create_token(ROOT, request)).secret)

    async def token(self, role: str = "admin", **fields: Any) -> str:
        """Create a token and return its secret."""
        request = TokenRequest(name=f"test-{role}", role=role, **fields)  # type: ignore[arg-type]
        return (await self.server.services.access.create_token(ROOT, request)).secret


@contextlib.asynccontextmanager
async def serve(app: App, *, prefix: str = "", **options: Any) -> AsyncIterator[Site]:
    """Serve an App on a free port of loopback."""
    application = asgi(app, max_failures=10_000, **options)
    served: Any = application
    if prefix:
        served = Starlette(routes=[Mount(prefix, application)])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(served, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(_serve(running, listener))
    while not running.started and not task.done():
        await asyncio.sleep(0.02)
    try:
        port = listener.getsockname()[1]
        yield Site(app, application.state.onward, f"http://127.0.0.1:{port}{prefix}", prefix)
    finally:
        running.should_exit = True
        running.force_exit = True
        await task
        found: Server = application.state.onward
        if found.operations is not None:
            await found.operations.stop()


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    # Not serve(): that would take over the signal handlers of the test process.
    await server._serve([listener])


@dataclass
class Visitor:
    """A person's browser: what went wrong in it is kept."""

    site: Site
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)

    async def go(self, path: str, *, expect: int | None = 200) -> Page:
        """Open a page."""
        answer = await self.page.goto(self.site.root + path, timeout=60_000)
        if expect is not None:
            assert answer is not None
            assert answer.status == expect, f"{path}: {answer.status}"
        return self.page

    def watch(self, page: Page) -> None:
        """Keep what must not happen: dialogs, errors, refused resources, requests to other machines."""
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)

    async def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _console(self, message: ConsoleMessage) -> None:
        # Chromium logs each answer of 400 and more by itself: tests compare statuses.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.site.root, "data:", "blob:")):
            self.faults.append(f"request: {request.url}")


@contextlib.asynccontextmanager
async def visitor(
    browser: Browser, site: Site, role: str | None = "admin", *, scopes: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Visitor]:
    """Open a browser window, logged in as a role; at the end nothing may have gone wrong in it."""
    context = await browser.new_context(**options)
    context.set_default_timeout(30_000)
    try:
        if role is not None:
            session = await site.session(role, **(scopes or {}))
            cookie = {"name": "onward_session", "value": session.secret, "url": f"{site.root}/"}
            await context.add_cookies([cookie])  # type: ignore[list-item]
        found = Visitor(site, context, await context.new_page())
        context.on("page", found.watch)
        found.watch(found.page)
        yield found
        assert found.faults == []
    finally:
        await context.close()
