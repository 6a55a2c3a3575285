"""Where a store keeps a record of events only while somebody listens (B7): what is told of the time in between."""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta

import pytest

from onward.engine.values import Retention
from onward.errors import InvalidJob
from onward.events import OLDEST, JobCompleted, JobFailed, JobRetry
from onward.job import JobRef
from onward.lifecycle import Complete, Fail, Release, Retry, Snooze
from tests.conformance.cases import CASE_OF, EngineCase
from tests.conformance.driver import Desk, new_job
from tests.conformance.event_recorder import BOOM, LIFE, fall_silent, hear, live, take

RECORDERS = (CASE_OF["sqlite"], CASE_OF["postgres"])


@pytest.fixture(params=RECORDERS, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> EngineCase:
    """An engine that keeps a record."""
    case: EngineCase = request.param
    return case


async def listen_to_one(desk: Desk) -> str:
    """Listen to the life of a job of another queue, and say where that ended: its end may be told again."""
    async with aclosing(await desk.engine.events(["*"])) as events:
        await live(desk, "heard")
        return (await hear(events, until="completed"))[-1].cursor


async def finish(desk: Desk, count: int) -> list[JobRef]:
    """Have jobs done."""
    await desk.add_many(count)
    claims = await desk.take(slots=count)
    await desk.end_all(claims, Complete())
    return [claim.ref for claim in claims]


async def test_who_comes_back_soon_has_missed_nothing(desk: Desk):  # B7
    cursor = await listen_to_one(desk)
    await live(desk)
    async with aclosing(await desk.engine.events(["default"], after=cursor)) as events:
        assert [event.name for event in await hear(events, until="completed")] == LIFE


async def test_of_the_time_in_which_nobody_listened_the_ends_of_jobs_are_told_and_all_that_comes_then(
    desk: Desk,
):  # B7
    cursor = await listen_to_one(desk)
    await fall_silent(desk)
    (done,) = await finish(desk, 1)
    failed = await desk.add()
    await desk.end(await desk.take_one(), Fail(BOOM))
    cancelled = await desk.add()
    await desk.cancel(cancelled, reason="no longer wanted")
    async with aclosing(await desk.engine.events(["default"], after=cursor)) as events:
        ends = await take(events, 3)
        await live(desk)
        assert [event.name for event in await hear(events, until="completed")] == LIFE
    assert {(event.ref, event.name) for event in ends} == {
        (done, "completed"),
        (failed, "failed"),
        (cancelled, "failed"),
    }
    reasons = {event.ref: (event.failed_reason, event.is_cancelled) for event in ends if event.name == "failed"}  # type: ignore[union-attr]
    assert reasons == {failed: ("ValueError: boom", False), cancelled: ("no longer wanted", True)}


async def test_who_listens_on_while_nothing_was_recorded_is_told_of_the_ends_too(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["*"])) as events:
        await live(desk, "heard")
        await hear(events, until="completed")
        await fall_silent(desk)  # as if it had been stopped for so long that it could not say it was there
        (done,) = await finish(desk, 1)
        async with aclosing(await desk.engine.events(["*"])):
            ref = await desk.add()
            told = await hear(events, until="waiting")
    assert [(event.ref, event.name) for event in told if event.ref.queue == "default"] == [
        (done, "completed"),
        (ref, "waiting"),
    ]


async def test_many_ends_are_told_page_by_page_and_from_any_of_them_on(desk: Desk):  # B7
    cursor = await listen_to_one(desk)
    await fall_silent(desk)
    jobs = await finish(desk, 700)
    async with aclosing(await desk.engine.events(["default"], after=cursor)) as events:
        told = await take(events, len(jobs))
    assert {event.ref for event in told} == set(jobs)
    half = told[349]
    async with aclosing(await desk.engine.events(["default"], after=half.cursor)) as events:
        rest = await take(events, len(jobs) - 350)
    assert [event.ref for event in rest] == [event.ref for event in told[350:]]


async def test_the_oldest_are_the_ends_that_the_history_still_has(desk: Desk):  # B7
    jobs = await finish(desk, 3)
    await desk.advance(2)
    async with aclosing(await desk.engine.events(["*"], after=OLDEST)) as events:
        assert {(event.ref, event.name) for event in await take(events, 3)} == {(ref, "completed") for ref in jobs}
        ref = await desk.add()
        (waiting,) = await take(events, 1)
        assert (waiting.ref, waiting.name) == (ref, "waiting")


