"""How far events were read is kept in the store: whoever goes on, goes on from there (B7)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.errors import InvalidValue
from onward.lifecycle import Complete
from tests.conformance.cases import needs
from tests.conformance.driver import PAST_LEASE, Driver

pytestmark = needs(Feature.WEBHOOKS)

LEASE = timedelta(seconds=30)


async def test_a_bookmark_stands_where_it_was_first_held_and_goes_on_from_hand_to_hand(driver: Driver):  # B7
    before = await driver.add()
    cursor = await driver.engine.acquire_cursor("crm", "one", lease=LEASE)
    assert cursor is not None
    await driver.end(await driver.take_one(), Complete())
    done = await driver.add()
    await driver.end(await driver.take_one(), Complete())
    await driver.add(queue="other")
    page = await driver.engine.read_events(["default"], cursor=cursor, types=frozenset({"completed"}))
    assert {event.ref for event in page.events} == {before, done}
    assert await driver.engine.acquire_cursor("crm", "another", lease=LEASE) is None
    assert not await driver.engine.commit_cursor("crm", "another", page.cursor)
    assert await driver.engine.commit_cursor("crm", "one", page.cursor)
    await driver.advance(PAST_LEASE)
    assert await driver.engine.acquire_cursor("crm", "another", lease=LEASE) == page.cursor
    assert not await driver.engine.commit_cursor("crm", "one", cursor)
    assert await driver.engine.acquire_cursor("crm", "one", lease=LEASE) is None


async def test_a_page_ends_behind_all_that_was_looked_at_asked_for_or_not(driver: Driver):  # B7
    start = await driver.engine.acquire_cursor("crm", "one", lease=LEASE)
    assert start is not None
    await driver.add_many(5)
    nothing = await driver.engine.read_events(["other"], cursor=start)
    assert nothing.events == ()
    ref = await driver.add(queue="other")
    page = await driver.engine.read_events(["*"], cursor=nothing.cursor)
    assert [event.ref for event in page.events] == [ref]
    assert not page.more
    some = await driver.engine.read_events(["*"], cursor=start, limit=2)
    rest = await driver.engine.read_events(["*"], cursor=some.cursor)
    assert some.more
    assert [len(some.events), len(rest.events)] == [2, 4]
    with pytest.raises(InvalidValue, match="cursor"):
        await driver.engine.read_events(["*"], cursor="yesterday")


async def test_a_bookmark_can_be_let_go_and_be_put_anew(driver: Driver):  # B7
    start = await driver.engine.acquire_cursor("crm", "one", lease=LEASE)
    await driver.add()
    await driver.engine.acquire_cursor("crm", "one", lease=timedelta(0))
    assert await driver.engine.acquire_cursor("crm", "another", lease=LEASE) == start
    now = await driver.engine.acquire_cursor("crm", "another", lease=LEASE, anew=True)
    assert now is not None
    assert (await driver.engine.read_events(["*"], cursor=now)).events == ()
