"""Why a job is not running is told from what every store can say."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import QueueChange
from onward.explain import Why
from onward.job import JobRef
from onward.lifecycle import Complete
from onward.resources import Jobs
from tests.conformance.cases import needs
from tests.conformance.driver import LEASE, Desk


async def why(desk: Desk, ref: JobRef) -> list[Why]:
    async def opened() -> CheckedEngine:
        return desk.engine

    return [reason.why for reason in await Jobs(opened, timeout=LEASE).explain(ref)]


async def test_what_is_said_of_a_job_through_its_life(desk: Desk):
    ref = await desk.add(queue="mail")
    assert Why.NO_WORKER in await why(desk, ref)
    claim = await desk.take_one("mail")
    await desk.beat(claim)
    assert await why(desk, ref) == [Why.RUNNING]
    await desk.end(claim, Complete())
    assert await why(desk, ref) == [Why.ENDED]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(QueueChange(paused=True), Why.PAUSED, marks=needs(Feature.PAUSE)),
        pytest.param(QueueChange(concurrency=1), Why.CONCURRENCY, marks=needs(Feature.CONCURRENCY)),
    ],
    ids=["paused", "full"],
)
async def test_what_a_queue_is_told_is_what_keeps_its_jobs(desk: Desk, change: QueueChange, reason: Why):
    await desk.add(queue="mail")
    ref = await desk.add(queue="mail")
    await desk.take_one("mail")
    await desk.engine.configure("mail", change)
    assert reason in await why(desk, ref)


@needs(Feature.DELAY)
async def test_a_delay_keeps_a_job(desk: Desk):
    assert Why.DELAYED in await why(desk, await desk.add(queue="mail", delay=timedelta(minutes=1)))
