"""What happens to jobs, told as it happens, and again from a cursor (B7)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from onward.engine.capabilities import Feature
from onward.errors import InvalidValue
from onward.events import OLDEST, Active, Completed, Failed, Progress, Retry
from onward.lifecycle import Complete, Fail
from tests.conformance.cases import needs
from tests.conformance.driver import PAST_LEASE, Driver
from tests.conformance.event_recorder import BOOM, DEADLINE, LIFE, hear, live

pytestmark = needs(Feature.EVENTS)


async def test_a_life_is_told_in_order_and_in_full(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["default"])) as events:
        await live(driver)
        said = await hear(events, until="completed")
    assert [event.name for event in said] == LIFE
    by_word = {type(event): event for event in said}
    assert {event.ref for event in said} == {said[0].ref}
    assert by_word[Active].worker_id == "worker-1"  # type: ignore[union-attr]
    progress, completed = by_word[Progress], by_word[Completed]
    assert isinstance(progress, Progress)
    assert (progress.progress, progress.message) == (50, "halfway")
    assert isinstance(completed, Completed)
    assert completed.result == {"sent": True}
    assert isinstance(by_word[Retry], Retry)


@needs(Feature.ORGANISATIONS)
async def test_every_event_names_the_task_and_the_organisation(driver: Driver):  # B7, A5
    async with aclosing(await driver.engine.events(["*"])) as events:
        for org_id in ("acme", None):
            await live(driver, type="mail.send", org_id=org_id)
            said = await hear(events, until="completed")
            assert [event.name for event in said] == LIFE
            assert {(event.type, event.org_id) for event in said} == {("mail.send", org_id)}


@needs(Feature.ORGANISATIONS)
async def test_an_end_that_was_not_recorded_names_them_too(driver: Driver):  # B7, A5
    await driver.add(type="mail.send", org_id="acme")
    assert await driver.end(await driver.take_one(), Complete())
    async with aclosing(await driver.engine.events(["*"], cursor=OLDEST)) as events:
        (completed,) = [event for event in await hear(events, until="completed") if event.name == "completed"]
    assert (completed.type, completed.org_id) == ("mail.send", "acme")


async def test_a_failure_has_its_reason_and_its_stack(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["default"])) as events:
        await driver.add()
        assert await driver.end(await driver.take_one(), Fail(BOOM))
        failed = (await hear(events, until="failed"))[-1]
    assert isinstance(failed, Failed)
    assert (failed.error, failed.traceback) == ("ValueError: boom", ("Traceback: boom",))


async def test_a_job_taken_back_from_the_dead_has_stalled_and_not_been_tried_again(driver: Driver):  # B7, B5
    async with aclosing(await driver.engine.events(["default"])) as events:
        await driver.add()
        await driver.take_one()
        await driver.advance(PAST_LEASE)
        await driver.rescue()
        assert "retry" not in [event.name for event in await hear(events, until="stalled")]


async def test_from_a_cursor_comes_exactly_what_came_after_it(driver: Driver):  # B7
    async with aclosing(await driver.engine.events(["*"], cursor=OLDEST)) as events:
        await live(driver, "one")
        await live(driver, "two")
        first, second = await hear(events, until="completed"), await hear(events, until="completed")
    said = first + second
    for place, event in enumerate(said[:-1]):
        async with aclosing(await driver.engine.events(["*"], cursor=event.cursor)) as rest:
            follows = [await asyncio.wait_for(anext(rest), DEADLINE) for _ in said[place + 1 :]]
        assert [(later.ref, later.name) for later in follows] == [
            (later.ref, later.name) for later in said[place + 1 :]
        ]


async def test_what_was_before_is_not_told_unless_asked_for(driver: Driver):  # B7
    await live(driver)
    async with aclosing(await driver.engine.events(["default"])) as events:
        ref = await driver.add()
        (first,) = await hear(events, until="waiting")
    assert first.ref == ref
    async with aclosing(await driver.engine.events(["default"], cursor=OLDEST)) as events:
        assert [event.name for event in await hear(events, until="completed")] == LIFE


async def test_only_the_queues_and_the_kinds_that_were_asked_for_are_told_of(driver: Driver):  # B7
    await driver.make("mail/a", "mail/b", "other")
    words = frozenset({"completed"})
    async with aclosing(await driver.engine.events(["mail/*"], types=words)) as events:
        for queue in ("other", "mail/a", "mail/b"):
            await driver.add(queue=queue)
            assert await driver.end(await driver.take_one(queue), Complete())
        said = [await asyncio.wait_for(anext(events), DEADLINE) for _ in range(2)]
    assert [(event.ref.queue, event.name) for event in said] == [("mail/a", "completed"), ("mail/b", "completed")]


async def test_a_cursor_that_is_none_is_refused(driver: Driver):  # B7
    for cursor in ("", "yesterday", "[1]", '["0-0",{"default":"yesterday"}]'):
        with pytest.raises(InvalidValue, match="cursor"):
            await driver.engine.events(["default"], cursor=cursor)
