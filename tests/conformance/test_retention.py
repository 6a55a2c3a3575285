"""How long finished jobs are kept (P9)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Retention
from onward.job import JobRef
from onward.lifecycle import Bury, Cancel, Complete, Fail, JobStatus, Outcome
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Driver

pytestmark = needs(Feature.RETENTION, Feature.LEADER)

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


async def ended(driver: Driver, outcome: Outcome, queue: str = "q") -> JobRef:
    """Add a job and end it; every moment of its life is an hour from the next, so that none stands for another."""
    ref = await driver.add(queue=queue)
    await driver.advance(HOUR)
    claim = await driver.take_one(queue, lease=2 * HOUR)
    assert claim.ref == ref
    await driver.advance(HOUR)
    assert await driver.end(claim, outcome)
    return ref


async def test_by_default_done_jobs_go_after_a_week_and_failed_ones_stay(driver: Driver):  # P9, O8
    done = await ended(driver, Complete())
    cancelled = await ended(driver, Cancel("enough"))
    failed = await ended(driver, Fail(BOOM))
    dead = await ended(driver, Bury(BOOM))
    waiting = await driver.add(queue="elsewhere")
    await driver.advance(6 * DAY)
    assert (await driver.prune()).changed == 0
    await driver.advance(2 * DAY)
    assert (await driver.prune()).changed == 1 + driver.engine.capabilities.has(Feature.CANCELLED_STATE)
    assert {job.ref for job in await driver.jobs()} == {failed, dead, waiting}
    assert {done, cancelled} & {job.ref for job in await driver.jobs()} == set()
    await driver.advance(400 * DAY)
    assert (await driver.prune()).changed == 0


async def test_age_is_counted_from_the_end_of_the_job(driver: Driver):  # P9
    await driver.set("q", retention=Retention(completed=DAY))
    ref = await ended(driver, Complete())
    await driver.advance(DAY - timedelta(seconds=1))
    await driver.prune()
    assert await driver.state(ref) is JobStatus.COMPLETED
    await driver.advance(1)
    await driver.prune()
    assert await driver.engine.get(ref) is None


@pytest.mark.parametrize(
    ("retention", "outcome"),
    [
        (Retention(completed=DAY, failed=None, cancelled=None), Complete()),
        (Retention(completed=None, failed=DAY, cancelled=None), Fail(BOOM)),
        (Retention(completed=None, failed=DAY, cancelled=None), Bury(BOOM)),
        pytest.param(
            Retention(completed=None, failed=None, cancelled=DAY),
            Cancel("enough"),
            marks=needs(Feature.CANCELLED_STATE),
        ),
    ],
    ids=["completed", "failed", "dead_letter", "cancelled"],
)
async def test_each_kind_of_end_has_its_own_time(driver: Driver, retention: Retention, outcome: Outcome):  # P9
    await driver.set("q", retention=retention)
    goes = await ended(driver, outcome)
    others: list[Outcome] = [Complete(), Fail(BOOM), Bury(BOOM)]
    if driver.engine.capabilities.has(Feature.CANCELLED_STATE):
        others.append(Cancel("enough"))
    kept_for_ever = {"completed": retention.completed, "failed": retention.failed, "cancelled": retention.cancelled}
    stay = [
        await ended(driver, other)
        for other in others
        if kept_for_ever[{Complete: "completed", Cancel: "cancelled"}.get(type(other), "failed")] is None
    ]
    await driver.advance(30 * DAY)
    assert (await driver.prune()).changed == 1
    assert await driver.engine.get(goes) is None
    assert {job.ref for job in await driver.jobs()} == set(stay)


async def test_each_queue_keeps_its_own_way(driver: Driver):  # P9
    await driver.set("brief", retention=Retention(completed=HOUR))
    await driver.set("for-ever", retention=Retention(completed=None))
    brief, kept = await ended(driver, Complete(), "brief"), await ended(driver, Complete(), "for-ever")
    await driver.advance(100 * DAY)
    await driver.prune()
    assert await driver.engine.get(brief) is None
    assert await driver.state(kept) is JobStatus.COMPLETED


async def test_nothing_kept_goes_with_the_next_pruning(driver: Driver):  # P9
    await driver.set("q", retention=Retention(completed=timedelta(0)))
    ref = await ended(driver, Complete())
    await driver.prune()
    assert await driver.engine.get(ref) is None


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [(Complete(), Retention(completed=None, completed_count=2)), (Bury(BOOM), Retention(failed_count=2))],
)
async def test_the_last_so_many_are_kept(driver: Driver, outcome: Outcome, kept: Retention):  # P9
    await driver.set("q", retention=kept)
    refs = [await ended(driver, outcome) for _ in range(5)]
    other = await ended(driver, outcome, "elsewhere")
    assert (await driver.prune()).changed == 3
    assert {job.ref for job in await driver.jobs()} == {*refs[-2:], other}


async def test_the_last_are_those_that_ended_last(driver: Driver):  # P9
    await driver.set("q", retention=Retention(completed=None, completed_count=1))
    first, second = await driver.add_many(2, queue="q")
    claims = await driver.take("q", slots=2)
    await driver.advance(1)
    assert await driver.end(claims[1], Complete())
    await driver.advance(1)
    assert await driver.end(claims[0], Complete())
    await driver.prune()
    assert [job.ref for job in await driver.jobs()] == [first]
    assert await driver.engine.get(second) is None


@needs(Feature.DELAY)
async def test_what_lives_is_never_pruned(driver: Driver):  # P9, X3
    nothing = Retention(
        completed=timedelta(0), completed_count=0, failed=timedelta(0), failed_count=0, cancelled=timedelta(0)
    )
    await driver.set("q", retention=nothing)
    await driver.add_many(3, queue="q")
    await driver.add(queue="q", delay=timedelta(days=900))
    await driver.take("q")
    await driver.advance(500 * DAY)
    assert (await driver.prune()).changed == 0
    assert len(await driver.jobs()) == 4


async def test_pruning_stops_at_its_limit_says_so_and_goes_on_next_time(driver: Driver):
    await driver.add_many(5, queue="q")
    await driver.end_all(await driver.take("q", slots=5), Complete())
    await driver.advance(8 * DAY)
    batches = [await driver.prune(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(2, True), (2, True), (1, False)]
