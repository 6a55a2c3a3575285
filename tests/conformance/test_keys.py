"""Keys by which a second enqueue adds nothing: while the job is kept (idempotency, O4), while it lives (dedupe, H5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import JobFilter
from onward.job import EnqueueStatus
from onward.keys import dedupe_key
from onward.lifecycle import FINISHED, Bury, Cancel, Complete, Fail, Outcome, Release, Retry, Snooze, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import PAST_LEASE, Desk, new_job

ENDINGS = [Complete(), Fail(BOOM), Bury(BOOM), pytest.param(Cancel("enough"), marks=needs(Feature.CANCELLED_STATE))]
GOING_ON: list[Outcome] = [Retry(timedelta(seconds=1), BOOM), Snooze(timedelta(seconds=1)), Release()]


def word(outcome: Outcome) -> str:
    return type(outcome).__name__.lower()


# Idempotency ----------------------------------------------------------------------------------------------------------


@needs(Feature.IDEMPOTENCY)
async def test_the_same_type_and_key_is_the_same_job_and_touches_it(desk: Desk):  # O4
    first = await desk.enqueue(type="charge", idempotency_key="order-7", payload='{"n":1}')
    before = await desk.job(first.ref)
    await desk.advance(10)
    second = await desk.enqueue(type="charge", idempotency_key="order-7", payload='{"n":2}', priority=0)
    assert (first.enqueue_status, second.enqueue_status) == (EnqueueStatus.INSERTED, EnqueueStatus.SAME_KEY)
    assert second.ref == first.ref
    after = await desk.job(first.ref)
    assert after.updated_at == desk.now or not desk.keeps_change_times
    assert (after.payload, after.created_at, after.status) == (before.payload, before.created_at, before.status)
    assert len(await desk.jobs()) == 1


@needs(Feature.IDEMPOTENCY)
async def test_the_same_key_with_another_type_is_another_job(desk: Desk):  # O4
    first = await desk.enqueue(type="charge", idempotency_key="order-7")
    other = await desk.enqueue(type="refund", idempotency_key="order-7")
    assert other.is_new
    assert other.ref != first.ref


@needs(Feature.IDEMPOTENCY)
async def test_type_and_key_do_not_run_into_each_other(desk: Desk):  # O4
    await desk.add(type="ab", idempotency_key="c")
    assert (await desk.enqueue(type="a", idempotency_key="bc")).is_new


@needs(Feature.IDEMPOTENCY)
async def test_another_queue_makes_no_other_job(desk: Desk):  # O4
    first = await desk.enqueue(queue="here", idempotency_key="k")
    second = await desk.enqueue(queue="there", idempotency_key="k")
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.SAME_KEY, first.ref)


@needs(Feature.IDEMPOTENCY)
async def test_jobs_without_a_key_are_never_the_same(desk: Desk):  # O4
    assert len(set(await desk.add_many(5, payload='{"same": 1}'))) == 5


@needs(Feature.IDEMPOTENCY)
async def test_keys_hold_within_one_bulk_and_against_what_is_there(desk: Desk):  # O4
    old = await desk.enqueue(idempotency_key="old")
    jobs = [new_job(idempotency_key=key, type=type) for type, key in [("greet", "a"), ("greet", "old"), ("greet", "a")]]
    jobs += [new_job(idempotency_key="a", type="part"), new_job(), new_job(idempotency_key="a")]
    answers = await desk.put(jobs)
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
    assert len(await desk.jobs()) == 4


@needs(Feature.IDEMPOTENCY)
@pytest.mark.parametrize("outcome", ENDINGS, ids=word)
async def test_a_finished_job_still_stands_for_its_key(desk: Desk, outcome: Outcome):  # O4
    first = await desk.enqueue(idempotency_key="k")
    assert await desk.end(await desk.take_one(), outcome)
    finished = await desk.job(first.ref)
    await desk.advance(timedelta(days=3))
    second = await desk.enqueue(idempotency_key="k")
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.SAME_KEY, first.ref)
    after = await desk.job(first.ref)
    assert after.status is finished.status
    assert after.status in FINISHED
    assert after.completed_at == finished.completed_at
    assert after.updated_at == desk.now or not desk.keeps_change_times
    assert await desk.take() == ()


@needs(Feature.IDEMPOTENCY)
async def test_a_key_is_free_when_its_job_is_deleted(desk: Desk):  # O4
    first = await desk.enqueue(idempotency_key="k")
    await desk.engine.delete(JobFilter(refs=(first.ref,)))
    second = await desk.enqueue(idempotency_key="k")
    assert second.is_new
    assert second.ref != first.ref


@needs(Feature.IDEMPOTENCY, Feature.RETENTION)
async def test_a_key_is_kept_for_as_long_as_its_job_and_no_longer(desk: Desk):  # O4
    first = await desk.enqueue(idempotency_key="k")
    assert await desk.end(await desk.take_one(), Complete())
    await desk.advance(timedelta(days=6))
    await desk.prune()
    assert (await desk.enqueue(idempotency_key="k")).ref == first.ref
    await desk.advance(timedelta(days=2))
    await desk.prune()
    assert (await desk.enqueue(idempotency_key="k")).is_new


@needs(Feature.IDEMPOTENCY)
async def test_keys_of_any_length_are_told_apart_to_the_last_character(desk: Desk):  # O4
    key = "k" * 100_000
    first = await desk.enqueue(idempotency_key=key + "a")
    assert (await desk.enqueue(idempotency_key=key + "b")).is_new
    assert (await desk.enqueue(idempotency_key=key + "a")).ref == first.ref
    assert (await desk.job(first.ref)).idempotency_key == key + "a"


@needs(Feature.IDEMPOTENCY)
async def test_keys_hold_from_code_without_an_event_loop_too(desk: Desk):  # O4
    first = await desk.enqueue(idempotency_key="k")
    (second,) = await asyncio.to_thread(desk.engine.enqueue_sync, [new_job(idempotency_key="k")])
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.SAME_KEY, first.ref)


# Deduplication --------------------------------------------------------------------------------------------------------

KEY = dedupe_key("greet", "acme", {"to": "ada"})


@needs(Feature.DEDUPLICATION)
async def test_a_second_enqueue_adds_nothing_while_the_first_waits(desk: Desk):  # H5
    first = await desk.enqueue(dedupe_key=KEY, payload='{"n":1}')
    second = await desk.enqueue(dedupe_key=KEY, payload='{"n":2}')
    assert (first.enqueue_status, second.enqueue_status) == (EnqueueStatus.INSERTED, EnqueueStatus.DEDUPED)
    assert second.ref == first.ref
    (job,) = await desk.jobs()
    assert (job.payload, job.dedupe_key) == ({"n": 1}, KEY)


@needs(Feature.DEDUPLICATION, Feature.DELAY)
async def test_a_delayed_job_is_waiting_too(desk: Desk):  # H5
    first = await desk.enqueue(dedupe_key=KEY, delay=timedelta(hours=1))
    assert (await desk.enqueue(dedupe_key=KEY)).ref == first.ref


@needs(Feature.DEDUPLICATION)
async def test_a_second_enqueue_adds_nothing_while_the_first_is_held(desk: Desk):  # H5
    first = await desk.enqueue(dedupe_key=KEY)
    claim = await desk.take_one()
    second = await desk.enqueue(dedupe_key=KEY)
    assert (second.enqueue_status, second.ref) == (EnqueueStatus.DEDUPED, first.ref)
    await desk.advance(PAST_LEASE)
    await desk.rescue()
    assert (await desk.enqueue(dedupe_key=KEY)).ref == first.ref
    assert not await desk.end(claim, Complete())


@needs(Feature.DEDUPLICATION)
@pytest.mark.parametrize("outcome", GOING_ON, ids=word)
async def test_a_job_that_goes_on_keeps_others_away(desk: Desk, outcome: Outcome):  # H5
    first = await desk.enqueue(dedupe_key=KEY)
    assert await desk.end(await desk.take_one(), outcome)
    assert (await desk.enqueue(dedupe_key=KEY)).ref == first.ref


@needs(Feature.DEDUPLICATION)
@pytest.mark.parametrize("outcome", ENDINGS, ids=word)
async def test_a_new_one_may_come_once_the_first_has_ended(desk: Desk, outcome: Outcome):  # H5
    first = await desk.enqueue(dedupe_key=KEY)
    assert await desk.end(await desk.take_one(), outcome)
    second = await desk.enqueue(dedupe_key=KEY)
    assert second.is_new
    assert second.ref != first.ref
    assert (await desk.enqueue(dedupe_key=KEY)).ref == second.ref


@needs(Feature.DEDUPLICATION)
async def test_a_new_one_may_come_once_the_first_is_taken_back_or_deleted(desk: Desk):  # H5
    await desk.cancel(await desk.add(dedupe_key=KEY))
    second = await desk.enqueue(dedupe_key=KEY)
    assert second.is_new
    await desk.engine.delete(JobFilter(refs=(second.ref,)))
    assert (await desk.enqueue(dedupe_key=KEY)).is_new


@needs(Feature.DEDUPLICATION)
async def test_dedupe_holds_within_one_bulk_and_against_what_is_there(desk: Desk):  # H5
    old = await desk.enqueue(dedupe_key="old")
    answers = await desk.put([new_job(dedupe_key=key) for key in ("a", "b", "a", "old", "a")])
    assert [answer.enqueue_status for answer in answers] == [
        EnqueueStatus.INSERTED,
        EnqueueStatus.INSERTED,
        EnqueueStatus.DEDUPED,
        EnqueueStatus.DEDUPED,
        EnqueueStatus.DEDUPED,
    ]
    assert answers[3].ref == old.ref
    assert answers[0].ref == answers[2].ref == answers[4].ref
    assert len(await desk.jobs()) == 3


@needs(Feature.DEDUPLICATION)
async def test_dedupe_keys_of_any_length_are_told_apart_to_the_last_character(desk: Desk):  # H4
    key = dedupe_key("greet", None, {"text": "x" * 100_000})
    first = await desk.enqueue(dedupe_key=key)
    assert (await desk.enqueue(dedupe_key=key + " ")).is_new
    assert (await desk.enqueue(dedupe_key=key)).ref == first.ref
    assert (await desk.job(first.ref)).dedupe_key == key


@needs(Feature.DEDUPLICATION, Feature.REPLAY)
async def test_a_replay_never_makes_two_living_jobs_of_one_key(desk: Desk):  # H5
    first = await desk.add(dedupe_key=KEY)
    assert await desk.end(await desk.take_one(), Bury(BOOM))
    second = await desk.add(dedupe_key=KEY)
    assert await desk.replay(first) == []
    assert (await desk.state(first), await desk.state(second)) == (desk.shown(State.DEAD_LETTER), State.PENDING)
    assert await desk.end(await desk.take_one(), Complete())
    assert [changed.ref for changed in await desk.replay(first)] == [first]


@needs(Feature.IDEMPOTENCY, Feature.DEDUPLICATION)
async def test_both_keys_on_one_job_each_keep_their_word(desk: Desk):  # O4, H5
    first = await desk.enqueue(idempotency_key="k", dedupe_key=KEY)
    assert await desk.end(await desk.take_one(), Complete())
    assert (await desk.enqueue(idempotency_key="k", dedupe_key=KEY)).enqueue_status is EnqueueStatus.SAME_KEY
    other = await desk.enqueue(idempotency_key="k2", dedupe_key=KEY)
    assert other.is_new
    assert other.ref != first.ref
    assert (await desk.enqueue(idempotency_key="k3", dedupe_key=KEY)).enqueue_status is EnqueueStatus.DEDUPED
    assert len(await desk.jobs()) == 2
