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
    mine = things.here()

    async def ask() -> Thing:
        return things.here()

    theirs = await asyncio.to_thread(lambda: asyncio.run(ask()))
    assert theirs is not mine
    assert things.here() is mine
    assert things.take_all() == [mine]
    assert things.here() is not mine


def test_what_a_loop_had_goes_with_it():
    things = PerLoop(Thing)

    async def ask() -> weakref.ref[Thing]:
        return weakref.ref(things.here())

    first = asyncio.run(ask())
    asyncio.run(ask())
    gc.collect()
    assert first() is None
