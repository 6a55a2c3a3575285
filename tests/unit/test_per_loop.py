"""What there is one of for each event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref

from onward.pg.per_loop import PerLoop


class Thing:
    """One of something."""


async def test_a_loop_has_its_own_and_keeps_it():
    things = PerLoop(Thing)
    mine = things.current()

    async def ask() -> Thing:
        return things.current()

    theirs = await asyncio.to_thread(lambda: asyncio.run(ask()))
    assert theirs is not mine
    assert things.current() is mine
    assert things.take_all() == [mine]
    assert things.current() is not mine


def test_what_a_loop_had_goes_with_it():
    things = PerLoop(Thing)

    async def ask() -> weakref.ref[Thing]:
        return weakref.ref(things.current())

    first = asyncio.run(ask())
    asyncio.run(ask())
    gc.collect()
    assert first() is None
