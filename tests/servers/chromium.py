"""Chromium for tests: Debian's package ``chromium``, driven by Playwright from the package registry.

Playwright's own browsers are not downloaded: the program is the system's, as a user's browser is.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from tests.servers import missing

if TYPE_CHECKING:
    from playwright.async_api import Browser

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def program() -> str:
    """Find the program."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        missing("there is no Chromium here: apt install chromium")
    return found


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start a browser without a window, and close it at the end. Each test makes a context of its own in it."""
    try:
        from playwright.async_api import async_playwright  # noqa: PLC0415 - not every machine has it
    except ModuleNotFoundError:
        missing("there is no Playwright here: pip install playwright")
    async with async_playwright() as playwright:
        # No proxy of the environment: a test speaks with servers of its own, on the loopback interface alone.
        browser = await playwright.chromium.launch(
            executable_path=program(), args=[*FLAGS, "--no-proxy-server"], timeout=120_000
        )
        try:
            yield browser
        finally:
            await browser.close()
