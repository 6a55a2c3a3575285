"""A worker's role makes changes by filter, whose record it can complete and not forge (A5, S5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onward import App, JobStatus
from onward.engine.access import AuditQuery
from onward.engines.postgres.engine import PostgresEngine
from onward.errors import OnwardError
from onward.ids import new_id
from onward.service.identity import of_user
from onward.service.services import Services
from onward.service.store import record
from onward.service.values import EnqueueRequest, JobQuery, Selection
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore

ADMIN = of_user("root", role="admin", orgs=["a"])


@pytest.fixture
def worker_role(store: PostgresStore, driver: Driver) -> Iterator[str]:
    """A role that may work, and nothing else."""
    name = f"worker_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {name} login")
        connection.execute(f"select {store.schema}.allow_worker('{name}')")
        yield name
        connection.execute(f"drop owned by {name}")
        connection.execute(f"drop role {name}")


def app_on(store: PostgresStore, role: str | None = None) -> App:
    url = store.url if role is None else make_conninfo(store.url, options=f"-c role={role}")
    app = App(engine=PostgresEngine(url, schema=store.schema, clock=store.clock), clock=store.clock)

    @app.task
    def add(a: int = 0) -> int:
        return a

    return app


async def audit(services: Services) -> list[tuple[str, str, str, int | None, tuple[str, ...] | None]]:
    found = (await services.audit.list(of_user("auditor", role="admin"), AuditQuery())).items
    return [
        (one.actor, one.role, one.action, one.count, one.orgs) for one in found if one.action != "jobs.enqueue_many"
    ]


async def test_a_worker_completes_the_record_of_a_change_by_filter(store: PostgresStore, worker_role: str):  # S5, A5
    async with app_on(store) as app, app_on(store, worker_role) as worker:
        services = Services(app)
        await services.jobs.enqueue_many(ADMIN, [EnqueueRequest(type="add", delay=60.0)] * 3)
        operation = await services.bulk.cancel(ADMIN, Selection(filter=JobQuery(type=("add",))))
        await worker.tick()
        done = await services.bulk.get(ADMIN, operation.id or "")
        assert (done.status, done.changed) == (JobStatus.COMPLETED, 3)
        assert await audit(services) == [("user:root", "admin", "jobs.cancel_many", 3, ("a",))]


async def test_a_worker_writes_no_record_but_that_of_a_stored_change(store: PostgresStore, worker_role: str):  # S5
    async with app_on(store) as app, app_on(store, worker_role) as worker:
        services = Services(app)
        job = await services.jobs.enqueue(ADMIN, EnqueueRequest(type="add"))
        operation = await services.bulk.cancel(ADMIN, Selection(all=True))
        before = await audit(services)
        with pytest.raises(OnwardError):
            await Services(worker).status.tick(of_user("forger", role="admin"))
        with pytest.raises(OnwardError):
            await Services(worker).store.core.engine.record_audit(record(ADMIN, "jobs.delete"))
        statement = f"select {store.schema}.record_operation(%s::uuid, %s, 1, null)"
        forged: list[list[Any]] = [[job.id, new_id()], [operation.id, new_id()], [new_id(), new_id()]]
        with psycopg.connect(store.url, autocommit=True) as connection:
            connection.execute(f"set role {worker_role}")
            assert [connection.execute(statement, given).fetchone() for given in forged] == [(False,)] * 3
        assert await audit(services) == before
