"""Times that are to come: delays, retries, and jobs that are no use after a certain moment."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.backoff import Backoff
from onward.engine.capabilities import Feature
from onward.lifecycle import JobStatus, Raised, Retry, Snooze, decide
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Driver, new_job

MINUTE = timedelta(minutes=1)


@needs(Feature.DELAY)
@pytest.mark.parametrize("by", ["delay", "run_at"])
async def test_a_job_is_not_ready_before_its_time_and_is_at_its_time(driver: Driver, by: str):  # O1, O10
    ref = await driver.add(**{by: MINUTE if by == "delay" else driver.now + MINUTE})
    due = driver.now + MINUTE
    assert (await driver.job(ref)).next_run_at == due
    assert (await driver.wait(59.999)).changed == 0
    assert await driver.take() == ()
    assert await driver.state(ref) is JobStatus.SCHEDULED
    batch = await driver.wait(0.001)
    assert batch.changed == driver.promoted(1)
    assert batch.queues == ({"default"} if batch.changed else set())
    assert await driver.state(ref) is JobStatus.PENDING
    assert (await driver.take_one()).ref == ref


@needs(Feature.DELAY)
async def test_no_delay_and_a_time_that_has_passed_are_ready_at_once(driver: Driver):
    refs = [
        await driver.add(delay=timedelta(0)),
        await driver.add(run_at=driver.now - timedelta(days=1)),
        await driver.add(run_at=driver.now),
    ]
    assert [await driver.state(ref) for ref in refs] == [JobStatus.PENDING] * 3
    assert set(await driver.taken()) == set(refs)


@needs(Feature.DELAY, Feature.LEADER)
async def test_promoting_says_when_the_next_job_is_due(driver: Driver):
    await driver.add(delay=timedelta(seconds=90))
    await driver.add(delay=timedelta(seconds=30))
    assert (await driver.promote()).next_in == 30
    batch = await driver.wait(30)
    assert (batch.changed, batch.next_in) == (driver.promoted(1), 60)
    assert (await driver.wait(50)).next_in == 10
    assert (await driver.wait(10)).changed == driver.promoted(1)


@needs(Feature.DELAY, Feature.PROMOTION)
async def test_promoting_stops_at_its_limit_says_so_and_goes_on_next_time(driver: Driver):
    await driver.add_many(5, delay=MINUTE, queue="a")
    await driver.advance(MINUTE)
    batches = [await driver.promote(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(2, True), (2, True), (1, False)]
    assert len(await driver.take("a", slots=9)) == 5


@needs(Feature.DELAY, Feature.PROMOTION)
async def test_promoting_takes_the_longest_due_first(driver: Driver):
    late = await driver.add(delay=2 * MINUTE)
    early = await driver.add(delay=MINUTE)
    await driver.advance(3 * MINUTE)
    await driver.promote(limit=1)
    assert (await driver.state(early), await driver.state(late)) == (JobStatus.PENDING, JobStatus.SCHEDULED)


@needs(Feature.DELAY, Feature.PRIORITY)
async def test_a_future_job_is_not_claimed_however_urgent(driver: Driver):  # O11
    await driver.add_many(3, delay=MINUTE, priority=1_000_000)
    ready = await driver.add()
    assert await driver.taken() == [ready]


@pytest.mark.parametrize("outcome", [Retry(timedelta(seconds=90), BOOM), Snooze(timedelta(seconds=90))])
async def test_a_retry_waits_by_the_stores_clock_from_when_the_outcome_is_stored(
    driver: Driver, outcome: Retry | Snooze
):  # H3, O6
    ref = await driver.add()
    claim = await driver.take_one()
    await driver.advance(7)
    assert await driver.end(claim, outcome)
    job = await driver.job(ref)
    assert (job.status, job.next_run_at) == (JobStatus.SCHEDULED, driver.now + timedelta(seconds=90))
    await driver.wait(89.999)
    assert await driver.take() == ()
    await driver.wait(0.001)
    assert (await driver.take_one()).ref == ref


async def test_the_waits_of_a_failing_job_are_those_of_its_backoff(driver: Driver):  # H1, H3
    ref = await driver.add(max_attempts=5, backoff=Backoff.exponential(2, factor=3, cap=20))
    waits = []
    for _ in range(4):
        claim = await driver.take_one()
        assert await driver.end(claim, decide(claim, Raised(BOOM)))
        job = await driver.job(ref)
        assert job.next_run_at is not None
        waits.append((job.next_run_at - driver.now).total_seconds())
        await driver.wait(job.next_run_at - driver.now)
    assert waits == [2, 6, 18, 20]
    claim = await driver.take_one()
    assert claim.attempts == 5
    assert await driver.end(claim, decide(claim, Raised(BOOM)))
    assert await driver.state(ref) is driver.shown(JobStatus.DEAD_LETTER)


# Not started in time --------------------------------------------------------------------------------------------------


@needs(Feature.CANCELLED_STATE, Feature.START_BY)
async def test_a_job_not_started_in_time_is_never_started_and_is_cancelled_as_expired(driver: Driver):  # O2
    ref = await driver.add(start_by=driver.now + MINUTE)
    on_time = await driver.add()
    await driver.advance(MINUTE + timedelta(milliseconds=1))
    assert await driver.taken() == [on_time]
    await driver.promote()
    job = await driver.job(ref)
    assert (job.status, job.completed_at) == (JobStatus.CANCELLED, driver.now)
    assert job.last_error is not None
    assert "expired" in job.last_error
    assert job.attempts == 0


@needs(Feature.CANCELLED_STATE, Feature.START_BY)
async def test_a_job_that_started_in_time_may_end_when_it_likes(driver: Driver):  # O2
    ref = await driver.add(start_by=driver.now + timedelta(seconds=10))
    await driver.advance(9)
    await driver.take_one()
    await driver.wait(5)
    assert await driver.state(ref) is JobStatus.RUNNING


@needs(Feature.CANCELLED_STATE, Feature.START_BY, Feature.DELAY)
async def test_a_delayed_job_expires_too(driver: Driver):  # O2
    ref = await driver.add(delay=timedelta(hours=1), start_by=driver.now + MINUTE)
    await driver.wait(2 * MINUTE)
    assert await driver.state(ref) is JobStatus.CANCELLED


@needs(Feature.CANCELLED_STATE, Feature.START_BY)
async def test_expired_jobs_are_counted_by_the_promotion_that_cancels_them(driver: Driver):  # O2
    await driver.put([new_job(start_by=driver.now + MINUTE)] * 3 + [new_job()])
    assert (await driver.wait(2 * MINUTE)).changed == 3
    assert (await driver.promote()).changed == 0


@needs(Feature.CANCELLED_STATE, Feature.START_BY, Feature.CLAIMED_STATE)
async def test_a_job_claimed_in_time_but_not_started_in_time_is_not_started(driver: Driver):  # O2
    ref = await driver.add(start_by=driver.now + timedelta(seconds=5))
    (claim,) = await driver.take_ahead()
    await driver.advance(6)
    assert await driver.engine.start([claim]) == {claim.token}
    assert (await driver.job(ref)).attempts == 0
    await driver.promote()
    assert await driver.state(ref) is JobStatus.CANCELLED
