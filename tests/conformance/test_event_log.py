"""Where a store keeps a record of events only while somebody listens (B7): what is told of the time in between."""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta

import pytest

from onward.engine.values import Retention
from onward.errors import InvalidValue
from onward.events import OLDEST, Completed, Failed
from onward.events import Retry as RetryEvent
from onward.job import JobRef
from onward.lifecycle import Bury, Complete, Fail, Release, Retry, Snooze
from tests.conformance.cases import CASE_OF, EngineCase
from tests.conformance.driver import Driver, new_job
from tests.conformance.event_recorder import BOOM, LIFE, fall_silent, hear, live, take

RECORDERS = (CASE_OF["sqlite"], CASE_OF["postgres"])


@pytest.fixture(params=RECORDERS, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> EngineCase:
    """An engine that keeps a record."""
    case: EngineCase = request.param
    return case


async def listen_to_one(driver: Driver) -> str:
    """Listen to the life of a job of another queue, and say where that ended: its end may be told again."""
    async with aclosing(await driver.engine.events(["*"])) as events:
        await live(driver, "heard")
        return (await hear(events, until="completed"))[-1].cursor


async def finish(driver: Driver, count: int) -> list[JobRef]:
    """Have jobs done."""
    await driver.add_many(count)
    claims = await driver.take(slots=count)
    await driver.end_all(claims, Complete())
    return [claim.ref for claim in claims]


async def test_who_comes_back_soon_has_missed_nothing(driver: Driver):  # B7
    cursor = await listen_to_one(driver)
    await live(driver)
    async with aclosing(await driver.engine.events(["default"], cursor=cursor)) as events:
        assert [event.name for event in await hear(events, until="completed")] == LIFE


async def test_of_the_time_in_which_nobody_listened_the_ends_of_jobs_are_told_and_all_that_comes_then(
    driver: Driver,
):  # B7
    cursor = await listen_to_one(driver)
    await fall_silent(driver)
    (done,) = await finish(driver, 1)
    failed = await driver.add()
    await driver.end(await driver.take_one(), Fail(BOOM))
    cancelled = await driver.add()
    await driver.cancel(cancelled, reason="no longer wanted")
    async with aclosing(await driver.engine.events(["default"], cursor=cursor)) as events:
        ends = await take(events, 3)
        await live(driver)
        assert [event.name for event in await hear(events, until="completed")] == LIFE
    assert {(event.ref, event.name) for event in ends} == {
        (done, "completed"),
        (failed, "failed"),
        (cancelled, "failed"),
    }
    reasons = {event.ref: (event.error, event.is_cancelled) for event in ends if event.name == "failed"}  # type: ignore[union-attr]
    assert reasons == {failed: ("ValueError: boom", False), cancelled: ("no longer wanted", True)}


async def test_who_listens_on_while_nothing_was_recorded_is_told_of_the_ends_too(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["*"])) as events:
        await live(driver, "heard")
        await hear(events, until="completed")
        await fall_silent(driver)  # as if it had been stopped for so long that it could not say it was there
        (done,) = await finish(driver, 1)
        async with aclosing(await driver.engine.events(["*"])):
            ref = await driver.add()
            told = await hear(events, until="waiting")
    assert [(event.ref, event.name) for event in told if event.ref.queue == "default"] == [
        (done, "completed"),
        (ref, "waiting"),
    ]


async def test_many_ends_are_told_page_by_page_and_from_any_of_them_on(driver: Driver):  # B7
    cursor = await listen_to_one(driver)
    await fall_silent(driver)
    jobs = await finish(driver, 700)
    async with aclosing(await driver.engine.events(["default"], cursor=cursor)) as events:
        told = await take(events, len(jobs))
    assert {event.ref for event in told} == set(jobs)
    half = told[349]
    async with aclosing(await driver.engine.events(["default"], cursor=half.cursor)) as events:
        rest = await take(events, len(jobs) - 350)
    assert [event.ref for event in rest] == [event.ref for event in told[350:]]


async def test_the_oldest_are_the_ends_that_the_history_still_has(driver: Driver):  # B7
    jobs = await finish(driver, 3)
    await driver.advance(2)
    async with aclosing(await driver.engine.events(["*"], cursor=OLDEST)) as events:
        assert {(event.ref, event.name) for event in await take(events, 3)} == {(ref, "completed") for ref in jobs}
        ref = await driver.add()
        (waiting,) = await take(events, 1)
        assert (waiting.ref, waiting.name) == (ref, "waiting")


