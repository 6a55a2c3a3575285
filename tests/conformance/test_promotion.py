"""Times that are to come: delays, retries, and jobs that are no use after a certain moment."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.backoff import Backoff
from onward.engine.capabilities import Feature
from onward.lifecycle import Raised, Retry, Snooze, State, decide
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Desk, new_job

MINUTE = timedelta(minutes=1)


@needs(Feature.DELAY)
@pytest.mark.parametrize("by", ["delay", "run_at"])
async def test_a_job_is_not_ready_before_its_time_and_is_at_its_time(desk: Desk, by: str):  # O1, O10
    ref = await desk.add(**{by: MINUTE if by == "delay" else desk.now + MINUTE})
    due = desk.now + MINUTE
    assert (await desk.job(ref)).next_run_at == due
    assert (await desk.wait(59.999)).changed == 0
    assert await desk.take() == ()
    assert await desk.state(ref) is State.SCHEDULED
    batch = await desk.wait(0.001)
    assert batch.changed == desk.promoted(1)
    assert batch.queues == ({"default"} if batch.changed else set())
    assert await desk.state(ref) is State.PENDING
    assert (await desk.take_one()).ref == ref


@needs(Feature.DELAY)
async def test_no_delay_and_a_time_that_has_passed_are_ready_at_once(desk: Desk):
    refs = [
        await desk.add(delay=timedelta(0)),
        await desk.add(run_at=desk.now - timedelta(days=1)),
        await desk.add(run_at=desk.now),
    ]
    assert [await desk.state(ref) for ref in refs] == [State.PENDING] * 3
    assert set(await desk.taken()) == set(refs)


@needs(Feature.DELAY, Feature.LEADER)
async def test_promoting_says_when_the_next_job_is_due(desk: Desk):
    await desk.add(delay=timedelta(seconds=90))
    await desk.add(delay=timedelta(seconds=30))
    assert (await desk.promote()).next_in == 30
    batch = await desk.wait(30)
    assert (batch.changed, batch.next_in) == (desk.promoted(1), 60)
    assert (await desk.wait(50)).next_in == 10
    assert (await desk.wait(10)).changed == desk.promoted(1)


@needs(Feature.DELAY, Feature.PROMOTION)
async def test_promoting_stops_at_its_limit_says_so_and_goes_on_next_time(desk: Desk):
    await desk.add_many(5, delay=MINUTE, queue="a")
    await desk.advance(MINUTE)
    batches = [await desk.promote(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(2, True), (2, True), (1, False)]
    assert len(await desk.take("a", slots=9)) == 5


@needs(Feature.DELAY, Feature.PROMOTION)
async def test_promoting_takes_the_longest_due_first(desk: Desk):
    late = await desk.add(delay=2 * MINUTE)
    early = await desk.add(delay=MINUTE)
    await desk.advance(3 * MINUTE)
    await desk.promote(limit=1)
    assert (await desk.state(early), await desk.state(late)) == (State.PENDING, State.SCHEDULED)


@needs(Feature.DELAY, Feature.PRIORITY)
async def test_a_future_job_is_not_claimed_however_urgent(desk: Desk):  # O11
    await desk.add_many(3, delay=MINUTE, priority=1_000_000)
    ready = await desk.add()
    assert await desk.taken() == [ready]


@pytest.mark.parametrize("outcome", [Retry(timedelta(seconds=90), BOOM), Snooze(timedelta(seconds=90))])
async def test_a_retry_waits_by_the_stores_clock_from_when_the_outcome_is_stored(
    desk: Desk, outcome: Retry | Snooze
):  # H3, O6
    ref = await desk.add()
    claim = await desk.take_one()
    await desk.advance(7)
    assert await desk.end(claim, outcome)
    job = await desk.job(ref)
    assert (job.status, job.next_run_at) == (State.SCHEDULED, desk.now + timedelta(seconds=90))
    await desk.wait(89.999)
    assert await desk.take() == ()
    await desk.wait(0.001)
    assert (await desk.take_one()).ref == ref


async def test_the_waits_of_a_failing_job_are_those_of_its_backoff(desk: Desk):  # H1, H3
    ref = await desk.add(max_attempts=5, backoff=Backoff.exponential(2, factor=3, cap=20))
    waits = []
    for _ in range(4):
        claim = await desk.take_one()
        assert await desk.end(claim, decide(claim, Raised(BOOM)))
        job = await desk.job(ref)
        assert job.next_run_at is not None
        waits.append((job.next_run_at - desk.now).total_seconds())
        await desk.wait(job.next_run_at - desk.now)
    assert waits == [2, 6, 18, 20]
    claim = await desk.take_one()
    assert claim.attempts == 5
    assert await desk.end(claim, decide(claim, Raised(BOOM)))
    assert await desk.state(ref) is desk.shown(State.DEAD_LETTER)


# Not started in time --------------------------------------------------------------------------------------------------


@needs(Feature.CANCELLED_STATE, Feature.START_BY)
async def test_a_job_not_started_in_time_is_never_started_and_is_cancelled_as_expired(desk: Desk):  # O2
    ref = await desk.add(start_by=desk.now + MINUTE)
    on_time = await desk.add()
    await desk.advance(MINUTE + timedelta(milliseconds=1))
    assert await desk.taken() == [on_time]
    await desk.promote()
    job = await desk.job(ref)
    assert (job.status, job.completed_at) == (State.CANCELLED, desk.now)
    assert job.last_error is not None
    assert "expired" in job.last_error
    assert job.attempts == 0


@needs(Feature.CANCELLED_STATE, Feature.START_BY)
async def test_a_job_that_started_in_time_may_end_when_it_likes(desk: Desk):  # O2
    ref = await desk.add(start_by=desk.now + timedelta(seconds=10))
    await desk.advance(9)
    await desk.take_one()
    await desk.wait(5)
    assert await desk.state(ref) is State.RUNNING


@needs(Feature.CANCELLED_STATE, Feature.START_BY, Feature.DELAY)
async def test_a_delayed_job_expires_too(desk: Desk):  # O2
    ref = await desk.add(delay=timedelta(hours=1), start_by=desk.now + MINUTE)
    await desk.wait(2 * MINUTE)
    assert await desk.state(ref) is State.CANCELLED


@needs(Feature.CANCELLED_STATE, Feature.START_BY)
async def test_expired_jobs_are_counted_by_the_promotion_that_cancels_them(desk: Desk):  # O2
    await desk.put([new_job(start_by=desk.now + MINUTE)] * 3 + [new_job()])
    assert (await desk.wait(2 * MINUTE)).changed == 3
    assert (await desk.promote()).changed == 0


@needs(Feature.CANCELLED_STATE, Feature.START_BY, Feature.CLAIMED_STATE)
async def test_a_job_claimed_in_time_but_not_started_in_time_is_not_started(desk: Desk):  # O2
    ref = await desk.add(start_by=desk.now + timedelta(seconds=5))
    (claim,) = await desk.take_ahead()
    await desk.advance(6)
    assert await desk.engine.start([claim]) == {claim.token}
    assert (await desk.job(ref)).attempts == 0
    await desk.promote()
    assert await desk.state(ref) is State.CANCELLED
