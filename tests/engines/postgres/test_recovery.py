"""What stays behind after a clock that went back, a restore or an edit by hand does not stop the store."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from onward.engine.values import Rate
from onward.errors import StoreBusy
from onward.job import JobRef
from onward.lifecycle import Complete, Fail, JobStatus
from tests.conformance.cases import BOOM
from tests.conformance.driver import LEASE, Driver
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.test_lanes import by_hand


async def test_a_leader_that_died_before_the_clock_went_back_is_replaced_at_once(
    driver: Driver, store: PostgresStore
):  # O6
    old = await driver.lead("old", lease=timedelta(hours=1))
    assert await driver.engine.elect("new", lease=LEASE) is None
    store.clock._micros -= 3_600_000_000
    new = await driver.engine.elect("new", lease=LEASE)
    assert new is not None
    assert new.number == old.number + 1
    assert await driver.engine.elect("old", lease=LEASE, current_term=old) is None


async def test_a_leader_that_lives_on_renews_its_term_after_the_clock_went_back(
    driver: Driver, store: PostgresStore
):  # O6
    term = await driver.lead("old", lease=timedelta(hours=1))
    store.clock._micros -= 3_600_000_000
    assert await driver.engine.elect("old", lease=LEASE, current_term=term) is not None
    assert await driver.engine.elect("new", lease=LEASE) is None


async def test_a_stale_concurrency_permit_does_not_fail_a_claim(driver: Driver, store: PostgresStore):  # O3
    await driver.set("q", global_concurrency=5)
    limited, other = await driver.add(queue="q"), await driver.add(queue="r")
    by_hand(store, "insert into onward.concurrency_permit (seq, queue) select seq, 'gone' from onward.job")
    taken = {claim.ref for claim in await driver.take("*", slots=2)}
    assert taken == {limited, other}


async def test_a_replay_gives_up_where_another_transaction_has_the_job_locked(
    driver: Driver, store: PostgresStore
):  # X4
    held = await driver.add()
    await driver.end(await driver.take_one(), Fail(BOOM))
    await driver.add()
    await driver.end(await driver.take_one(), Complete())
    with psycopg.connect(store.url) as holder:
        holder.execute(f"select from {store.schema}.history for update")
        with pytest.raises(StoreBusy):
            await driver.replay(held)
    await driver.replay(held)
    assert await driver.state(held) is JobStatus.PENDING


HOUR = timedelta(hours=1)


def set_clock_back(store: PostgresStore) -> None:
    store.clock._micros -= HOUR // timedelta(microseconds=1)


async def is_rescued_within_its_lease(driver: Driver, ref: JobRef, handle: Driver) -> None:
    """Look as a leader does, every two seconds, and find the job given back at the end of its lease (O7)."""
    for _ in range(14):
        await handle.rescue()
        assert await driver.state(ref) is JobStatus.RUNNING
        await driver.advance(2)
    for _ in range(3):
        await driver.advance(2)
        await handle.rescue()
    assert await driver.state(ref) is JobStatus.PENDING
    assert await driver.engine.workers() == []


@pytest.mark.parametrize("leader", ["lives on", "died too"])
@pytest.mark.parametrize("beats", ["before", "after", "deferred"])
async def test_a_dead_workers_job_is_rescued_after_one_lease_though_the_clock_went_back(
    driver: Driver, store: PostgresStore, leader: str, beats: str
):  # O7
    ref = await driver.add()
    claim = await driver.take_one()
    handle = Driver(store, await store.connect())
    await handle.rescue()
    if beats == "deferred":
        with psycopg.connect(store.url) as holder:
            holder.execute(f"select from {store.schema}.job for update")
            await driver.beat(claim)
    else:
        await driver.beat(claim)
    set_clock_back(store)
    if beats == "after":
        assert not (await driver.beat(claim)).lost
    await is_rescued_within_its_lease(
        driver, ref, handle if leader == "lives on" else Driver(store, await store.connect())
    )


async def test_a_rate_limited_queue_goes_on_after_the_clock_went_back(driver: Driver, store: PostgresStore):  # P6
    rate = Rate(1, timedelta(seconds=10))
    await driver.set("q", rate=rate)
    await driver.add_many(3, queue="q")
    assert len(await driver.take("q", slots=3)) == 1
    set_clock_back(store)
    await driver.rescue()
    assert await driver.take("q", slots=3) == (), "the period before is not over"
    await driver.advance(2 * rate.spacing)
    assert len(await driver.take("q", slots=3)) == 1


async def test_a_live_worker_keeps_its_jobs_when_the_clock_goes_back(driver: Driver, store: PostgresStore):  # O7
    await driver.add()
    claim = await driver.take_one()
    await driver.rescue()
    set_clock_back(store)
    for _ in range(12):
        await driver.rescue()
        await driver.advance(9)
        assert not (await driver.beat(claim)).lost
    assert [worker.id for worker in await driver.engine.workers()] == ["worker-1"]
    assert await driver.end(claim, Complete())
