"""Attempts, crashes and suspects: what a run costs, and whom (Counting)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.job import JobRef
from onward.lifecycle import Bury, Cancel, Complete, Fail, Failure, JobStatus, Outcome, Release, Retry, Snooze
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import PAST_LEASE, Driver

SOON = timedelta(seconds=1)


def word(outcome: Outcome) -> str:
    return type(outcome).__name__.lower()


@pytest.mark.parametrize(
    ("outcome", "attempts"),
    [
        (Complete(), 1),
        (Retry(SOON, BOOM), 1),
        (Fail(BOOM), 1),
        (Bury(BOOM), 1),
        (Snooze(SOON), 0),
        (Release(), 0),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else word(value),
)
async def test_what_a_run_costs(driver: Driver, outcome: Outcome, attempts: int):  # Counting
    ref = await driver.add()
    assert await driver.end(await driver.take_one(), outcome)
    job = await driver.job(ref)
    assert (job.attempts, job.crashes) == (attempts, 0)


@needs(Feature.CLAIMED_STATE)
async def test_giving_back_what_never_started_gives_back_nothing_more(driver: Driver):  # Counting
    ref = await driver.add()
    assert await driver.end(await driver.take_one(), Retry(SOON, BOOM))
    await driver.wait(1)
    (claim,) = await driver.take_ahead()
    assert await driver.end(claim, Release())
    assert (await driver.job(ref)).attempts == 1
    (claim,) = await driver.take_ahead()
    assert claim.attempts == 1
    job = await driver.lose(claim)
    assert (job.status, job.attempts, job.crashes, job.is_suspect) == (JobStatus.PENDING, 1, 0, False)


async def test_snoozing_for_ever_never_uses_up_the_attempts(driver: Driver):  # Counting
    ref = await driver.add(max_attempts=1)
    for _ in range(4):
        claim = await driver.take_one()
        assert claim.attempts == 1
        assert await driver.end(claim, Snooze(SOON))
        await driver.wait(1)
    assert await driver.end(await driver.take_one(), Complete())
    assert (await driver.job(ref)).attempts == 1


@needs(Feature.ERROR_HISTORY)
async def test_the_errors_of_earlier_attempts_are_kept_beside_the_last(driver: Driver):  # O2, O8
    ref = await driver.add()
    moments = []
    for number in (1, 2):
        await driver.advance(1)
        claim = await driver.take_one(worker=f"worker-{number}")
        assert await driver.end(claim, Retry(SOON, Failure("KeyError", f"no {number}", f"trace {number}")))
        moments.append(driver.now)
        await driver.wait(1)
    claim = await driver.take_one(worker="worker-3")
    assert await driver.end(claim, Bury(Failure("Timeout", "")))
    job = await driver.job(ref)
    assert (job.status, job.last_error, job.attempts) == (JobStatus.DEAD_LETTER, "Timeout", 3)
    assert [
        (error.attempt, error.error_type, error.message, error.traceback, error.worker_id) for error in job.errors
    ] == [
        (1, "KeyError", "no 1", "trace 1", "worker-1"),
        (2, "KeyError", "no 2", "trace 2", "worker-2"),
        (3, "Timeout", "", None, "worker-3"),
    ]
    assert [error.at for error in job.errors] == [*moments, driver.now]


@needs(Feature.CANCELLED_STATE)
async def test_the_end_says_why_whichever_end_it_is(driver: Driver):  # O8
    ends: list[tuple[Outcome, JobStatus, str]] = [
        (Fail(Failure("NoHandler", "no handler for greet")), JobStatus.FAILED, "NoHandler: no handler for greet"),
        (Bury(BOOM), JobStatus.DEAD_LETTER, "ValueError: boom"),
        (Cancel("the customer left"), JobStatus.CANCELLED, "the customer left"),
    ]
    for outcome, state, shown in ends:
        ref = await driver.add()
        assert await driver.end(await driver.take_one(), outcome)
        job = await driver.job(ref)
        assert (job.status, job.completed_at) == (driver.engine.capabilities.shown(state), driver.now)
        assert job.last_error is not None
        assert shown in job.last_error
        assert job.result is None


@needs(Feature.CLAIMED_STATE)
async def test_a_job_without_a_handler_fails_before_it_starts(driver: Driver):  # O8
    ref = await driver.add()
    (claim,) = await driver.take_ahead()
    assert await driver.end(claim, Fail(Failure("NoHandler", "")))
    job = await driver.job(ref)
    assert (job.status, job.attempts, job.last_error) == (JobStatus.FAILED, 0, "NoHandler")


# Loss and suspicion ---------------------------------------------------------------------------------------------------


async def test_a_job_lost_with_its_worker_gets_its_attempt_back(driver: Driver):  # Counting, O7
    ref = await driver.add(max_attempts=1)
    job = await driver.lose(await driver.take_one())
    assert (job.ref, job.status, job.attempts, job.worker_id) == (ref, JobStatus.PENDING, 0, None)


@needs(Feature.SUSPECTS)
async def test_a_job_lost_once_runs_again_like_any_other(driver: Driver):  # Counting
    ref, other = await driver.add_many(2)
    job = await driver.lose(await driver.take_one())
    assert (job.is_suspect, job.crashes) == (False, 0)
    claims = await driver.claim(slots=2)
    assert not claims.has_suspects
    assert {(claim.ref, claim.is_suspect) for claim in claims.claims} == {(ref, False), (other, False)}


@needs(Feature.SUSPECTS)
async def test_a_job_that_two_runs_in_a_row_have_lost_is_a_suspect_without_blame(driver: Driver):  # Counting
    await driver.add()
    job = await driver.suspect()
    assert (job.is_suspect, job.crashes, job.attempts) == (True, 0, 0)


@needs(Feature.SUSPECTS)
@pytest.mark.parametrize("outcome", [Retry(SOON, BOOM), Snooze(SOON)], ids=word)
async def test_a_run_that_ends_by_itself_between_two_losses_clears_the_job(driver: Driver, outcome: Outcome):
    # Counting
    await driver.add()
    await driver.lose(await driver.take_one())
    assert await driver.end(await driver.take_one(), outcome)
    await driver.wait(1)
    assert not (await driver.lose(await driver.take_one())).is_suspect


@needs(Feature.SUSPECTS)
async def test_a_release_between_two_losses_clears_nothing(driver: Driver):  # Counting
    await driver.add()
    await driver.lose(await driver.take_one())
    assert await driver.end(await driver.take_one(), Release())
    assert (await driver.lose(await driver.take_one())).is_suspect


@needs(Feature.SUSPECTS, Feature.CLAIMED_STATE)
async def test_a_claim_lost_before_its_start_raises_no_suspicion(driver: Driver):  # Counting
    await driver.add()
    for _ in range(3):
        (claim,) = await driver.take_ahead()
        assert not (await driver.lose(claim)).is_suspect


@needs(Feature.SUSPECTS)
async def test_a_suspect_comes_only_to_a_worker_that_asks_for_it_alone(driver: Driver):  # Counting
    suspect = await suspected(driver)
    others = await driver.add_many(2)
    claims = await driver.claim(slots=5)
    assert [claim.ref for claim in claims.claims] == others
    assert claims.has_suspects
    (claim,) = await driver.take(slots=5, alone=True)
    assert (claim.ref, claim.is_suspect, claim.started, claim.attempts) == (suspect, True, True, 1)
    claims = await driver.claim(slots=5)
    assert not claims.has_suspects


@needs(Feature.SUSPECTS)
async def test_asking_alone_gives_one_suspect_and_nothing_but_it(driver: Driver):  # Counting
    refs = await driver.add_many(2)
    for _ in range(2):
        await driver.take(slots=2)
        await driver.advance(PAST_LEASE)
        await driver.rescue()
    await driver.add()
    claims = await driver.claim(slots=5, alone=True)
    (claim,) = claims.claims
    assert claim.ref in refs
    assert claims.has_suspects


@needs(Feature.SUSPECTS)
async def test_suspects_wait_is_said_of_the_queues_asked_for_only(driver: Driver):  # Counting
    await suspected(driver, queue="a")
    assert not (await driver.claim("b")).has_suspects
    assert (await driver.claim("a")).has_suspects
    assert await driver.take("b", alone=True) == ()


@needs(Feature.SUSPECTS)
async def test_a_crash_alone_is_counted_and_stays_with_the_job(driver: Driver):  # Counting
    ref = await suspected(driver, max_attempts=1)
    for crashes in (1, 2):
        claim = await driver.take_one(alone=True)
        assert claim.crashes == crashes - 1
        assert await driver.engine.record_crash(claim)
        assert await driver.engine.record_crash(claim)  # said twice, counted once
        assert await driver.end(claim, Release())
        job = await driver.job(ref)
        assert (job.status, job.crashes, job.attempts, job.is_suspect) == (JobStatus.PENDING, crashes, 0, True)
    claim = await driver.take_one(alone=True)
    assert await driver.engine.record_crash(claim)
    assert await driver.end(claim, Bury(Failure("ProcessDied", "its child process died 3 times")))
    job = await driver.job(ref)
    assert (job.status, job.crashes, job.completed_at) == (JobStatus.DEAD_LETTER, 3, driver.now)


@needs(Feature.SUSPECTS)
async def test_the_loss_of_a_worker_with_a_suspect_is_not_held_against_it(driver: Driver):  # Counting
    ref = await suspected(driver, max_attempts=1)
    for _ in range(5):
        job = await driver.lose(await driver.take_one(alone=True), max_crashes=1)
        assert (job.ref, job.status, job.crashes, job.is_suspect) == (ref, JobStatus.PENDING, 0, True)


@needs(Feature.SUSPECTS)
async def test_a_lost_claim_cannot_count_a_crash(driver: Driver):  # X3, Counting
    ref = await suspected(driver)
    lost = await driver.take_one(worker="worker-1", alone=True)
    await driver.lose(lost)
    assert not await driver.engine.record_crash(lost)
    await driver.take_one(worker="worker-2", alone=True)
    assert not await driver.engine.record_crash(lost)
    assert (await driver.job(ref)).crashes == 0


@needs(Feature.SUSPECTS)
async def test_the_neighbours_of_a_job_that_kills_its_worker_lose_nothing(driver: Driver):  # Counting
    killer = await driver.add(queue="deadly", max_attempts=1)
    neighbours = [await driver.add(max_attempts=1) for _ in range(3)]
    for _ in range(2):
        assert len(await driver.take("deadly", "default", slots=4)) == 4
        await driver.advance(PAST_LEASE)
        await driver.rescue()
    for _ in neighbours:
        claim = await driver.take_one("default", alone=True)
        assert claim.ref in neighbours
        assert await driver.end(claim, Complete())
    claim = await driver.take_one("deadly", alone=True)
    assert await driver.engine.record_crash(claim)
    assert await driver.end(claim, Bury(BOOM))
    assert ((await driver.job(killer)).status, (await driver.job(killer)).crashes) == (JobStatus.DEAD_LETTER, 1)
    for ref in neighbours:
        job = await driver.job(ref)
        assert (job.status, job.attempts, job.crashes) == (JobStatus.COMPLETED, 1, 0)


@needs(Feature.SUSPECTS)
async def test_a_cleared_suspect_runs_in_company_again(driver: Driver):  # Counting
    ref = await suspected(driver)
    assert await driver.end(await driver.take_one(alone=True), Retry(SOON, BOOM))
    await driver.wait(1)
    assert (await driver.job(ref)).attempts == 1
    assert (await driver.take_one()).ref == ref


@needs(Feature.SUSPECTS)
@pytest.mark.parametrize("outcome", [Complete(), Retry(SOON, BOOM), Fail(BOOM), Bury(BOOM), Snooze(SOON)], ids=word)
async def test_a_suspect_whose_run_ends_by_itself_is_cleared(driver: Driver, outcome: Outcome):  # Counting
    ref = await suspected(driver)
    assert await driver.end(await driver.take_one(alone=True), outcome)
    assert not (await driver.job(ref)).is_suspect


@needs(Feature.SUSPECTS)
@pytest.mark.parametrize(
    "outcome", [Release(), Snooze(timedelta(hours=1), is_put_back=True)], ids=["release", "put back"]
)
async def test_a_suspect_whose_handler_did_not_run_is_a_suspect_still(driver: Driver, outcome: Outcome):  # Counting, O8
    ref = await suspected(driver)
    assert await driver.end(await driver.take_one(alone=True), outcome)
    job = await driver.job(ref)
    assert (job.is_suspect, job.attempts, job.crashes) == (True, 0, 0)
    assert await driver.take() == ()


async def suspected(driver: Driver, **fields: object) -> JobRef:
    """Add a job and let two workers in a row die with it, so that it is a suspect."""
    ref = await driver.add(**fields)
    assert (await driver.suspect(ref.queue)).is_suspect
    return ref
