"""Keeping a job by beating, losing it by silence, and what a lost claim can still do: nothing (O7, X3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Settlement
from onward.lifecycle import Bury, Cancel, Complete, Fail, Outcome, Release, Retry, Snooze, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import LEASE, PAST_LEASE, Desk, worker_info

OUTCOMES: list[Outcome] = [
    Complete(),
    Retry(timedelta(0), BOOM),
    Fail(BOOM),
    Bury(BOOM),
    Snooze(timedelta(0)),
    Release(),
    Cancel("late"),
]


async def test_a_job_is_kept_until_its_lease_ends_and_given_back_after(desk: Desk):  # O7
    ref = await desk.add()
    await desk.take_one()
    await desk.advance(LEASE - timedelta(milliseconds=1))
    assert (await desk.rescue()).changed == 0
    assert await desk.state(ref) is State.RUNNING
    await desk.advance(timedelta(milliseconds=2))
    batch = await desk.rescue()
    assert (batch.changed, batch.queues) == (1, {"default"})
    assert await desk.state(ref) is State.PENDING


async def test_the_lease_asked_for_is_the_lease_given(desk: Desk):  # O7
    short = await desk.add()
    await desk.take_one(lease=timedelta(seconds=5))
    long = await desk.add()
    await desk.take_one(lease=timedelta(seconds=60))
    await desk.advance(6)
    await desk.rescue()
    assert (await desk.state(short), await desk.state(long)) == (State.PENDING, State.RUNNING)


async def test_a_beat_extends_the_lease_of_every_job_it_names(desk: Desk):  # O7
    held = await desk.add_many(3)
    forgotten = await desk.add()
    claims = await desk.take(slots=4)
    for _ in range(4):
        await desk.advance(20)
        pulse = await desk.beat(*claims[:3])
        assert (pulse.lost, pulse.cancelled) == (frozenset(), frozenset())
    await desk.rescue()
    assert [await desk.state(ref) for ref in held] == [State.RUNNING] * 3
    assert await desk.state(forgotten) is State.PENDING


async def test_a_beat_extends_by_the_lease_of_the_claim(desk: Desk):  # O7
    ref = await desk.add()
    claim = await desk.take_one(lease=timedelta(seconds=5))
    await desk.advance(4)
    await desk.beat(claim)
    await desk.advance(4)
    await desk.rescue()
    assert await desk.state(ref) is State.RUNNING
    await desk.advance(2)
    await desk.rescue()
    assert await desk.state(ref) is State.PENDING


@needs(Feature.CLAIMED_STATE)
async def test_a_job_claimed_ahead_is_kept_and_given_back_alike(desk: Desk):  # O7
    ref = await desk.add()
    (claim,) = await desk.take_ahead()
    await desk.advance(20)
    await desk.beat(claim)
    await desk.advance(20)
    await desk.rescue()
    assert await desk.state(ref) is State.CLAIMED
    await desk.advance(20)
    await desk.rescue()
    assert await desk.state(ref) is State.PENDING


async def test_a_beat_is_no_change_of_the_job(desk: Desk):
    ref = await desk.add()
    claim = await desk.take_one()
    before = await desk.job(ref)
    await desk.advance(10)
    await desk.beat(claim)
    assert await desk.job(ref) == before


async def test_a_beat_can_come_from_a_thread_of_its_own(desk: Desk):  # O7
    ref = await desk.add()
    claim = await desk.take_one()
    for _ in range(3):
        await desk.advance(20)
        pulse = await asyncio.to_thread(desk.engine.heartbeat_sync, worker_info("worker-1"), [claim])
        assert not pulse.lost
    await desk.rescue()
    assert await desk.state(ref) is State.RUNNING


async def test_a_beat_learns_which_jobs_are_lost(desk: Desk):  # O7
    await desk.add_many(2)
    kept, lost = await desk.take(slots=2)
    await desk.advance(20)
    await desk.beat(kept)
    await desk.advance(20)
    await desk.rescue()
    pulse = await desk.beat(kept, lost)
    assert pulse.lost == {lost.token}
    assert pulse.cancelled == frozenset()


async def test_a_beat_does_not_win_back_what_another_holds(desk: Desk):  # X3
    ref = await desk.add()
    old = await desk.take_one(worker="worker-1")
    await desk.lose(old)
    alone = desk.engine.capabilities.has(Feature.SUSPECTS)
    new = await desk.take_one(worker="worker-2", alone=alone)
    await desk.advance(20)
    assert (await desk.beat(old)).lost == {old.token}
    await desk.advance(20)
    await desk.rescue()
    assert await desk.state(ref) is State.PENDING
    assert not await desk.end(new, Complete())


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__.lower())
async def test_a_lost_claim_cannot_record_an_outcome(desk: Desk, outcome: Outcome):  # X3
    ref = await desk.add()
    lost = await desk.take_one(worker="worker-1")
    await desk.lose(lost)
    given_back = await desk.job(ref)
    assert not await desk.end(lost, outcome)
    assert await desk.job(ref) == given_back

    alone = desk.engine.capabilities.has(Feature.SUSPECTS)
    await desk.take_one(worker="worker-2", alone=alone)
    held = await desk.job(ref)
    assert not await desk.end(lost, outcome)
    assert await desk.job(ref) == held


@needs(Feature.LATE_OUTCOMES)
async def test_a_claim_that_only_ran_out_can_still_end_its_job(desk: Desk):  # X3
    ref = await desk.add()
    claim = await desk.take_one()
    await desk.advance(timedelta(hours=1))
    assert await desk.end(claim, Complete())
    assert await desk.state(ref) is State.COMPLETED
    assert (await desk.rescue()).changed == 0


async def test_an_outcome_is_recorded_once(desk: Desk):  # X3
    ref = await desk.add()
    claim = await desk.take_one()
    assert await desk.end(claim, Complete())
    done = await desk.job(ref)
    for outcome in OUTCOMES:
        assert not await desk.end(claim, outcome)
    assert await desk.job(ref) == done


async def test_a_batch_of_outcomes_loses_only_what_is_lost(desk: Desk):  # X3
    refs = await desk.add_many(3)
    claims = await desk.take(slots=3)
    await desk.cancel(refs[1])
    lost = await desk.engine.settle([Settlement(claim, Complete()) for claim in claims])
    assert lost == {claims[1].token}
    assert [await desk.state(refs[index]) for index in (0, 2)] == [State.COMPLETED] * 2


async def test_code_without_an_event_loop_can_settle(desk: Desk):
    ref = await desk.add()
    claim = await desk.take_one()
    settlement = Settlement(claim, Complete())
    assert await asyncio.to_thread(desk.engine.settle_sync, [settlement]) == frozenset()
    assert (await desk.job(ref)).status is State.COMPLETED
    assert await asyncio.to_thread(desk.engine.settle_sync, [settlement]) == {claim.token}


async def test_rescue_looks_at_leases_only(desk: Desk):  # O7
    await desk.add_many(2)
    of_the_silent, of_the_alive = await desk.take(worker="silent"), await desk.take(worker="alive")
    await desk.beat(*of_the_silent, worker="silent")
    await desk.advance(29)
    # The silent worker's job is kept alive by another's hand, the live worker's is not kept at all.
    await desk.beat(*of_the_silent, worker="alive")
    await desk.advance(5)
    await desk.beat(worker="alive")
    await desk.rescue()
    assert await desk.state(of_the_silent[0].ref) is State.RUNNING
    assert await desk.state(of_the_alive[0].ref) is State.PENDING


async def test_removing_a_worker_touches_no_job(desk: Desk):  # O7
    ref = await desk.add()
    claim = await desk.take_one(worker="gone")
    await desk.beat(claim, worker="gone")
    before = await desk.job(ref)
    await desk.engine.deregister("gone")
    assert await desk.engine.workers() == []
    assert await desk.job(ref) == before
    assert await desk.end(claim, Complete())


async def test_rescue_stops_at_its_limit_says_so_and_goes_on_next_time(desk: Desk):
    await desk.add_many(5)
    await desk.take(slots=5)
    await desk.advance(PAST_LEASE)
    batches = [await desk.rescue(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(2, True), (2, True), (1, False)]


# Workers --------------------------------------------------------------------------------------------------------------


async def test_a_worker_registers_with_its_first_beat_and_stays_on_the_list(desk: Desk):  # O5
    card = worker_info("host-1-abc", hostname="host", pool_size=8, version="2.1", queues=("mail/*",), types=("send",))
    started = desk.now
    await desk.engine.heartbeat(card, [])
    await desk.advance(10)
    await desk.engine.heartbeat(card, [])
    await desk.advance(1)
    (worker,) = await desk.engine.workers()
    assert (worker.id, worker.hostname, worker.pool_size, worker.version) == ("host-1-abc", "host", 8, "2.1")
    assert (worker.queues, worker.types) == (("mail/*",), ("send",))
    assert (worker.started_at, worker.last_heartbeat) == (started, desk.now - timedelta(seconds=1))
    assert (worker.is_leader, worker.leader_until) == (False, None)


async def test_a_silent_worker_is_taken_off_the_list_by_rescue_and_an_alive_one_is_not(desk: Desk):  # O7
    await desk.beat(worker="silent")
    await desk.advance(20)
    await desk.beat(worker="alive")
    await desk.advance(LEASE - timedelta(seconds=20))
    await desk.rescue()
    assert {worker.id for worker in await desk.engine.workers()} == {"silent", "alive"}
    await desk.advance(1)
    await desk.rescue()
    assert {worker.id for worker in await desk.engine.workers()} == {"alive"}


async def test_a_worker_taken_off_the_list_comes_back_with_its_next_beat(desk: Desk):  # O5
    await desk.beat(worker="stopped")
    await desk.advance(PAST_LEASE)
    await desk.rescue()
    assert await desk.engine.workers() == []
    await desk.beat(worker="stopped")
    assert [worker.id for worker in await desk.engine.workers()] == ["stopped"]


async def test_leaving_takes_only_the_one_who_leaves(desk: Desk):  # O5
    await desk.beat(worker="a")
    await desk.beat(worker="b")
    await desk.engine.deregister("a")
    await desk.engine.deregister("never-came")
    assert [worker.id for worker in await desk.engine.workers()] == ["b"]
