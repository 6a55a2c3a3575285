"""One round trip: outcomes in, then starts, then new claims out."""

from __future__ import annotations

from datetime import timedelta

from onward.engine.capabilities import Feature
from onward.engine.values import ClaimRequest, Claims, Exchange, Settlement
from onward.lifecycle import Complete, Fail, JobStatus, Outcome, Release, Retry
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Driver

REQUEST = ClaimRequest(worker_id="worker-1", queues=("default",), slots=2)


async def test_outcomes_are_recorded_and_new_jobs_come_in_one_step(driver: Driver):
    refs = await driver.add_many(4)
    claims = await driver.take(slots=2)
    settlements = (Settlement(claims[0], Complete()), Settlement(claims[1], Fail(BOOM)))
    answer = await driver.engine.exchange(Exchange(settlements=settlements, request=REQUEST))
    assert answer.lost == frozenset()
    assert [claim.ref for claim in answer.claimed.claims] == refs[2:]
    assert [await driver.state(ref) for ref in refs] == [
        JobStatus.COMPLETED,
        JobStatus.FAILED,
        JobStatus.RUNNING,
        JobStatus.RUNNING,
    ]


async def test_what_is_given_back_can_be_claimed_in_the_same_step(driver: Driver):
    ref = await driver.add()
    claim = await driver.take_one()
    answer = await driver.engine.exchange(Exchange(settlements=(Settlement(claim, Release()),), request=REQUEST))
    (again,) = answer.claimed.claims
    assert (again.ref, again.attempts) == (ref, 1)
    assert again.token != claim.token


@needs(Feature.CLAIMED_STATE)
async def test_claimed_jobs_start_in_the_same_step(driver: Driver):
    refs = await driver.add_many(4)
    claims = await driver.take(slots=1, prefetch_claimed=2)
    answer = await driver.engine.exchange(
        Exchange(settlements=(Settlement(claims[0], Complete()),), starts=claims[1:], request=REQUEST)
    )
    assert answer.lost == frozenset()
    assert [claim.ref for claim in answer.claimed.claims] == refs[3:]
    assert [await driver.state(ref) for ref in refs] == [JobStatus.COMPLETED] + [JobStatus.RUNNING] * 3
    assert (await driver.job(refs[1])).attempts == 1


@needs(Feature.CLAIMED_STATE)
async def test_lost_outcomes_and_lost_starts_are_answered_together_and_nothing_else_suffers(driver: Driver):  # X3
    refs = await driver.add_many(5)
    running, prefetch_claimed = await driver.take(slots=2), await driver.take_ahead(count=2)
    await driver.cancel(running[0].ref, prefetch_claimed[0].ref)
    answer = await driver.engine.exchange(
        Exchange(
            settlements=tuple(Settlement(claim, Complete()) for claim in running),
            starts=prefetch_claimed,
            request=REQUEST,
        )
    )
    assert answer.lost == {running[0].token, prefetch_claimed[0].token}
    left = [await driver.state(ref) for ref in (refs[1], refs[3], refs[4])]
    assert left == [JobStatus.COMPLETED, JobStatus.RUNNING, JobStatus.RUNNING]


async def test_outcomes_alone_claim_nothing(driver: Driver):
    first, second = await driver.add_many(2)
    claim = await driver.take_one()
    outcome = Retry(timedelta(seconds=1), BOOM)
    answer = await driver.engine.exchange(Exchange(settlements=(Settlement(claim, outcome),)))
    assert (answer.lost, answer.claimed) == (frozenset(), Claims())
    assert (await driver.state(first), await driver.state(second)) == (JobStatus.SCHEDULED, JobStatus.PENDING)


async def test_an_empty_exchange_does_nothing(driver: Driver):
    await driver.add()
    before = await driver.snapshot()
    answer = await driver.engine.exchange(Exchange())
    assert (answer.lost, answer.claimed.claims) == (frozenset(), ())
    assert await driver.snapshot() == before


@needs(Feature.RESULTS)
async def test_every_kind_of_outcome_goes_in_one_step(driver: Driver):
    refs = await driver.add_many(5)
    claims = await driver.take(slots=5)
    outcomes: list[Outcome] = [Complete("1"), Retry(timedelta(seconds=1), BOOM), Fail(BOOM), Release(), Complete("2")]
    settlements = tuple(Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True))
    assert not (await driver.engine.exchange(Exchange(settlements=settlements))).lost
    assert [await driver.state(ref) for ref in refs] == [
        JobStatus.COMPLETED,
        JobStatus.SCHEDULED,
        JobStatus.FAILED,
        JobStatus.PENDING,
        JobStatus.COMPLETED,
    ]
    assert [(await driver.job(ref)).result for ref in (refs[0], refs[4])] == [1, 2]
