"""One round trip: outcomes in, then starts, then new claims out."""

from __future__ import annotations

from datetime import timedelta

from onward.engine.capabilities import Feature
from onward.engine.values import ClaimRequest, Claims, Exchange, Settlement
from onward.lifecycle import Complete, Fail, Outcome, Release, Retry, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Desk

REQUEST = ClaimRequest(worker_id="worker-1", queues=("default",), slots=2)


async def test_outcomes_are_recorded_and_new_jobs_come_in_one_step(desk: Desk):
    refs = await desk.add_many(4)
    claims = await desk.take(slots=2)
    settlements = (Settlement(claims[0], Complete()), Settlement(claims[1], Fail(BOOM)))
    answer = await desk.engine.exchange(Exchange(settlements=settlements, request=REQUEST))
    assert answer.lost == frozenset()
    assert [claim.ref for claim in answer.claimed.claims] == refs[2:]
    assert [await desk.state(ref) for ref in refs] == [State.COMPLETED, State.FAILED, State.RUNNING, State.RUNNING]


async def test_what_is_given_back_can_be_claimed_in_the_same_step(desk: Desk):
    ref = await desk.add()
    claim = await desk.take_one()
    answer = await desk.engine.exchange(Exchange(settlements=(Settlement(claim, Release()),), request=REQUEST))
    (again,) = answer.claimed.claims
    assert (again.ref, again.attempts) == (ref, 1)
    assert again.token != claim.token


@needs(Feature.CLAIMED_STATE)
async def test_claimed_jobs_start_in_the_same_step(desk: Desk):
    refs = await desk.add_many(4)
    claims = await desk.take(slots=1, prefetch_claimed=2)
    answer = await desk.engine.exchange(
        Exchange(settlements=(Settlement(claims[0], Complete()),), starts=claims[1:], request=REQUEST)
    )
    assert answer.lost == frozenset()
    assert [claim.ref for claim in answer.claimed.claims] == refs[3:]
    assert [await desk.state(ref) for ref in refs] == [State.COMPLETED] + [State.RUNNING] * 3
    assert (await desk.job(refs[1])).attempts == 1


@needs(Feature.CLAIMED_STATE)
async def test_lost_outcomes_and_lost_starts_are_answered_together_and_nothing_else_suffers(desk: Desk):  # X3
    refs = await desk.add_many(5)
    running, prefetch_claimed = await desk.take(slots=2), await desk.take_ahead(count=2)
    await desk.cancel(running[0].ref, prefetch_claimed[0].ref)
    answer = await desk.engine.exchange(
        Exchange(
            settlements=tuple(Settlement(claim, Complete()) for claim in running),
            starts=prefetch_claimed,
            request=REQUEST,
        )
    )
    assert answer.lost == {running[0].token, prefetch_claimed[0].token}
    left = [await desk.state(ref) for ref in (refs[1], refs[3], refs[4])]
    assert left == [State.COMPLETED, State.RUNNING, State.RUNNING]


async def test_outcomes_alone_claim_nothing(desk: Desk):
    first, second = await desk.add_many(2)
    claim = await desk.take_one()
    outcome = Retry(timedelta(seconds=1), BOOM)
    answer = await desk.engine.exchange(Exchange(settlements=(Settlement(claim, outcome),)))
    assert (answer.lost, answer.claimed) == (frozenset(), Claims())
    assert (await desk.state(first), await desk.state(second)) == (State.SCHEDULED, State.PENDING)


async def test_an_empty_exchange_does_nothing(desk: Desk):
    await desk.add()
    before = await desk.snapshot()
    answer = await desk.engine.exchange(Exchange())
    assert (answer.lost, answer.claimed.claims) == (frozenset(), ())
    assert await desk.snapshot() == before


@needs(Feature.RESULTS)
async def test_every_kind_of_outcome_goes_in_one_step(desk: Desk):
    refs = await desk.add_many(5)
    claims = await desk.take(slots=5)
    outcomes: list[Outcome] = [Complete("1"), Retry(timedelta(seconds=1), BOOM), Fail(BOOM), Release(), Complete("2")]
    settlements = tuple(Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True))
    assert not (await desk.engine.exchange(Exchange(settlements=settlements))).lost
    assert [await desk.state(ref) for ref in refs] == [
        State.COMPLETED,
        State.SCHEDULED,
        State.FAILED,
        State.PENDING,
        State.COMPLETED,
    ]
    assert [(await desk.job(ref)).result for ref in (refs[0], refs[4])] == [1, 2]
