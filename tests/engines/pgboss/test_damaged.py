"""Rows that somebody has spoilt, or that no task can take: each is failed with a reason, and nobody stops."""

from __future__ import annotations

from typing import Any

import pytest

from onward import App
from onward.engine.values import JobFilter
from onward.job import JobRef
from onward.lifecycle import Complete, JobStatus
from tests.conformance.driver import PAST_LEASE, Driver
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql

SPOILT = [
    '{"$onward": {"type": 7}}',
    '{"$onward": {"type": ""}}',
    '{"$onward": {"backoff": "soon"}}',
    '{"$onward": {"backoff": {"kind": "fixed", "base": -1}}}',
    '{"$onward": {"org_id": [1], "dedupe_key": {}}}',
    '{"$onward": "mine"}',
    "null",
]


@pytest.mark.parametrize("data", SPOILT)
async def test_what_stands_beside_a_payload_and_makes_no_sense_counts_as_not_written(
    driver: Driver, store: PgBossStore, data: str
):
    ref = await driver.add(queue="q")
    run_sql(store, "update boss.job set data = %s::jsonb", data)
    claim = await driver.take_one("q")
    assert (claim.ref, claim.type, claim.org_id) == (ref, "q", None)
    job = await driver.job(ref)
    assert (job.type, job.org_id, job.dedupe_key) == ("q", None, None)
    assert await driver.end(claim, Complete())


@pytest.mark.parametrize(
    "output", ['{"onward": {"crashes": "many"}}', '{"onward": {"crashes": 1e99}}', '{"onward": 7}', "7"]
)
async def test_what_stands_where_losses_are_counted_and_makes_no_sense_holds_nobody_up(
    driver: Driver, store: PgBossStore, output: str
):
    ref = await driver.add(queue="q")
    run_sql(store, "update boss.job set output = %s::jsonb", output)
    await driver.take_one("q")
    assert (await driver.job(ref)).status is JobStatus.RUNNING
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    assert (await driver.job(ref)).crashes >= 1 or (await driver.job(ref)).status is JobStatus.DEAD_LETTER


@pytest.mark.parametrize("data", ['"text"', "[1, 2]", "7", '{"n": "no number"}', '{"other": 1}'])
async def test_data_that_no_task_can_take_is_retried_with_the_reason_and_the_next_runs(
    driver: Driver, store: PgBossStore, data: str
):
    bad, good = await driver.add_many(2, queue="q")
    run_sql(store, "update boss.job set data = '{\"n\": 1}', start_after = now() - interval '1 hour'")
    run_sql(store, "update boss.job set data = %s::jsonb where id = %s", data, bad.id)
    ran: list[int] = []
    app = App(f"pgboss+{store.url}&schema={store.schema}")

    @app.task(name="q", queue="q")
    async def take_number(n: int) -> None:
        ran.append(n)

    async with app:
        await app.tick()
        found: dict[JobRef, Any] = {
            job.ref: job for job in (await app._core.engine.find(JobFilter(queues=("q",)))).items
        }
    assert ran == [1]
    assert found[good].status is JobStatus.COMPLETED
    assert (found[bad].status, found[bad].attempts) == (JobStatus.SCHEDULED, 1)  # O8
    assert found[bad].last_error
