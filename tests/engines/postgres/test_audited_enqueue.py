"""An audited enqueue is one transaction and one round trip; those that come together share one (S5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from onward.engine.access import AuditQuery
from onward.engine.values import JobFilter
from onward.job import UniformJobs
from onward.pg.timed_connection import TimedAsyncConnection
from tests.conformance.access_values import record
from tests.conformance.driver import Driver, new_job


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each time that a connection of an event loop has waited for the server."""
    seen: list[None] = []
    wait = TimedAsyncConnection.wait

    async def counted(self: TimedAsyncConnection, *args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        return await wait(self, *args, **kwargs)

    monkeypatch.setattr(TimedAsyncConnection, "wait", counted)
    return seen


@pytest.mark.parametrize(
    "jobs",
    [
        [new_job(queue="q")],
        UniformJobs(new_job(queue="q"), ["{}"] * 5000),
        [new_job(queue="q"), new_job(queue="r", org_id="acme", delay=timedelta(seconds=1))],
        [new_job(queue="q", idempotency_key="k")],
        [new_job(queue="q", dedupe_key="d", debounce=timedelta(seconds=1))],
    ],
    ids=["one", "many alike", "different", "a key", "debounced"],
)
async def test_an_audited_enqueue_is_one_round_trip(driver: Driver, trips: list[None], jobs: Any):  # S5
    await driver.engine.queues()
    trips.clear()
    answers = await driver.engine.enqueue(jobs, audit=record())
    assert len(trips) == 1
    assert len(answers) == len(jobs)
    (written,) = (await driver.engine.audit(AuditQuery())).items
    assert written.count == len(jobs)


async def test_audited_enqueues_that_come_together_share_their_commits(driver: Driver, trips: list[None]):  # S5
    await driver.engine.queues()
    trips.clear()
    await asyncio.gather(*[driver.engine.enqueue([new_job(queue="q")], audit=record()) for _ in range(64)])
    assert len(trips) <= 3
    assert len((await driver.engine.audit(AuditQuery(), limit=100)).items) == 64


async def test_a_record_that_is_sent_twice_at_once_is_written_once(driver: Driver):  # S5
    same = record()
    await asyncio.gather(*[driver.engine.enqueue([new_job(queue="q")], audit=same) for _ in range(5)])
    assert [each.id for each in (await driver.engine.audit(AuditQuery())).items] == [same.id]
    assert len(await driver.found(JobFilter())) == 5
