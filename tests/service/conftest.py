"""An App on an empty store of each engine, its services, and callers of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from onward import App, JobNotFound, JobRef, JobStatus
from onward.bulk_operation import queue_of
from onward.core import core_of
from onward.engine.access import AuditQuery, AuditRecord
from onward.engine.capabilities import Feature
from onward.engine.values import QueueChange
from onward.service.identity import of_user
from onward.service.services import Services
from onward.service.values import EnqueuedJob
from tests.conformance.cases import EngineCase, Store
from tests.conformance.conftest import case, store

__all__ = ["case", "store"]

QUEUES: Final = ("default", "video", "mail/a", "mail/b", "mail/mine", "mail/theirs")
"""Made beforehand where an engine makes no queue by use."""


@pytest.fixture
async def app(case: EngineCase, store: Store) -> AsyncIterator[App]:
    app = App(engine=store.bare(), clock=store.clock, redact=["iban"])

    @app.task(queue="mail/{org_id}")
    def send(to: str, password: str | None = None, iban: str | None = None) -> None:
        raise RuntimeError(f"cannot log in with {password} for {to}, iban {iban}")

    @app.task(redact=["*"])
    def hidden(text: str) -> str:
        return text

    @app.task
    def plain(number: int = 0) -> int:
        return number

    if not case.capabilities.has(Feature.QUEUES_BY_USE):
        await app.open()
        for name in QUEUES:
            await core_of(app).engine.configure(name, QueueChange())
    yield app
    await app.close()


@pytest.fixture
def services(app: App) -> Services:
    return Services(app)


def ref(job: EnqueuedJob) -> JobRef:
    """Name a job as every engine can: by queue and id."""
    return JobRef(job.queue, job.id)


async def tick(app: App, *queues: str) -> None:
    """Run what is ready in some queues, or in all; ``app.tick()`` serves only those of the tasks on a shared store."""
    await core_of(app).ticker().tick(100, queues=queues or ("*",))


async def run_operations(app: App) -> None:
    """Make the changes by filter that were accepted, as the server does."""
    await tick(app, queue_of(app.capabilities))


async def status_of(app: App, job: JobRef) -> JobStatus | None:
    """Read a job's status; None: the store does not have it any more."""
    try:
        return (await app.jobs.get(job)).status
    except JobNotFound:
        return None


async def records(services: Services, action: str | None = None) -> tuple[AuditRecord, ...]:
    """Read the audit log, the newest record first."""
    return (await services.audit.list(ADMIN, AuditQuery(action=action), limit=200)).items


ADMIN = of_user("root", role="admin")
VIEWER = of_user("eve", role="viewer")
OPERATOR = of_user("olaf", role="operator")
