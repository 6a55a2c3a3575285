"""An App on a private store, its services, and callers of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from onward import App
from onward.clock import ManualClock
from onward.service.identity import Identity, of_user
from onward.service.services import Services


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(clock: ManualClock) -> AsyncIterator[App]:
    app = App("sqlite://", clock=clock, redact=["iban"])

    @app.task(queue="mail/{org_id}")
    def send(to: str, password: str | None = None, iban: str | None = None) -> None:
        raise RuntimeError(f"cannot log in with {password} for {to}, iban {iban}")

    @app.task(redact=["*"])
    def hidden(text: str) -> str:
        return text

    @app.task
    def plain(number: int = 0) -> int:
        return number

    yield app
    await app.close()


@pytest.fixture
def services(app: App) -> Services:
    return Services(app)


ADMIN = of_user("root", role="admin")
VIEWER = of_user("eve", role="viewer")
OPERATOR = of_user("olaf", role="operator")


@pytest.fixture
def admin() -> Identity:
    return ADMIN