async def test_only_so_many_are_kept_and_an_older_cursor_is_refused(driver: Driver):  # B7
    driver.store.max_events = 20
    engine = await driver.store.connect()
    async with aclosing(await engine.events(["*"])) as events:
        ref = await driver.add()
        (first,) = await hear(events, until="waiting")
        await finish(driver, 40)
        for _ in range(2):  # what has only just ended may be kept for one more look
            await driver.prune()
            await driver.advance(6)
        with pytest.raises(InvalidValue, match="too old"):
            await engine.events(["*"], cursor=first.cursor)
        with pytest.raises(InvalidValue, match="too old"):  # nor does who listens go on as if it had heard all
            await take(events, 200)
    async with aclosing(await engine.events(["*"], cursor=OLDEST, types=frozenset({"completed"}))) as events:
        told = await take(events, 40)
    assert ref in {event.ref for event in told}
    assert all(isinstance(event, Completed) for event in told)


async def test_a_cursor_from_before_ends_that_were_pruned_is_refused(driver: Driver):  # B7, P9
    cursor = await listen_to_one(driver)
    await fall_silent(driver)
    await driver.set("default", retention=Retention(completed=timedelta(0)))
    await finish(driver, 1)
    await driver.advance(1)
    assert (await driver.prune()).changed
    with pytest.raises(InvalidValue, match="too old"):
        await driver.engine.events(["*"], cursor=cursor)


async def test_what_is_recorded_always_is_so_for_everyone_until_it_is_taken_back(driver: Driver):  # B7
    driver.store.events = "all"
    await driver.store.connect()
    cursor = await listen_to_one(driver)
    await fall_silent(driver)
    await live(driver)
    async with aclosing(await driver.engine.events(["default"], cursor=cursor)) as events:
        assert [event.name for event in await hear(events, until="completed")] == LIFE
    driver.store.events = "on_demand"
    await driver.store.connect()
    await fall_silent(driver)
    await live(driver, "unheard")
    async with aclosing(await driver.engine.events(["unheard"], cursor=cursor)) as events:
        assert (await take(events, 1))[0].name == "completed"


async def test_what_is_given_back_waits_again_and_what_is_put_off_is_not_a_retry(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["default"])) as events:
        await driver.add()
        await driver.end(await driver.take_one(), Release())
        await driver.end(await driver.take_one(), Snooze(timedelta(seconds=5)))
        await driver.wait(5)
        await driver.end(await driver.take_one(), Retry(timedelta(seconds=7), BOOM))
        said = await hear(events, until="retry")
    assert [event.name for event in said] == ["waiting", "active"] * 3 + ["retry"]
    retry = said[-1]
    assert isinstance(retry, RetryEvent)
    assert (retry.delay, retry.attempts) == (pytest.approx(7, abs=0.01), 1)


async def test_a_job_that_is_buried_for_its_crashes_has_stalled_and_failed(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["default"])) as events:
        await driver.add()
        await driver.suspect()
        claim = await driver.take_one(alone=True)
        assert await driver.engine.record_crash(claim)
        await driver.end(claim, Bury(BOOM))
        said = await hear(events, until="failed")
    assert [event.name for event in said] == [
        *("waiting", "active", "stalled"),
        *("waiting", "active", "stalled"),
        *("waiting", "active", "failed"),
    ]


async def test_a_job_that_is_told_to_wait_its_time_is_told_of_when_that_has_come(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["default"])) as events:
        later = await driver.add(delay=timedelta(seconds=5))
        now = await driver.add()
        await driver.wait(5)
        assert [(event.ref, event.name) for event in await take(events, 2)] == [(now, "waiting"), (later, "waiting")]


async def test_a_job_taken_back_has_ended_and_not_gone_wrong(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["default"])) as events:
        ref = await driver.add()
        await driver.cancel(ref, reason="no longer wanted")
        failed = (await hear(events, until="failed"))[-1]
    assert isinstance(failed, Failed)
    assert (failed.ref, failed.error, failed.is_cancelled) == (ref, "no longer wanted", True)


async def test_what_vanishes_with_a_transaction_is_not_told_of(driver: Driver):  # B7, X4
    caller = driver.store.caller()
    async with aclosing(await driver.engine.events(["default"])) as events:
        caller.begin()
        await driver.engine.enqueue([new_job()], connection=caller.handle)
        caller.rollback()
        caller.begin()
        (kept,) = await driver.engine.enqueue([new_job()], connection=caller.handle)
        caller.commit()
        assert [event.ref for event in await take(events, 1)] == [kept.ref]
