"""Keys by which a second enqueue adds nothing: while the job is kept (idempotency, O4), while it lives (dedupe, H5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import JobFilter
from onward.job import EnqueueStatus
from onward.keys import dedupe_key
from onward.lifecycle import FINISHED, Bury, Cancel, Complete, Fail, JobStatus, Outcome, Release, Retry, Snooze
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import PAST_LEASE, Driver, new_job

ENDINGS = [Complete(), Fail(BOOM), Bury(BOOM), pytest.param(Cancel("enough"), marks=needs(Feature.CANCELLED_STATE))]
GOING_ON: list[Outcome] = [Retry(timedelta(seconds=1), BOOM), Snooze(timedelta(seconds=1)), Release()]


def word(outcome: Outcome) -> str:
    return type(outcome).__name__.lower()


# Idempotency ----------------------------------------------------------------------------------------------------------


@needs(Feature.IDEMPOTENCY)
async def test_the_same_type_and_key_is_the_same_job_and_touches_it(driver: Driver):  # O4
    first = await driver.enqueue(type="charge", idempotency_key="order-7", payload='{"n":1}')
    before = await driver.job(first.ref)
    await driver.advance(10)
    second = await driver.enqueue(type="charge", idempotency_key="order-7", payload='{"n":2}', priority=0)
    assert (first.enqueue_status, second.enqueue_status) == (EnqueueStatus.INSERTED, EnqueueStatus.SAME_KEY)
    assert second.ref == first.ref
    after = await driver.job(first.ref)
    assert after.updated_at == driver.now or not driver.keeps_change_times
    assert (after.payload, after.created_at, after.status) == (before.payload, before.created_at, before.status)
    assert len(await driver.jobs()) == 1


@needs(Feature.IDEMPOTENCY)
async def test_the_same_key_with_another_type_is_another_job(driver: Driver):  # O4
    first = await driver.enqueue(type="charge", idempotency_key="order-7")
    other = await driver.enqueue(type="refund", idempotency_key="order-7")
    assert other.is_new
    assert other.ref != first.ref


@needs(Feature.IDEMPOTENCY, Feature.ORGANISATIONS)
async def test_the_same_key_of_another_organisation_is_another_job(driver: Driver):  # O4
    orgs = ["acme", "globex", None, "ac", "a"]
    first = [await driver.enqueue(type="charge", org_id=org, idempotency_key="order-7") for org in orgs]
    assert all(answer.is_new for answer in first)
    again = await driver.put([new_job(type="charge", org_id=org, idempotency_key="order-7") for org in orgs])
    assert [answer.enqueue_status for answer in again] == [EnqueueStatus.SAME_KEY] * len(orgs)
    assert [answer.ref for answer in again] == [answer.ref for answer in first]
    assert [(await driver.job(answer.ref)).org_id for answer in first] == orgs


@needs(Feature.IDEMPOTENCY, Feature.ORGANISATIONS)
async def test_a_key_that_is_freed_is_freed_for_its_organisation_only(driver: Driver):  # O4
    first = await driver.enqueue(org_id="acme", idempotency_key="k")
    other = await driver.enqueue(org_id="globex", idempotency_key="k")
    await driver.engine.delete(JobFilter(refs=(first.ref,)))
    assert (await driver.enqueue(org_id="acme", idempotency_key="k")).is_new
    assert (await driver.enqueue(org_id="globex", idempotency_key="k")).ref == other.ref


@needs(Feature.IDEMPOTENCY, Feature.ORGANISATIONS)
async def test_organisation_type_and_key_do_not_run_into_each_other(driver: Driver):  # O4
    shapes = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), (None, "ab", "cd"), (None, "a", "1:bcd")]
    for org, type, key in shapes:
        assert (await driver.enqueue(org_id=org, type=type, idempotency_key=key)).is_new


@needs(Feature.IDEMPOTENCY)
async def test_type_and_key_do_not_run_into_each_other(driver: Driver):  # O4
    await driver.add(type="ab", idempotency_key="c")
    assert (await driver.enqueue(type="a", idempotency_key="bc")).is_new


@needs(Feature.IDEMPOTENCY)
async def test_another_queue_makes_no_other_job(driver: Driver):  # O4
    first = await driver.enqueue(queue="here", idempotency_key="k")
    second = await driver.enqueue(queue="there", idempotency_key="k")
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.SAME_KEY, first.ref)


@needs(Feature.IDEMPOTENCY)
async def test_jobs_without_a_key_are_never_the_same(driver: Driver):  # O4
    assert len(set(await driver.add_many(5, payload='{"same": 1}'))) == 5


@needs(Feature.IDEMPOTENCY)
async def test_keys_hold_within_one_bulk_and_against_what_is_there(driver: Driver):  # O4
    old = await driver.enqueue(idempotency_key="old")
    jobs = [new_job(idempotency_key=key, type=type) for type, key in [("greet", "a"), ("greet", "old"), ("greet", "a")]]
    jobs += [new_job(idempotency_key="a", type="part"), new_job(), new_job(idempotency_key="a")]
    answers = await driver.put(jobs)
    assert [answer.enqueue_status for answer in answers] == [
        EnqueueStatus.INSERTED,
        EnqueueStatus.SAME_KEY,
        EnqueueStatus.SAME_KEY,
        EnqueueStatus.INSERTED,
        EnqueueStatus.INSERTED,
        EnqueueStatus.SAME_KEY,
    ]
    assert answers[1].ref == old.ref
    assert answers[0].ref == answers[2].ref == answers[5].ref
    assert len(await driver.jobs()) == 4


@needs(Feature.IDEMPOTENCY)
@pytest.mark.parametrize("outcome", ENDINGS, ids=word)
async def test_a_finished_job_still_stands_for_its_key(driver: Driver, outcome: Outcome):  # O4
    first = await driver.enqueue(idempotency_key="k")
    assert await driver.end(await driver.take_one(), outcome)
    finished = await driver.job(first.ref)
    await driver.advance(timedelta(days=3))
    second = await driver.enqueue(idempotency_key="k")
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.SAME_KEY, first.ref)
    after = await driver.job(first.ref)
    assert after.status is finished.status
    assert after.status in FINISHED
    assert after.completed_at == finished.completed_at
    assert after.updated_at == driver.now or not driver.keeps_change_times
    assert await driver.take() == ()


@needs(Feature.IDEMPOTENCY)
async def test_a_key_is_free_when_its_job_is_deleted(driver: Driver):  # O4
    first = await driver.enqueue(idempotency_key="k")
    await driver.engine.delete(JobFilter(refs=(first.ref,)))
    second = await driver.enqueue(idempotency_key="k")
    assert second.is_new
    assert second.ref != first.ref


@needs(Feature.IDEMPOTENCY, Feature.RETENTION)
async def test_a_key_is_kept_for_as_long_as_its_job_and_no_longer(driver: Driver):  # O4
    first = await driver.enqueue(idempotency_key="k")
    assert await driver.end(await driver.take_one(), Complete())
    await driver.advance(timedelta(days=6))
    await driver.prune()
    assert (await driver.enqueue(idempotency_key="k")).ref == first.ref
    await driver.advance(timedelta(days=2))
    await driver.prune()
    assert (await driver.enqueue(idempotency_key="k")).is_new


@needs(Feature.IDEMPOTENCY)
async def test_keys_of_any_length_are_told_apart_to_the_last_character(driver: Driver):  # O4
    key = "k" * 100_000
    first = await driver.enqueue(idempotency_key=key + "a")
    assert (await driver.enqueue(idempotency_key=key + "b")).is_new
    assert (await driver.enqueue(idempotency_key=key + "a")).ref == first.ref
    assert (await driver.job(first.ref)).idempotency_key == key + "a"


@needs(Feature.IDEMPOTENCY)
async def test_keys_hold_from_code_without_an_event_loop_too(driver: Driver):  # O4
    first = await driver.enqueue(idempotency_key="k")
    (second,) = await asyncio.to_thread(driver.engine.enqueue_sync, [new_job(idempotency_key="k")])
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.SAME_KEY, first.ref)


# Deduplication --------------------------------------------------------------------------------------------------------

KEY = dedupe_key("greet", "acme", {"to": "ada"})


@needs(Feature.DEDUPLICATION)
async def test_a_second_enqueue_adds_nothing_while_the_first_waits(driver: Driver):  # H5
    first = await driver.enqueue(dedupe_key=KEY, payload='{"n":1}')
    second = await driver.enqueue(dedupe_key=KEY, payload='{"n":2}')
    assert (first.enqueue_status, second.enqueue_status) == (EnqueueStatus.INSERTED, EnqueueStatus.DEDUPED)
    assert second.ref == first.ref
    (job,) = await driver.jobs()
    assert (job.payload, job.dedupe_key) == ({"n": 1}, KEY)


@needs(Feature.DEDUPLICATION, Feature.DELAY)
async def test_a_delayed_job_is_waiting_too(driver: Driver):  # H5
    first = await driver.enqueue(dedupe_key=KEY, delay=timedelta(hours=1))
    assert (await driver.enqueue(dedupe_key=KEY)).ref == first.ref


@needs(Feature.DEDUPLICATION)
async def test_a_second_enqueue_adds_nothing_while_the_first_is_held(driver: Driver):  # H5
    first = await driver.enqueue(dedupe_key=KEY)
    claim = await driver.take_one()
    second = await driver.enqueue(dedupe_key=KEY)
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.DEDUPED, first.ref)
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    assert (await driver.enqueue(dedupe_key=KEY)).ref == first.ref
    assert not await driver.end(claim, Complete())


@needs(Feature.DEDUPLICATION)
@pytest.mark.parametrize("outcome", GOING_ON, ids=word)
async def test_a_job_that_goes_on_keeps_others_away(driver: Driver, outcome: Outcome):  # H5
    first = await driver.enqueue(dedupe_key=KEY)
    assert await driver.end(await driver.take_one(), outcome)
    assert (await driver.enqueue(dedupe_key=KEY)).ref == first.ref


@needs(Feature.DEDUPLICATION)
@pytest.mark.parametrize("outcome", ENDINGS, ids=word)
async def test_a_new_one_may_come_once_the_first_has_ended(driver: Driver, outcome: Outcome):  # H5
    first = await driver.enqueue(dedupe_key=KEY)
    assert await driver.end(await driver.take_one(), outcome)
    second = await driver.enqueue(dedupe_key=KEY)
    assert second.is_new
    assert second.ref != first.ref
    assert (await driver.enqueue(dedupe_key=KEY)).ref == second.ref


@needs(Feature.DEDUPLICATION)
async def test_a_new_one_may_come_once_the_first_is_taken_back_or_deleted(driver: Driver):  # H5
    await driver.cancel(await driver.add(dedupe_key=KEY))
    second = await driver.enqueue(dedupe_key=KEY)
    assert second.is_new
    await driver.engine.delete(JobFilter(refs=(second.ref,)))
    assert (await driver.enqueue(dedupe_key=KEY)).is_new


@needs(Feature.DEDUPLICATION)
async def test_dedupe_holds_within_one_bulk_and_against_what_is_there(driver: Driver):  # H5
    old = await driver.enqueue(dedupe_key="old")
    answers = await driver.put([new_job(dedupe_key=key) for key in ("a", "b", "a", "old", "a")])
    assert [answer.enqueue_status for answer in answers] == [
        EnqueueStatus.INSERTED,
        EnqueueStatus.INSERTED,
        EnqueueStatus.DEDUPED,
        EnqueueStatus.DEDUPED,
        EnqueueStatus.DEDUPED,
    ]
    assert answers[3].ref == old.ref
    assert answers[0].ref == answers[2].ref == answers[4].ref
    assert len(await driver.jobs()) == 3


@needs(Feature.DEDUPLICATION)
async def test_dedupe_keys_of_any_length_are_told_apart_to_the_last_character(driver: Driver):  # H4
    key = dedupe_key("greet", None, {"text": "x" * 100_000})
    first = await driver.enqueue(dedupe_key=key)
    assert (await driver.enqueue(dedupe_key=key + " ")).is_new
    assert (await driver.enqueue(dedupe_key=key)).ref == first.ref
    assert (await driver.job(first.ref)).dedupe_key == key


@needs(Feature.DEDUPLICATION, Feature.REPLAY)
async def test_a_replay_never_makes_two_living_jobs_of_one_key(driver: Driver):  # H5
    first = await driver.add(dedupe_key=KEY)
    assert await driver.end(await driver.take_one(), Bury(BOOM))
    second = await driver.add(dedupe_key=KEY)
    assert await driver.replay(first) == []
    assert (await driver.state(first), await driver.state(second)) == (
        driver.shown(JobStatus.DEAD_LETTER),
        JobStatus.PENDING,
    )
    assert await driver.end(await driver.take_one(), Complete())
    assert [changed.ref for changed in await driver.replay(first)] == [first]


@needs(Feature.IDEMPOTENCY, Feature.DEDUPLICATION)
async def test_both_keys_on_one_job_each_keep_their_word(driver: Driver):  # O4, H5
    first = await driver.enqueue(idempotency_key="k", dedupe_key=KEY)
    assert await driver.end(await driver.take_one(), Complete())
    assert (await driver.enqueue(idempotency_key="k", dedupe_key=KEY)).enqueue_status is EnqueueStatus.SAME_KEY
    other = await driver.enqueue(idempotency_key="k2", dedupe_key=KEY)
    assert other.is_new
    assert other.ref != first.ref
    assert (await driver.enqueue(idempotency_key="k3", dedupe_key=KEY)).enqueue_status is EnqueueStatus.DEDUPED
    assert len(await driver.jobs()) == 2
