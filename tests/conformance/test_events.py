"""What happens to jobs, told as it happens, and again from a cursor (B7)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from onward.engine.capabilities import Feature
from onward.errors import InvalidJob
from onward.events import OLDEST, JobActive, JobCompleted, JobFailed, JobProgress, JobRetry
from onward.lifecycle import Complete, Fail
from tests.conformance.cases import needs
from tests.conformance.driver import PAST_LEASE, Desk
from tests.conformance.event_recorder import BOOM, DEADLINE, LIFE, hear, live

pytestmark = needs(Feature.EVENTS)


async def test_a_life_is_told_in_order_and_in_full(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["default"])) as events:
        await live(desk)
        said = await hear(events, until="completed")
    assert [event.name for event in said] == LIFE
    by_word = {type(event): event for event in said}
    assert {event.ref for event in said} == {said[0].ref}
    assert by_word[JobActive].worker_id == "worker-1"  # type: ignore[union-attr]
    progress, completed = by_word[JobProgress], by_word[JobCompleted]
    assert isinstance(progress, JobProgress)
    assert (progress.value, progress.message) == (50, "halfway")
    assert isinstance(completed, JobCompleted)
    assert completed.returnvalue == {"sent": True}
    assert isinstance(by_word[JobRetry], JobRetry)


async def test_a_failure_has_its_reason_and_its_stack(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["default"])) as events:
        await desk.add()
        assert await desk.end(await desk.take_one(), Fail(BOOM))
        failed = (await hear(events, until="failed"))[-1]
    assert isinstance(failed, JobFailed)
    assert (failed.failed_reason, failed.stacktrace) == ("ValueError: boom", ("Traceback: boom",))


async def test_a_job_taken_back_from_the_dead_has_stalled_and_not_been_tried_again(desk: Desk):  # B7, B5
    async with aclosing(await desk.engine.events(["default"])) as events:
        await desk.add()
        await desk.take_one()
        await desk.advance(PAST_LEASE)
        await desk.rescue()
        assert "retry" not in [event.name for event in await hear(events, until="stalled")]


async def test_from_a_cursor_comes_exactly_what_came_after_it(desk: Desk):  # B7
    async with aclosing(await desk.engine.events(["*"], after=OLDEST)) as events:
        await live(desk, "one")
        await live(desk, "two")
        first, second = await hear(events, until="completed"), await hear(events, until="completed")
    said = first + second
    for place, event in enumerate(said[:-1]):
        async with aclosing(await desk.engine.events(["*"], after=event.cursor)) as rest:
            follows = [await asyncio.wait_for(anext(rest), DEADLINE) for _ in said[place + 1 :]]
        assert [(later.ref, later.name) for later in follows] == [
            (later.ref, later.name) for later in said[place + 1 :]
        ]


async def test_what_was_before_is_not_told_unless_asked_for(desk: Desk):  # B7
    await live(desk)
    async with aclosing(await desk.engine.events(["default"])) as events:
        ref = await desk.add()
        (first,) = await hear(events, until="waiting")
    assert first.ref == ref
    async with aclosing(await desk.engine.events(["default"], after=OLDEST)) as events:
        assert [event.name for event in await hear(events, until="completed")] == LIFE


async def test_only_the_queues_and_the_kinds_that_were_asked_for_are_told_of(desk: Desk):  # B7
    await desk.make("mail/a", "mail/b", "other")
    words = frozenset({"completed"})
    async with aclosing(await desk.engine.events(["mail/*"], types=words)) as events:
        for queue in ("other", "mail/a", "mail/b"):
            await desk.add(queue=queue)
            assert await desk.end(await desk.take_one(queue), Complete())
        said = [await asyncio.wait_for(anext(events), DEADLINE) for _ in range(2)]
    assert [(event.ref.queue, event.name) for event in said] == [("mail/a", "completed"), ("mail/b", "completed")]


async def test_a_cursor_that_is_none_is_refused(desk: Desk):  # B7
    for cursor in ("", "yesterday", "[1]", '["0-0",{"default":"yesterday"}]'):
        with pytest.raises(InvalidJob, match="cursor"):
            await desk.engine.events(["default"], after=cursor)
