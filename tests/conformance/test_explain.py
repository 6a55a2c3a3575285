"""ReasonCode a job is not running is told from what every store can say."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import QueueChange
from onward.explain import ReasonCode
from onward.job import JobRef
from onward.lifecycle import Complete
from onward.resources import Jobs
from onward.results import Results
from tests.conformance.cases import needs
from tests.conformance.driver import LEASE, Driver


async def why(driver: Driver, ref: JobRef) -> list[ReasonCode]:
    async def opened() -> CheckedEngine:
        return driver.engine

    jobs = Jobs(opened, lease=LEASE, results=lambda: Results(driver.engine, driver.engine.open))
    return [reason.code for reason in await jobs.explain(ref)]


async def test_what_is_said_of_a_job_through_its_life(driver: Driver):
    ref = await driver.add(queue="mail")
    assert ReasonCode.NO_WORKER in await why(driver, ref)
    claim = await driver.take_one("mail")
    await driver.beat(claim)
    assert await why(driver, ref) == [ReasonCode.RUNNING]
    await driver.end(claim, Complete())
    assert await why(driver, ref) == [ReasonCode.ENDED]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(QueueChange(paused=True), ReasonCode.PAUSED, marks=needs(Feature.PAUSE)),
        pytest.param(QueueChange(global_concurrency=1), ReasonCode.CONCURRENCY, marks=needs(Feature.CONCURRENCY)),
    ],
    ids=["paused", "full"],
)
async def test_what_a_queue_is_told_is_what_keeps_its_jobs(driver: Driver, change: QueueChange, reason: ReasonCode):
    await driver.add(queue="mail")
    ref = await driver.add(queue="mail")
    await driver.take_one("mail")
    await driver.engine.configure("mail", change)
    assert reason in await why(driver, ref)


@needs(Feature.DELAY)
async def test_a_delay_keeps_a_job(driver: Driver):
    assert ReasonCode.DELAYED in await why(driver, await driver.add(queue="mail", delay=timedelta(minutes=1)))
