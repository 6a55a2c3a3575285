"""How far events were read is kept in the store: whoever goes on, goes on from there (B7)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.errors import InvalidJob
from onward.lifecycle import Complete
from tests.conformance.cases import needs
from tests.conformance.driver import PAST_LEASE, Desk

pytestmark = needs(Feature.WEBHOOKS)

LEASE = timedelta(seconds=30)


async def test_a_bookmark_stands_where_it_was_first_held_and_goes_on_from_hand_to_hand(desk: Desk):  # B7
    before = await desk.add()
    cursor = await desk.engine.acquire_cursor("crm", "one", lease=LEASE)
    assert cursor is not None
    await desk.end(await desk.take_one(), Complete())
    done = await desk.add()
    await desk.end(await desk.take_one(), Complete())
    await desk.add(queue="other")
    page = await desk.engine.read_events(["default"], after=cursor, types=frozenset({"completed"}))
    assert {event.ref for event in page.events} == {before, done}
    assert await desk.engine.acquire_cursor("crm", "another", lease=LEASE) is None
    assert not await desk.engine.commit_cursor("crm", "another", page.cursor)
    assert await desk.engine.commit_cursor("crm", "one", page.cursor)
    await desk.advance(PAST_LEASE)
    assert await desk.engine.acquire_cursor("crm", "another", lease=LEASE) == page.cursor
    assert not await desk.engine.commit_cursor("crm", "one", cursor)
    assert await desk.engine.acquire_cursor("crm", "one", lease=LEASE) is None


async def test_a_page_ends_behind_all_that_was_looked_at_asked_for_or_not(desk: Desk):  # B7
    start = await desk.engine.acquire_cursor("crm", "one", lease=LEASE)
    assert start is not None
    await desk.add_many(5)
    nothing = await desk.engine.read_events(["other"], after=start)
    assert nothing.events == ()
    ref = await desk.add(queue="other")
    page = await desk.engine.read_events(["*"], after=nothing.cursor)
    assert [event.ref for event in page.events] == [ref]
    assert not page.more
    some = await desk.engine.read_events(["*"], after=start, limit=2)
    rest = await desk.engine.read_events(["*"], after=some.cursor)
    assert some.more
    assert [len(some.events), len(rest.events)] == [2, 4]
    with pytest.raises(InvalidJob, match="cursor"):
        await desk.engine.read_events(["*"], after="yesterday")


async def test_a_bookmark_can_be_let_go_and_be_put_anew(desk: Desk):  # B7
    start = await desk.engine.acquire_cursor("crm", "one", lease=LEASE)
    await desk.add()
    await desk.engine.acquire_cursor("crm", "one", lease=timedelta(0))
    assert await desk.engine.acquire_cursor("crm", "another", lease=LEASE) == start
    now = await desk.engine.acquire_cursor("crm", "another", lease=LEASE, anew=True)
    assert now is not None
    assert (await desk.engine.read_events(["*"], after=now)).events == ()
