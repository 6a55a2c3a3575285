"""A clock that is set back does not stop the queue until the old time comes again."""

from __future__ import annotations

from datetime import timedelta

from onward.clock import ManualClock
from onward.engine.values import QueueChange, Rate, WorkerInfo
from tests.engines.sqlite.plain import add, states, take

LEASE = timedelta(seconds=30)


def set_back(clock: ManualClock, by: timedelta = timedelta(minutes=10)) -> None:
    """Set a clock back, as an administrator or a time server does."""
    clock._micros -= by // timedelta(microseconds=1)


async def test_a_leader_that_died_before_the_clock_went_back_is_replaced_at_once(engine, clock):  # O6
    dead = await engine.elect("dead", lease=LEASE)
    set_back(clock)
    assert dead is not None
    next_term = await engine.elect("next", lease=LEASE)
    assert next_term is not None
    assert next_term.number == dead.number + 1
    assert await engine.elect("dead", lease=LEASE, current_term=dead) is None


async def test_a_leader_that_lives_on_renews_its_term_after_the_clock_went_back(engine, clock):  # O6
    term = await engine.elect("alive", lease=LEASE)
    set_back(clock)
    renewed = await engine.elect("alive", lease=LEASE, current_term=term)
    assert renewed is not None
    assert await engine.elect("other", lease=timedelta(seconds=1)) is None
    clock.advance(31)
    assert await engine.elect("other", lease=LEASE) is not None, "the term ends by the new time"


async def test_a_shorter_lease_of_a_candidate_does_not_end_a_term(engine, clock):  # O6
    assert await engine.elect("alive", lease=timedelta(minutes=5)) is not None
    assert await engine.elect("other", lease=timedelta(seconds=1)) is None


async def test_jobs_of_a_dead_worker_are_rescued_one_lease_after_the_clock_went_back(engine, clock):  # O7
    await add(engine, 2)
    (lost, kept) = await take(engine, slots=2, lease=LEASE)
    set_back(clock)
    worker = WorkerInfo(id="worker-1", hostname="host", pool_size=1, version="1")
    term = await engine.elect("leader", lease=timedelta(hours=1))
    assert term is not None
    assert (await engine.rescue(term, lease=LEASE, max_crashes=3)).changed == 0, "its worker may live"
    clock.advance(20)
    assert (await engine.heartbeat(worker, [kept])).lost == frozenset()
    clock.advance(11)
    assert (await engine.rescue(term, lease=LEASE, max_crashes=3)).changed == 1
    assert (await engine.heartbeat(worker, [lost, kept])).lost == {lost.token}
    assert await states(engine) == {"pending": 1, "running": 1}


async def test_a_dead_worker_is_forgotten_one_lease_after_the_clock_went_back(engine, clock):  # O7
    await engine.heartbeat(WorkerInfo(id="dead", hostname="host", pool_size=1, version="1"), [])
    set_back(clock)
    term = await engine.elect("leader", lease=timedelta(hours=1))
    assert term is not None
    await engine.rescue(term, lease=LEASE, max_crashes=3)
    assert [worker.id for worker in await engine.workers()] == ["dead"]
    clock.advance(31)
    await engine.rescue(term, lease=LEASE, max_crashes=3)
    assert await engine.workers() == []


async def test_a_deposed_leader_moves_no_lease_after_the_clock_went_back(engine, clock, bare):  # O6
    await add(engine)
    await take(engine, lease=LEASE)
    old = await engine.elect("old", lease=LEASE)
    set_back(clock)
    assert await engine.elect("new", lease=LEASE) is not None
    assert old is not None
    before = bare.execute("select lease_until from onward_job").fetchone()
    await engine.rescue(old, lease=LEASE, max_crashes=3)
    assert bare.execute("select lease_until from onward_job").fetchone() == before


async def test_a_rate_limited_queue_goes_on_after_the_clock_went_back(engine, clock):  # P6
    rate = Rate(1, timedelta(seconds=10))
    await engine.configure("default", QueueChange(rate=rate))
    await add(engine, 3)
    assert len(await take(engine)) == 1
    assert await take(engine) == ()
    set_back(clock)
    term = await engine.elect("leader", lease=timedelta(hours=1))
    assert term is not None
    await engine.rescue(term, lease=LEASE, max_crashes=3)
    assert await take(engine) == (), "the period before is not over"
    clock.advance(2 * rate.spacing)
    assert len(await take(engine)) == 1


async def test_an_event_cursor_of_a_dead_holder_is_acquired_after_the_clock_went_back(engine, clock):
    assert await engine.acquire_cursor("hook", "dead", lease=LEASE) is not None
    set_back(clock)
    assert await engine.acquire_cursor("hook", "other", lease=timedelta(0)) is None, "it only lets go of its own"
    assert await engine.acquire_cursor("hook", "next", lease=LEASE) is not None
    assert await engine.acquire_cursor("hook", "other", lease=LEASE) is None


async def test_a_job_that_was_ready_before_the_clock_went_back_has_not_waited_less_than_no_time(engine, clock):
    await add(engine)
    set_back(clock)
    (claim,) = await take(engine)
    assert claim.wait_seconds == 0