async def test_only_so_many_are_kept_and_an_older_cursor_is_refused(desk: Desk):  # B7
    desk.store.keep_events = 20
    engine = await desk.store.connect()
    async with aclosing(await engine.events(["*"])) as events:
        ref = await desk.add()
        (first,) = await hear(events, until="waiting")
        await finish(desk, 40)
        for _ in range(2):  # what has only just ended may be kept for one more look
            await desk.prune()
            await desk.advance(6)
        with pytest.raises(InvalidJob, match="too old"):
            await engine.events(["*"], after=first.cursor)
        with pytest.raises(InvalidJob, match="too old"):  # nor does who listens go on as if it had heard all
            await take(events, 200)
    async with aclosing(await engine.events(["*"], after=OLDEST, types=frozenset({"completed"}))) as events:
        told = await take(events, 40)
    assert ref in {event.ref for event in told}
    assert all(isinstance(event, JobCompleted) for event in told)


async def test_a_cursor_from_before_ends_that_were_pruned_is_refused(desk: Desk):  # B7, P9
    cursor = await listen_to_one(desk)
    await fall_silent(desk)
    await desk.set("default", retention=Retention(completed=timedelta(0)))
    await finish(desk, 1)
    await desk.advance(1)
    assert (await desk.prune()).changed
    with pytest.raises(InvalidJob, match="too old"):
        await desk.engine.events(["*"], after=cursor)


async def test_what_is_recorded_always_is_so_for_everyone_until_it_is_taken_back(desk: Desk):  # B7
    desk.store.events = "all"
    await desk.store.connect()
    cursor = await listen_to_one(desk)
    await fall_silent(desk)
    await live(desk)
    async with aclosing(await desk.engine.events(["default"], after=cursor)) as events:
        assert [event.name for event in await hear(events, until="completed")] == LIFE
    desk.store.events = "listened"
    await desk.store.connect()
    await fall_silent(desk)
    await live(desk, "unheard")
    async with aclosing(await desk.engine.events(["unheard"], after=cursor)) as events:
        assert (await take(events, 1))[0].name == "completed"


async def test_what_is_given_back_waits_again_and_what_is_put_off_is_not_a_retry(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["default"])) as events:
        await desk.add()
        await desk.end(await desk.take_one(), Release())
        await desk.end(await desk.take_one(), Snooze(timedelta(seconds=5)))
        await desk.wait(5)
        await desk.end(await desk.take_one(), Retry(timedelta(seconds=7), BOOM))
        said = await hear(events, until="retry")
    assert [event.name for event in said] == ["waiting", "active"] * 3 + ["retry"]
    retry = said[-1]
    assert isinstance(retry, JobRetry)
    assert (retry.delay, retry.attempts_made) == (pytest.approx(7, abs=0.01), 1)


async def test_a_job_that_is_buried_for_its_crashes_has_stalled_and_failed(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["default"])) as events:
        await desk.add()
        await desk.lose(await desk.take_one())
        await desk.lose(await desk.take_one(alone=True), max_crashes=1)
        said = await hear(events, until="failed")
    assert [event.name for event in said] == [
        *("waiting", "active", "stalled"),
        *("waiting", "active", "stalled"),
        "failed",
    ]


async def test_a_job_that_is_told_to_wait_its_time_is_told_of_when_that_has_come(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["default"])) as events:
        later = await desk.add(delay=timedelta(seconds=5))
        now = await desk.add()
        await desk.wait(5)
        assert [(event.ref, event.name) for event in await take(events, 2)] == [(now, "waiting"), (later, "waiting")]


async def test_a_job_taken_back_has_ended_and_not_gone_wrong(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["default"])) as events:
        ref = await desk.add()
        await desk.cancel(ref, reason="no longer wanted")
        failed = (await hear(events, until="failed"))[-1]
    assert isinstance(failed, JobFailed)
    assert (failed.ref, failed.failed_reason, failed.is_cancelled) == (ref, "no longer wanted", True)


async def test_what_vanishes_with_a_transaction_is_not_told_of(desk: Desk):  # B7, X4
    caller = desk.store.caller()
    async with aclosing(await desk.engine.events(["default"])) as events:
        caller.begin()
        await desk.engine.enqueue([new_job()], within=caller.handle)
        caller.rollback()
        caller.begin()
        (kept,) = await desk.engine.enqueue([new_job()], within=caller.handle)
        caller.commit()
        assert [event.ref for event in await take(events, 1)] == [kept.ref]
