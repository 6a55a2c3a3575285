"""Every write of a leader matches its term, also those that the conformance suite cannot tell apart from others."""

from __future__ import annotations

from datetime import timedelta

from onward.clock import moment_of
from onward.engine.values import WorkerInfo
from tests.engines.sqlite.plain import add, states, take

LEASE = timedelta(seconds=30)


async def test_a_deposed_leader_expires_nothing(engine, clock):  # O6
    old = await engine.elect("old", lease=LEASE)
    await add(engine, start_by=moment_of(clock.micros()) + timedelta(seconds=1))
    clock.advance(31)
    new = await engine.elect("new", lease=LEASE)
    assert old is not None
    assert new is not None
    assert (await engine.promote(old)).changed == 0
    assert await states(engine) == {"pending": 1}
    assert (await engine.promote(new)).changed == 1
    assert await states(engine) == {"cancelled": 1}


async def test_a_deposed_leader_gives_back_no_job_and_forgets_no_worker(engine, clock):  # O6
    first = await engine.elect("first", lease=LEASE)
    assert first is not None
    await add(engine)
    await take(engine, lease=timedelta(seconds=1))
    await engine.heartbeat(WorkerInfo(id="silent", hostname="host", pool_size=1, version="1"), [])
    clock.advance(31)
    second = await engine.elect("second", lease=LEASE)
    assert second is not None

    assert (await engine.rescue(first, lease=LEASE, max_crashes=1)).changed == 0
    assert await states(engine) == {"running": 1}
    assert [worker.id for worker in await engine.workers()] == ["silent"]

    assert (await engine.rescue(second, lease=LEASE, max_crashes=1)).changed == 1
    assert await states(engine) == {"pending": 1}
    assert await engine.workers() == []
