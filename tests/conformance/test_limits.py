"""How fast and how many at once, across all workers and restarts: rates (P6) and global concurrency."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import ClaimRequest, Exchange, Rate, Settlement
from onward.job import JobRef
from onward.lifecycle import Complete, Fail, JobStatus, Outcome, Release, Retry, Snooze
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import PAST_LEASE, Driver

MINUTE = timedelta(minutes=1)
ONE_A_MINUTE = Rate(1, MINUTE)
SIXTY_A_MINUTE = Rate(60, MINUTE)
MOMENT = timedelta(milliseconds=1)


def worst_window(starts: list[datetime], period: timedelta) -> int:
    """Count the most starts that any half-open window of the period holds."""
    starts = sorted(starts)
    most = first = 0
    for index, start in enumerate(starts):
        while start - starts[first] >= period:
            first += 1
        most = max(most, index - first + 1)
    return most


async def starts_of(driver: Driver, rate: Rate, *, periods: int, lag: timedelta, seed: int = 1) -> list[datetime]:
    """Drive a limited queue as a worker would, asking again when told to, late by up to ``lag`` at random.

    Handlers start as late after the claim as they may.
    """
    dice = random.Random(seed)
    await driver.set("q", rate=rate)
    await driver.add_many(rate.count * periods + rate.count, queue="q")
    begin, starts = driver.now, []
    while driver.now - begin < periods * rate.period:
        claims = await driver.claim("q", slots=3)
        for claim in claims.claims:
            assert claim.start_within is not None
            assert 0 < claim.start_within < rate.period.total_seconds()
            starts.append(driver.now + timedelta(seconds=claim.start_within * dice.random()))
        if len(claims.claims) < 3:
            assert claims.retry_after is not None
            await driver.advance(timedelta(seconds=claims.retry_after) + lag * dice.random())
    return starts


# Rates ----------------------------------------------------------------------------------------------------------------


@needs(Feature.RATE)
@pytest.mark.parametrize(
    ("rate", "lag"),
    [
        (Rate(60, MINUTE), timedelta(0)),
        (Rate(60, MINUTE), timedelta(milliseconds=300)),
        (Rate(7, timedelta(seconds=1)), timedelta(milliseconds=5)),
        (Rate(1, timedelta(seconds=10)), timedelta(milliseconds=50)),
        (Rate(100, timedelta(seconds=3)), timedelta(milliseconds=10)),
    ],
    ids=str,
)
async def test_no_window_holds_more_than_the_rate_and_the_rate_is_used(
    driver: Driver, rate: Rate, lag: timedelta
):  # P6
    periods = 12 if rate.count < 50 else 4
    starts = await starts_of(driver, rate, periods=periods, lag=lag)
    assert worst_window(starts, rate.period) <= rate.count
    assert len(starts) >= 0.95 * rate.count * periods


@needs(Feature.RATE, Feature.BURST)
@pytest.mark.parametrize("burst", [2, 10, 60])
async def test_a_burst_comes_at_once_and_the_window_still_holds(driver: Driver, burst: int):  # P6
    rate = Rate(60, MINUTE, burst=burst)
    await driver.set("q", rate=rate)
    await driver.add_many(200, queue="q")
    assert len(await driver.take("q", slots=200)) == burst
    await driver.advance(timedelta(minutes=5))
    starts = await starts_of(driver, rate, periods=4, lag=timedelta(milliseconds=20))
    assert worst_window(starts, rate.period) <= rate.count


@needs(Feature.RATE)
async def test_a_quiet_time_is_not_made_up_for(driver: Driver):  # P6
    await driver.set("q", rate=SIXTY_A_MINUTE)
    await driver.add_many(20, queue="q")
    assert len(await driver.take("q", slots=20)) == 1
    await driver.advance(timedelta(hours=1))
    at_once = len(await driver.take("q", slots=20))
    # A worker that comes late may catch up with what the slack allows, and no more.
    assert 1 <= at_once <= 1 + SIXTY_A_MINUTE.slack / SIXTY_A_MINUTE.spacing


@needs(Feature.RATE)
async def test_a_claim_says_when_the_next_slot_comes_and_it_comes_then(driver: Driver):  # P6
    await driver.set("q", rate=SIXTY_A_MINUTE)
    refs = await driver.add_many(2, queue="q")
    assert await driver.taken("q", slots=1) == refs[:1]
    claims = await driver.claim("q")
    assert claims.claims == ()
    assert claims.retry_after is not None
    assert 0 < claims.retry_after <= SIXTY_A_MINUTE.spacing.total_seconds() + 0.001
    (queue,) = await driver.engine.queues("q")
    assert queue.next_permit_at == driver.now + timedelta(seconds=claims.retry_after)
    await driver.advance(timedelta(seconds=claims.retry_after) - MOMENT)
    assert await driver.take("q") == ()
    await driver.advance(MOMENT)
    assert await driver.taken("q", slots=1) == refs[1:]


@needs(Feature.RATE)
async def test_a_rate_holds_across_handles_and_restarts(driver: Driver):  # P6
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.add_many(3, queue="q")
    other = Driver(driver.store, await driver.store.connect())
    assert len(await driver.take("q", slots=3)) == 1
    assert await other.take("q", slots=3, worker="worker-2") == ()
    reopened = Driver(driver.store, await driver.store.reconnect(driver.engine))
    assert await reopened.take("q", slots=3) == ()
    await driver.advance(MINUTE * 2)
    assert len(await reopened.take("q", slots=3)) == 1
    assert await other.take("q", slots=3) == ()


@needs(Feature.RATE)
@pytest.mark.parametrize("outcome", [Complete(), Release(), Snooze(timedelta(0)), Fail(BOOM)], ids=str)
async def test_a_slot_once_used_does_not_come_back(driver: Driver, outcome: Outcome):  # P6
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.add_many(2, queue="q")
    assert await driver.end(await driver.take_one("q"), outcome)
    await driver.promote()
    assert await driver.take("q", slots=2) == ()


@needs(Feature.RATE)
async def test_a_lower_rate_acts_on_the_next_slot(driver: Driver):  # P6
    await driver.set("q", rate=SIXTY_A_MINUTE)
    await driver.add_many(5, queue="q")
    assert len(await driver.take("q", slots=5)) == 1
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.advance(ONE_A_MINUTE.spacing + MOMENT)
    assert len(await driver.take("q", slots=5)) == 1
    await driver.advance(SIXTY_A_MINUTE.spacing * 2)
    assert await driver.take("q", slots=5) == ()
    await driver.advance(ONE_A_MINUTE.spacing)
    assert len(await driver.take("q", slots=5)) == 1


@needs(Feature.RATE)
async def test_a_higher_rate_acts_on_the_next_slot(driver: Driver):  # P6
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.add_many(5, queue="q")
    assert len(await driver.take("q", slots=5)) == 1
    await driver.set("q", rate=SIXTY_A_MINUTE)
    assert await driver.take("q", slots=5) == ()
    await driver.advance(ONE_A_MINUTE.spacing + MOMENT)
    assert len(await driver.take("q", slots=1)) == 1
    for _ in range(3):
        await driver.advance(SIXTY_A_MINUTE.spacing + MOMENT)
        assert len(await driver.take("q", slots=1)) == 1


@needs(Feature.RATE)
async def test_claims_that_get_nothing_do_not_postpone_the_first_start_at_a_raised_rate(driver: Driver):  # P6
    await driver.set("q", rate=Rate(1, timedelta(hours=1)))
    await driver.add_many(2, queue="q")
    assert len(await driver.take("q")) == 1
    await driver.set("q", rate=SIXTY_A_MINUTE)
    await driver.rescue()  # on PostgreSQL the leader brings the permit closer
    for _ in range(4):
        assert await driver.take("q") == ()
        await driver.advance(SIXTY_A_MINUTE.spacing / 4)
    await driver.advance(MOMENT)
    assert len(await driver.take("q")) == 1


@needs(Feature.RATE, Feature.PAUSE, Feature.WEIGHT)
async def test_setting_the_same_rate_again_gives_no_extra_slot(driver: Driver):  # P6
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.add_many(3, queue="q")
    assert len(await driver.take("q", slots=3)) == 1
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.set("q", weight=1)
    await driver.set("q", paused=True)
    await driver.set("q", paused=False)
    assert await driver.take("q", slots=3) == ()


@needs(Feature.RATE)
async def test_a_rate_taken_off_limits_nothing(driver: Driver):  # P6
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.add_many(4, queue="q")
    assert len(await driver.take("q", slots=9)) == 1
    await driver.set("q", rate=None)
    claims = await driver.take("q", slots=9)
    assert len(claims) == 3
    assert {claim.start_within for claim in claims} == {None}


@needs(Feature.RATE, Feature.BURST, Feature.CLAIMED_STATE)
async def test_a_limited_queue_is_never_claimed_ahead(driver: Driver):  # P6
    await driver.set("limited", rate=Rate(60, MINUTE, burst=10))
    await driver.add_many(9, queue="limited")
    assert await driver.take("limited", slots=0, prefetch_claimed=5) == ()
    claims = await driver.take("limited", slots=2, prefetch_claimed=5)
    assert [claim.started for claim in claims] == [True, True]
    await driver.add_many(9, queue="free")
    claims = await driver.take("limited", "free", slots=2, prefetch_claimed=5)
    assert len(claims) == 7
    assert {claim.ref.queue for claim in claims if not claim.started} == {"free"}


@needs(Feature.RATE, Feature.BURST, Feature.CONCURRENCY)
async def test_hands_that_are_free_in_a_moment_get_nothing_from_a_limited_queue(driver: Driver):  # P6
    await driver.set("paced", rate=Rate(60, MINUTE, burst=10))
    await driver.set("narrow", global_concurrency=5)
    for queue in ("free", "narrow", "paced"):
        await driver.add_many(9, queue=queue)
    assert await driver.take("paced", "narrow", slots=0, prefetch_started=5) == ()
    takes_ahead = await driver.take("free", slots=0, prefetch_started=1) != ()  # PGMQ reads for free slots only
    claims = await driver.take("free", "narrow", "paced", slots=2, prefetch_started=5)
    assert len(claims) == (7 if takes_ahead else 2)
    assert sum(claim.ref.queue != "free" for claim in claims) <= 2
    assert sum(claim.started for claim in claims) >= 2


@needs(Feature.RATE)
async def test_jobs_of_a_limited_queue_say_within_which_time_they_must_start_and_others_do_not(driver: Driver):  # P6
    await driver.set("limited", rate=SIXTY_A_MINUTE)
    await driver.add(queue="limited")
    await driver.add(queue="free")
    claims = {claim.ref.queue: claim for claim in await driver.take("limited", "free", slots=2)}
    assert claims["free"].start_within is None
    assert claims["limited"].start_within == (SIXTY_A_MINUTE.slack / 2).total_seconds()


@needs(Feature.RATE, Feature.BURST)
async def test_an_empty_queue_uses_no_permits(driver: Driver):  # P6
    await driver.set("q", rate=Rate(60, MINUTE, burst=5))
    await driver.add_many(2, queue="q")
    assert len(await driver.take("q", slots=9)) == 2
    assert await driver.take("q", slots=9) == ()
    await driver.add_many(9, queue="q")
    assert len(await driver.take("q", slots=9)) == 3


@needs(Feature.RATE)
async def test_each_queue_has_a_rate_of_its_own(driver: Driver):  # P6
    for name in ("campaign/1", "campaign/2"):
        await driver.set(name, rate=ONE_A_MINUTE)
        await driver.add_many(2, queue=name)
    await driver.add_many(3, queue="free")
    assert (
        sorted(ref.queue for ref in await driver.taken("campaign/1", "campaign/2", "free", slots=9))
        == ["campaign/1", "campaign/2"] + ["free"] * 3
    )


@needs(Feature.RATE)
async def test_nothing_is_lost_in_a_limited_queue(driver: Driver):  # P6
    rate = Rate(10, timedelta(seconds=1))
    await driver.set("q", rate=rate)
    refs = await driver.add_many(25, queue="q")
    came: list[JobRef] = []
    while len(came) < 25:
        came += await driver.taken("q", slots=4)
        await driver.advance(rate.spacing + MOMENT)
    assert came == refs


@needs(Feature.RATE, Feature.SUSPECTS)
async def test_a_suspect_uses_a_slot_as_any_other(driver: Driver):  # P6, Counting
    await driver.set("q", rate=ONE_A_MINUTE)
    await driver.add(queue="q")
    await driver.lose(await driver.take_one("q"))
    await driver.advance(MINUTE)
    await driver.lose(await driver.take_one("q"))
    await driver.add(queue="q")
    assert (await driver.claim("q", alone=True)).claims == ()
    await driver.advance(MINUTE)
    assert len(await driver.take("q", alone=True)) == 1
    assert await driver.take("q", slots=2) == ()


# Concurrency ----------------------------------------------------------------------------------------------------------


@needs(Feature.CONCURRENCY)
async def test_no_more_of_a_queue_are_held_at_once_than_it_allows_whoever_asks(driver: Driver):
    await driver.set("q", global_concurrency=3)
    await driver.add_many(10, queue="q")
    other = Driver(driver.store, await driver.store.connect())
    assert len(await driver.take("q", slots=2)) == 2
    assert len(await other.take("q", slots=5, worker="worker-2")) == 1
    assert await driver.take("q", slots=5) == ()
    assert await other.take("q", slots=5) == ()


@needs(Feature.CONCURRENCY)
@pytest.mark.parametrize(
    "outcome", [Complete(), Fail(BOOM), Retry(MINUTE, BOOM), Snooze(MINUTE), Release()], ids=lambda o: type(o).__name__
)
async def test_every_end_of_a_run_frees_its_place(driver: Driver, outcome: Outcome):
    await driver.set("q", global_concurrency=1)
    await driver.add_many(2, queue="q")
    claim = await driver.take_one("q")
    assert await driver.take("q") == ()
    assert await driver.end(claim, outcome)
    assert len(await driver.take("q", slots=2)) == 1


@needs(Feature.CONCURRENCY)
async def test_rescue_and_cancel_free_a_place(driver: Driver):
    await driver.set("q", global_concurrency=1)
    first, second, third = await driver.add_many(3, queue="q")
    await driver.take_one("q")
    await driver.advance(PAST_LEASE)
    assert await driver.take("q") == (), "a lease that ran out holds its place until it is rescued"
    await driver.rescue()
    claim = await driver.take_one("q")
    assert claim.ref in {first, second}
    assert await driver.take("q") == ()
    await driver.cancel(claim.ref)
    assert (await driver.take_one("q")).ref in {second, third}


@needs(Feature.CONCURRENCY)
async def test_a_lost_claim_frees_nothing_a_second_time(driver: Driver):
    await driver.set("q", global_concurrency=1)
    await driver.add_many(3, queue="q")
    lost = await driver.take_one("q")
    await driver.cancel(lost.ref)
    await driver.take_one("q")
    assert not await driver.end(lost, Complete())
    assert await driver.take("q") == ()


@needs(Feature.CONCURRENCY)
async def test_a_change_of_concurrency_acts_on_the_next_claim(driver: Driver):
    await driver.set("q", global_concurrency=1)
    await driver.add_many(9, queue="q")
    assert len(await driver.take("q", slots=9)) == 1
    await driver.set("q", global_concurrency=3)
    claims = await driver.take("q", slots=9)
    assert len(claims) == 2
    await driver.set("q", global_concurrency=2)
    assert await driver.end(claims[0], Complete())
    assert await driver.take("q", slots=9) == ()
    assert await driver.end(claims[1], Complete())
    assert len(await driver.take("q", slots=9)) == 1
    await driver.set("q", global_concurrency=None)
    assert len(await driver.take("q", slots=9)) == 5


@needs(Feature.CONCURRENCY)
async def test_settling_makes_room_for_the_claim_of_the_same_round_trip(driver: Driver):
    await driver.set("q", global_concurrency=1)
    first, second = await driver.add_many(2, queue="q")
    claim = await driver.take_one("q")
    request = ClaimRequest(worker_id="worker-1", queues=("q",), slots=2)
    answer = await driver.engine.exchange(Exchange(settlements=(Settlement(claim, Complete()),), request=request))
    assert [claim.ref for claim in answer.claimed.claims] == [second]
    assert await driver.state(first) is JobStatus.COMPLETED


@needs(Feature.CONCURRENCY, Feature.RATE)
async def test_rate_and_concurrency_hold_together(driver: Driver):
    await driver.set("q", global_concurrency=1, rate=SIXTY_A_MINUTE)
    await driver.add_many(3, queue="q")
    claim = await driver.take_one("q")
    await driver.advance(10)
    assert await driver.take("q", slots=3) == ()
    assert await driver.end(claim, Complete())
    claim = await driver.take_one("q")
    assert await driver.end(claim, Complete())
    second_at_once = await driver.take("q", slots=3)
    await driver.advance(SIXTY_A_MINUTE.spacing)
    assert len([*second_at_once, *await driver.take("q", slots=3)]) == 1


@needs(Feature.CONCURRENCY, Feature.SUSPECTS)
async def test_a_suspect_needs_a_place_as_any_other(driver: Driver):
    await driver.set("q", global_concurrency=1)
    await driver.add_many(2, queue="q")
    await driver.suspect("q")
    await driver.take_one("q")
    assert await driver.take("q", alone=True) == ()
