"""At most one job in a period, and of many in a row only the last: held by the store, in bulk too."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import JobFilter
from onward.errors import InvalidValue
from onward.job import Enqueued, EnqueueStatus
from onward.lifecycle import Bury, Complete, JobStatus, Retry
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Driver, new_job

pytestmark = needs(Feature.THROTTLE)

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


async def throttled(driver: Driver, key: str = "k", **fields: Any) -> Enqueued:
    return await driver.enqueue(dedupe_key=key, throttle=MINUTE, **fields)


async def debounced(driver: Driver, number: int, key: str = "k", **fields: Any) -> Enqueued:
    return await driver.enqueue(dedupe_key=key, debounce=MINUTE, payload=f'{{"n":{number}}}', **fields)


# Throttle


async def test_a_throttled_key_gives_the_first_job_back_for_its_period(driver: Driver):
    first = await throttled(driver)
    await driver.advance(MINUTE - SECOND)
    again = await throttled(driver)
    assert (again.ref, again.enqueue_status) == (first.ref, EnqueueStatus.DEDUPED)
    await driver.advance(2 * SECOND)
    later = await throttled(driver)
    assert later.is_new
    assert later.ref != first.ref
    assert len(await driver.jobs()) == 2


@pytest.mark.parametrize("outcome", [Complete(), Bury(BOOM)])
async def test_a_throttle_holds_whatever_becomes_of_the_job(driver: Driver, outcome: Any):
    first = await throttled(driver)
    await driver.end(await driver.take_one(), outcome)
    assert (await throttled(driver)).ref == first.ref
    await driver.engine.delete(JobFilter(refs=(first.ref,)))
    assert not (await throttled(driver)).is_new


async def test_a_throttle_is_not_counted_from_those_it_turned_away(driver: Driver):
    await throttled(driver)
    for _ in range(3):
        await driver.advance(25)
        await throttled(driver)
    assert len(await driver.jobs()) == 2


async def test_keys_are_throttled_apart_and_apart_from_plain_dedupe(driver: Driver):
    await throttled(driver)
    assert (await throttled(driver, "other")).is_new
    assert (await driver.enqueue(dedupe_key="k")).is_new
    assert not (await driver.enqueue(dedupe_key="k")).is_new


async def test_a_bulk_is_throttled_as_its_jobs_one_by_one(driver: Driver):
    job = new_job(dedupe_key="k", throttle=MINUTE)
    answers = await driver.put([job, new_job(), job, new_job(dedupe_key="j", throttle=MINUTE)])
    assert [answer.is_new for answer in answers] == [True, True, False, True]
    assert answers[2].ref == answers[0].ref
    assert len(await driver.jobs()) == 3


async def test_of_many_callers_at_once_one_is_let_through(driver: Driver):
    handles = [await driver.store.connect() for _ in range(4)]
    job = new_job(dedupe_key="k", throttle=MINUTE)
    answers = await asyncio.gather(*(handle.enqueue([job]) for handle in handles for _ in range(5)))
    assert sum(answer.is_new for (answer,) in answers) == 1
    assert len({answer.ref for (answer,) in answers}) == 1


async def test_the_key_of_a_throttled_job_is_told(driver: Driver):
    first = await throttled(driver)
    assert (await driver.job(first.ref)).dedupe_key == "k"


# Debounce


async def test_a_debounced_job_runs_after_quiet_and_is_the_last_that_came(driver: Driver):
    first = await debounced(driver, 1)
    assert await driver.state(first.ref) is JobStatus.SCHEDULED
    await driver.advance(50)
    second = await debounced(driver, 2)
    assert (second.ref, second.enqueue_status) == (first.ref, EnqueueStatus.REPLACED)
    await driver.wait(50)
    assert await driver.taken() == []
    await driver.wait(11)
    claim = await driver.take_one()
    assert (claim.ref, claim.payload) == (first.ref, '{"n":2}')


async def test_one_that_is_due_but_not_taken_has_its_payload_replaced(driver: Driver):
    first = await debounced(driver, 1)
    await driver.wait(MINUTE + SECOND)
    assert (await debounced(driver, 2)).ref == first.ref
    assert (await driver.take_one()).payload == '{"n":2}'


async def test_one_that_has_started_is_left_alone_and_another_waits_for_quiet(driver: Driver):
    first = await debounced(driver, 1)
    await driver.wait(MINUTE + SECOND)
    claim = await driver.take_one()
    second = await debounced(driver, 2)
    assert second.is_new
    assert (await debounced(driver, 3)).ref == second.ref
    await driver.end(claim, Retry(timedelta(hours=1), BOOM))
    assert (await debounced(driver, 4)).ref == second.ref
    assert (await driver.job(first.ref)).payload == {"n": 1}
    assert (await driver.job(second.ref)).payload == {"n": 4}


async def test_one_that_waits_to_be_tried_again_is_left_alone(driver: Driver):
    first = await debounced(driver, 1)
    await driver.wait(MINUTE + SECOND)
    await driver.end(await driver.take_one(), Retry(timedelta(hours=1), BOOM))
    assert (await debounced(driver, 2)).is_new
    assert (await driver.job(first.ref)).payload == {"n": 1}


async def test_one_that_has_ended_or_is_gone_is_followed_by_another(driver: Driver):
    first = await debounced(driver, 1)
    await driver.engine.cancel(JobFilter(refs=(first.ref,)))
    second = await debounced(driver, 2)
    assert second.is_new
    await driver.engine.delete(JobFilter(refs=(second.ref,)))
    assert (await debounced(driver, 3)).is_new


async def test_a_bulk_is_debounced_as_its_jobs_one_by_one(driver: Driver):
    jobs = [new_job(dedupe_key="k", debounce=MINUTE, payload=f'{{"n":{n}}}') for n in range(4)]
    answers = await driver.put(jobs)
    assert [answer.enqueue_status for answer in answers] == [EnqueueStatus.INSERTED, *[EnqueueStatus.REPLACED] * 3]
    await driver.wait(MINUTE + SECOND)
    (claim,) = await driver.take(slots=10)
    assert claim.payload == '{"n":3}'


async def test_of_many_callers_at_once_one_job_comes(driver: Driver):
    handles = [await driver.store.connect() for _ in range(4)]
    jobs = [new_job(dedupe_key="k", debounce=MINUTE, payload=f'{{"n":{n}}}') for n in range(20)]
    answers = await asyncio.gather(*(handles[n % 4].enqueue([job]) for n, job in enumerate(jobs)))
    assert len({answer.ref for (answer,) in answers}) == 1
    assert len(await driver.jobs()) == 1


async def test_what_holds_nothing_any_more_is_forgotten_and_what_does_is_not(driver: Driver):
    await throttled(driver)
    waiting = await debounced(driver, 1, "late")
    await driver.wait(MINUTE + SECOND)
    await throttled(driver, "new")
    await driver.prune()
    assert not (await throttled(driver, "new")).is_new
    assert (await debounced(driver, 2, "late")).ref == waiting.ref
    assert (await throttled(driver)).is_new


@needs(Feature.TRANSACTIONS)
async def test_a_key_is_held_only_if_the_callers_transaction_commits(driver: Driver):
    # X4
    job = new_job(dedupe_key="k", throttle=MINUTE)
    caller = driver.store.caller()
    caller.begin()
    await driver.engine.enqueue([job], connection=caller.handle)
    caller.rollback()
    assert (await throttled(driver)).is_new


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
async def test_what_makes_no_sense_is_refused(driver: Driver, fields: dict[str, Any]):
    with pytest.raises(InvalidValue):
        await driver.enqueue(**fields)
    assert await driver.jobs() == ()
