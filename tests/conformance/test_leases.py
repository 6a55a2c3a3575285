"""Keeping a job by beating, losing it by silence, and what a lost claim can still do: nothing (O7, X3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Settlement
from onward.lifecycle import Bury, Cancel, Complete, Fail, JobStatus, Outcome, Release, Retry, Snooze
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import LEASE, PAST_LEASE, Driver, worker_info

OUTCOMES: list[Outcome] = [
    Complete(),
    Retry(timedelta(0), BOOM),
    Fail(BOOM),
    Bury(BOOM),
    Snooze(timedelta(0)),
    Release(),
    Cancel("late"),
]


async def test_a_job_is_kept_until_its_lease_ends_and_given_back_after(driver: Driver):  # O7
    ref = await driver.add()
    await driver.take_one()
    await driver.advance(LEASE - timedelta(milliseconds=1))
    assert (await driver.rescue()).changed == 0
    assert await driver.state(ref) is JobStatus.RUNNING
    await driver.advance(timedelta(milliseconds=2))
    batch = await driver.rescue()
    assert (batch.changed, batch.queues) == (1, {"default"})
    assert await driver.state(ref) is JobStatus.PENDING


async def test_the_lease_asked_for_is_the_lease_given(driver: Driver):  # O7
    short = await driver.add()
    await driver.take_one(lease=timedelta(seconds=5))
    long = await driver.add()
    await driver.take_one(lease=timedelta(seconds=60))
    await driver.advance(6)
    await driver.rescue()
    assert (await driver.state(short), await driver.state(long)) == (JobStatus.PENDING, JobStatus.RUNNING)


async def test_a_beat_extends_the_lease_of_every_job_it_names(driver: Driver):  # O7
    held = await driver.add_many(3)
    forgotten = await driver.add()
    claims = await driver.take(slots=4)
    for _ in range(4):
        await driver.advance(20)
        reply = await driver.beat(*claims[:3])
        assert (reply.lost, reply.cancelled) == (frozenset(), frozenset())
    await driver.rescue()
    assert [await driver.state(ref) for ref in held] == [JobStatus.RUNNING] * 3
    assert await driver.state(forgotten) is JobStatus.PENDING


async def test_a_beat_extends_by_the_lease_of_the_claim(driver: Driver):  # O7
    ref = await driver.add()
    claim = await driver.take_one(lease=timedelta(seconds=5))
    await driver.advance(4)
    await driver.beat(claim)
    await driver.advance(4)
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.RUNNING
    await driver.advance(2)
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.PENDING


@needs(Feature.CLAIMED_STATE)
async def test_a_job_claimed_ahead_is_kept_and_given_back_alike(driver: Driver):  # O7
    ref = await driver.add()
    (claim,) = await driver.take_ahead()
    await driver.advance(20)
    await driver.beat(claim)
    await driver.advance(20)
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.CLAIMED
    await driver.advance(20)
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.PENDING


async def test_a_beat_is_no_change_of_the_job(driver: Driver):
    ref = await driver.add()
    claim = await driver.take_one()
    before = await driver.job(ref)
    await driver.advance(10)
    await driver.beat(claim)
    assert await driver.job(ref) == before


async def test_a_beat_can_come_from_a_thread_of_its_own(driver: Driver):  # O7
    ref = await driver.add()
    claim = await driver.take_one()
    for _ in range(3):
        await driver.advance(20)
        reply = await asyncio.to_thread(driver.engine.heartbeat_sync, worker_info("worker-1"), [claim])
        assert not reply.lost
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.RUNNING


async def test_a_beat_learns_which_jobs_are_lost(driver: Driver):  # O7
    await driver.add_many(2)
    kept, lost = await driver.take(slots=2)
    await driver.advance(20)
    await driver.beat(kept)
    await driver.advance(20)
    await driver.rescue()
    reply = await driver.beat(kept, lost)
    assert reply.lost == {lost.token}
    assert reply.cancelled == frozenset()


async def test_a_beat_does_not_win_back_what_another_holds(driver: Driver):  # X3
    ref = await driver.add()
    old = await driver.take_one(worker="worker-1")
    await driver.lose(old)
    new = await driver.take_one(worker="worker-2")
    await driver.advance(20)
    assert (await driver.beat(old)).lost == {old.token}
    await driver.advance(20)
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.PENDING
    assert not await driver.end(new, Complete())


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__.lower())
async def test_a_lost_claim_cannot_record_an_outcome(driver: Driver, outcome: Outcome):  # X3
    ref = await driver.add()
    lost = await driver.take_one(worker="worker-1")
    await driver.lose(lost)
    given_back = await driver.job(ref)
    assert not await driver.end(lost, outcome)
    assert await driver.job(ref) == given_back

    await driver.take_one(worker="worker-2")
    held = await driver.job(ref)
    assert not await driver.end(lost, outcome)
    assert await driver.job(ref) == held


@needs(Feature.LATE_OUTCOMES)
async def test_a_claim_that_only_ran_out_can_still_end_its_job(driver: Driver):  # X3
    ref = await driver.add()
    claim = await driver.take_one()
    await driver.advance(timedelta(hours=1))
    assert await driver.end(claim, Complete())
    assert await driver.state(ref) is JobStatus.COMPLETED
    assert (await driver.rescue()).changed == 0


async def test_an_outcome_is_recorded_once(driver: Driver):  # X3
    ref = await driver.add()
    claim = await driver.take_one()
    assert await driver.end(claim, Complete())
    done = await driver.job(ref)
    for outcome in OUTCOMES:
        assert not await driver.end(claim, outcome)
    assert await driver.job(ref) == done


async def test_a_batch_of_outcomes_loses_only_what_is_lost(driver: Driver):  # X3
    refs = await driver.add_many(3)
    claims = await driver.take(slots=3)
    await driver.cancel(refs[1])
    lost = await driver.engine.settle([Settlement(claim, Complete()) for claim in claims])
    assert lost == {claims[1].token}
    assert [await driver.state(refs[index]) for index in (0, 2)] == [JobStatus.COMPLETED] * 2


async def test_code_without_an_event_loop_can_settle(driver: Driver):
    ref = await driver.add()
    claim = await driver.take_one()
    settlement = Settlement(claim, Complete())
    assert await asyncio.to_thread(driver.engine.settle_sync, [settlement]) == frozenset()
    assert (await driver.job(ref)).status is JobStatus.COMPLETED
    assert await asyncio.to_thread(driver.engine.settle_sync, [settlement]) == {claim.token}


async def test_rescue_looks_at_leases_only(driver: Driver):  # O7
    await driver.add_many(2)
    of_the_silent, of_the_alive = await driver.take(worker="silent"), await driver.take(worker="alive")
    await driver.beat(*of_the_silent, worker="silent")
    await driver.advance(29)
    # The silent worker's job is kept alive by another's hand, the live worker's is not kept at all.
    await driver.beat(*of_the_silent, worker="alive")
    await driver.advance(5)
    await driver.beat(worker="alive")
    await driver.rescue()
    assert await driver.state(of_the_silent[0].ref) is JobStatus.RUNNING
    assert await driver.state(of_the_alive[0].ref) is JobStatus.PENDING


async def test_removing_a_worker_touches_no_job(driver: Driver):  # O7
    ref = await driver.add()
    claim = await driver.take_one(worker="gone")
    await driver.beat(claim, worker="gone")
    before = await driver.job(ref)
    await driver.engine.deregister("gone")
    assert await driver.engine.workers() == []
    assert await driver.job(ref) == before
    assert await driver.end(claim, Complete())


async def test_rescue_stops_at_its_limit_says_so_and_goes_on_next_time(driver: Driver):
    await driver.add_many(5)
    await driver.take(slots=5)
    await driver.advance(PAST_LEASE)
    batches = [await driver.rescue(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(2, True), (2, True), (1, False)]


# Workers --------------------------------------------------------------------------------------------------------------


async def test_a_worker_registers_with_its_first_beat_and_stays_on_the_list(driver: Driver):  # O5
    card = worker_info("host-1-abc", hostname="host", pool_size=8, version="2.1", queues=("mail/*",), types=("send",))
    started = driver.now
    await driver.engine.heartbeat(card, [])
    await driver.advance(10)
    await driver.engine.heartbeat(card, [])
    await driver.advance(1)
    (worker,) = await driver.engine.workers()
    assert (worker.id, worker.hostname, worker.pool_size, worker.version) == ("host-1-abc", "host", 8, "2.1")
    assert (worker.queues, worker.types) == (("mail/*",), ("send",))
    assert (worker.started_at, worker.last_heartbeat) == (started, driver.now - timedelta(seconds=1))
    assert (worker.is_leader, worker.leader_until) == (False, None)


async def test_a_silent_worker_is_taken_off_the_list_by_rescue_and_an_alive_one_is_not(driver: Driver):  # O7
    await driver.beat(worker="silent")
    await driver.advance(20)
    await driver.beat(worker="alive")
    await driver.advance(LEASE - timedelta(seconds=20))
    await driver.rescue()
    assert {worker.id for worker in await driver.engine.workers()} == {"silent", "alive"}
    await driver.advance(1)
    await driver.rescue()
    assert {worker.id for worker in await driver.engine.workers()} == {"alive"}


async def test_a_worker_taken_off_the_list_comes_back_with_its_next_beat(driver: Driver):  # O5
    await driver.beat(worker="stopped")
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    assert await driver.engine.workers() == []
    await driver.beat(worker="stopped")
    assert [worker.id for worker in await driver.engine.workers()] == ["stopped"]


async def test_leaving_takes_only_the_one_who_leaves(driver: Driver):  # O5
    await driver.beat(worker="a")
    await driver.beat(worker="b")
    await driver.engine.deregister("a")
    await driver.engine.deregister("never-came")
    assert [worker.id for worker in await driver.engine.workers()] == ["b"]
