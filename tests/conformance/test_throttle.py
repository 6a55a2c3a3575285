"""At most one job in a period, and of many in a row only the last: held by the store, in bulk too."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import JobFilter
from onward.errors import InvalidJob
from onward.job import Enqueued, EnqueueStatus
from onward.lifecycle import Bury, Complete, Retry, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Desk, new_job

pytestmark = needs(Feature.THROTTLE)

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


async def throttled(desk: Desk, key: str = "k", **fields: Any) -> Enqueued:
    return await desk.enqueue(dedupe_key=key, throttle=MINUTE, **fields)


async def debounced(desk: Desk, number: int, key: str = "k", **fields: Any) -> Enqueued:
    return await desk.enqueue(dedupe_key=key, debounce=MINUTE, payload=f'{{"n":{number}}}', **fields)


# Throttle


async def test_a_throttled_key_gives_the_first_job_back_for_its_period(desk: Desk):
    first = await throttled(desk)
    await desk.advance(MINUTE - SECOND)
    again = await throttled(desk)
    assert (again.ref, again.enqueue_status) == (first.ref, EnqueueStatus.DEDUPED)
    await desk.advance(2 * SECOND)
    later = await throttled(desk)
    assert later.is_new
    assert later.ref != first.ref
    assert len(await desk.jobs()) == 2


@pytest.mark.parametrize("outcome", [Complete(), Bury(BOOM)])
async def test_a_throttle_holds_whatever_becomes_of_the_job(desk: Desk, outcome: Any):
    first = await throttled(desk)
    await desk.end(await desk.take_one(), outcome)
    assert (await throttled(desk)).ref == first.ref
    await desk.engine.delete(JobFilter(refs=(first.ref,)))
    assert not (await throttled(desk)).is_new


async def test_a_throttle_is_not_counted_from_those_it_turned_away(desk: Desk):
    await throttled(desk)
    for _ in range(3):
        await desk.advance(25)
        await throttled(desk)
    assert len(await desk.jobs()) == 2


async def test_keys_are_throttled_apart_and_apart_from_plain_dedupe(desk: Desk):
    await throttled(desk)
    assert (await throttled(desk, "other")).is_new
    assert (await desk.enqueue(dedupe_key="k")).is_new
    assert not (await desk.enqueue(dedupe_key="k")).is_new


async def test_a_bulk_is_throttled_as_its_jobs_one_by_one(desk: Desk):
    job = new_job(dedupe_key="k", throttle=MINUTE)
    answers = await desk.put([job, new_job(), job, new_job(dedupe_key="j", throttle=MINUTE)])
    assert [answer.is_new for answer in answers] == [True, True, False, True]
    assert answers[2].ref == answers[0].ref
    assert len(await desk.jobs()) == 3


async def test_of_many_callers_at_once_one_is_let_through(desk: Desk):
    handles = [await desk.store.connect() for _ in range(4)]
    job = new_job(dedupe_key="k", throttle=MINUTE)
    answers = await asyncio.gather(*(handle.enqueue([job]) for handle in handles for _ in range(5)))
    assert sum(answer.is_new for (answer,) in answers) == 1
    assert len({answer.ref for (answer,) in answers}) == 1


async def test_the_key_of_a_throttled_job_is_told(desk: Desk):
    first = await throttled(desk)
    assert (await desk.job(first.ref)).dedupe_key == "k"


# Debounce


async def test_a_debounced_job_runs_after_quiet_and_is_the_last_that_came(desk: Desk):
    first = await debounced(desk, 1)
    assert await desk.state(first.ref) is State.SCHEDULED
    await desk.advance(50)
    second = await debounced(desk, 2)
    assert (second.ref, second.enqueue_status) == (first.ref, EnqueueStatus.REPLACED)
    await desk.wait(50)
    assert await desk.taken() == []
    await desk.wait(11)
    claim = await desk.take_one()
    assert (claim.ref, claim.payload) == (first.ref, '{"n":2}')


async def test_one_that_is_due_but_not_taken_has_its_payload_replaced(desk: Desk):
    first = await debounced(desk, 1)
    await desk.wait(MINUTE + SECOND)
    assert (await debounced(desk, 2)).ref == first.ref
    assert (await desk.take_one()).payload == '{"n":2}'


async def test_one_that_has_started_is_left_alone_and_another_waits_for_quiet(desk: Desk):
    first = await debounced(desk, 1)
    await desk.wait(MINUTE + SECOND)
    claim = await desk.take_one()
    second = await debounced(desk, 2)
    assert second.is_new
    assert (await debounced(desk, 3)).ref == second.ref
    await desk.end(claim, Retry(timedelta(hours=1), BOOM))
    assert (await debounced(desk, 4)).ref == second.ref
    assert (await desk.job(first.ref)).payload == {"n": 1}
    assert (await desk.job(second.ref)).payload == {"n": 4}


async def test_one_that_waits_to_be_tried_again_is_left_alone(desk: Desk):
    first = await debounced(desk, 1)
    await desk.wait(MINUTE + SECOND)
    await desk.end(await desk.take_one(), Retry(timedelta(hours=1), BOOM))
    assert (await debounced(desk, 2)).is_new
    assert (await desk.job(first.ref)).payload == {"n": 1}


async def test_one_that_has_ended_or_is_gone_is_followed_by_another(desk: Desk):
    first = await debounced(desk, 1)
    await desk.engine.cancel(JobFilter(refs=(first.ref,)))
    second = await debounced(desk, 2)
    assert second.is_new
    await desk.engine.delete(JobFilter(refs=(second.ref,)))
    assert (await debounced(desk, 3)).is_new


async def test_a_bulk_is_debounced_as_its_jobs_one_by_one(desk: Desk):
    jobs = [new_job(dedupe_key="k", debounce=MINUTE, payload=f'{{"n":{n}}}') for n in range(4)]
    answers = await desk.put(jobs)
    assert [answer.enqueue_status for answer in answers] == [EnqueueStatus.INSERTED, *[EnqueueStatus.REPLACED] * 3]
    await desk.wait(MINUTE + SECOND)
    (claim,) = await desk.take(slots=10)
    assert claim.payload == '{"n":3}'


async def test_of_many_callers_at_once_one_job_comes(desk: Desk):
    handles = [await desk.store.connect() for _ in range(4)]
    jobs = [new_job(dedupe_key="k", debounce=MINUTE, payload=f'{{"n":{n}}}') for n in range(20)]
    answers = await asyncio.gather(*(handles[n % 4].enqueue([job]) for n, job in enumerate(jobs)))
    assert len({answer.ref for (answer,) in answers}) == 1
    assert len(await desk.jobs()) == 1


async def test_what_holds_nothing_any_more_is_forgotten_and_what_does_is_not(desk: Desk):
    await throttled(desk)
    waiting = await debounced(desk, 1, "late")
    await desk.wait(MINUTE + SECOND)
    await throttled(desk, "new")
    await desk.prune()
    assert not (await throttled(desk, "new")).is_new
    assert (await debounced(desk, 2, "late")).ref == waiting.ref
    assert (await throttled(desk)).is_new


@needs(Feature.TRANSACTIONS)
async def test_a_key_is_held_only_if_the_callers_transaction_commits(desk: Desk):
    # X4
    job = new_job(dedupe_key="k", throttle=MINUTE)
    caller = desk.store.caller()
    caller.begin()
    await desk.engine.enqueue([job], within=caller.handle)
    caller.rollback()
    assert (await throttled(desk)).is_new


@pytest.mark.parametrize(
    "fields",
    [
        {"throttle": MINUTE},
        {"debounce": MINUTE},
        {"dedupe_key": "k", "throttle": MINUTE, "debounce": MINUTE},
        {"dedupe_key": "k", "throttle": timedelta(0)},
        {"dedupe_key": "k", "debounce": -SECOND},
        {"dedupe_key": "k", "debounce": MINUTE, "delay": MINUTE},
    ],
    ids=["no key", "no key to debounce", "both", "no time", "negative", "delayed"],
)
async def test_what_makes_no_sense_is_refused(desk: Desk, fields: dict[str, Any]):
    with pytest.raises(InvalidJob):
        await desk.enqueue(**fields)
    assert await desk.jobs() == ()
