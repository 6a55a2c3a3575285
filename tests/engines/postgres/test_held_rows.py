"""A caller's transaction that stays open does not take a job from the worker that runs it."""

from __future__ import annotations

from typing import Any, Literal

import psycopg
import pytest

from onward.batches.values import NewBatch
from onward.engine.values import Claim
from onward.job import JobRef
from onward.lifecycle import Complete, Fail, JobStatus
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Driver, new_job
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.test_lanes import by_hand


def lock(store: PostgresStore, ref: JobRef) -> None:
    """Lock a job's row, and fail if another transaction has it."""
    by_hand(store, "select from onward.job where id = %s for update nowait", ref.id)


async def beat_past_the_lease(driver: Driver, claim: Claim) -> None:
    for _ in range(4):
        await driver.advance(10)
        assert not (await driver.beat(claim)).lost


async def runs_to_its_end(driver: Driver, claim: Claim) -> None:
    await driver.rescue()
    assert await driver.state(claim.ref) is JobStatus.RUNNING
    assert await driver.end(claim, Complete())


@pytest.mark.parametrize("count", [1, 3])
async def test_a_key_hit_does_not_lock_the_row_of_a_held_job(
    driver: Driver, store: PostgresStore, count: int
):  # O4, O7
    ref = await driver.add(idempotency_key="k")
    claim = await driver.take_one()
    before = (await driver.job(ref)).updated_at
    caller = store.caller()
    caller.begin()
    jobs = [new_job(idempotency_key="k"), *(new_job(idempotency_key=str(n)) for n in range(count - 1))]
    answers = await driver.engine.enqueue(jobs, connection=caller.handle)
    assert answers[0].ref == ref
    lock(store, ref)
    await beat_past_the_lease(driver, claim)
    caller.commit()
    assert (await driver.job(ref)).updated_at == before
    await runs_to_its_end(driver, claim)


async def test_a_key_hit_does_not_wait_for_a_claim_and_leaves_no_lock_behind(
    driver: Driver, store: PostgresStore
):  # O4
    ref = await driver.add(idempotency_key="k")
    await driver.advance(1)
    caller = store.caller()
    caller.begin()
    with psycopg.connect(store.url) as claiming:
        claiming.execute(f"update {store.schema}.job set lease_until = now(), worker_id = 'w', updated_at = now()")
        (answer,) = await driver.engine.enqueue([new_job(idempotency_key="k")], connection=caller.handle)
        assert answer.ref == ref
    lock(store, ref)
    caller.commit()


async def test_a_key_hit_touches_a_job_that_waits(driver: Driver):  # O4
    ref = await driver.add(idempotency_key="k")
    before = (await driver.job(ref)).updated_at
    await driver.advance(1)
    assert (await driver.enqueue(idempotency_key="k")).ref == ref
    assert (await driver.job(ref)).updated_at > before


async def a_running_dependency(driver: Driver, store: PostgresStore) -> tuple[Claim, Any, JobRef]:
    """Name a running job as a dependency, in a transaction that stays open."""
    await driver.engine.save_batch(NewBatch(name="b"), [new_job(batch="b")])
    claim = await driver.take_one()
    caller = store.caller()
    caller.begin()
    (child,) = await driver.engine.enqueue([new_job(batch="b", after=(claim.ref.id,))], connection=caller.handle)
    return claim, caller, child.ref


async def test_naming_a_held_job_as_a_dependency_does_not_lock_its_row(driver: Driver, store: PostgresStore):  # O7
    claim, caller, _ = await a_running_dependency(driver, store)
    lock(store, claim.ref)
    await beat_past_the_lease(driver, claim)
    caller.commit()
    await runs_to_its_end(driver, claim)


@pytest.mark.parametrize("ends", ["before the commit", "after the commit", "after the next step"])
@pytest.mark.parametrize(("outcome", "status"), [(Complete(), JobStatus.PENDING), (Fail(BOOM), JobStatus.CANCELLED)])
async def test_a_job_that_waits_for_a_held_one_learns_how_it_ended(
    driver: Driver,
    store: PostgresStore,
    ends: Literal["before the commit", "after the commit", "after the next step"],
    outcome: Complete | Fail,
    status: JobStatus,
):  # O1
    claim, caller, child = await a_running_dependency(driver, store)
    if ends == "before the commit":
        assert await driver.end(claim, outcome)
        await driver.promote()
        caller.commit()
    else:
        caller.commit()
        if ends == "after the next step":
            await driver.promote()
            assert await driver.state(child) is JobStatus.BLOCKED
        assert await driver.end(claim, outcome)
    for _ in range(2):
        await driver.promote()
    assert await driver.state(child) is status


async def test_a_dependency_that_is_locked_when_its_end_is_asked_for_is_asked_for_again(
    driver: Driver, store: PostgresStore
):  # O1
    claim, caller, child = await a_running_dependency(driver, store)
    caller.commit()
    with psycopg.connect(store.url) as holder:
        holder.execute(f"select from {store.schema}.job where id = %s for update", [claim.ref.id])
        await driver.promote()
    await driver.promote()
    assert await driver.end(claim, Complete())
    await driver.promote()
    assert await driver.state(child) is JobStatus.PENDING


async def test_a_job_whose_worker_still_heartbeats_is_not_rescued_though_its_row_was_locked(
    driver: Driver, store: PostgresStore
):  # O7
    await driver.add()
    claim = await driver.take_one()
    with psycopg.connect(store.url) as holder:
        holder.execute(f"select from {store.schema}.job for update")
        await beat_past_the_lease(driver, claim)
        await driver.rescue()
    await runs_to_its_end(driver, claim)


async def test_a_heartbeat_for_another_claim_of_the_job_does_not_count(driver: Driver, store: PostgresStore):  # O7, X3
    await driver.add()
    claim = await driver.take_one()
    with psycopg.connect(store.url) as holder:
        holder.execute(f"select from {store.schema}.job for update")
        await beat_past_the_lease(driver, claim)
    by_hand(store, "update onward.job set claim_no = claim_no + 1")
    await driver.rescue()
    assert await driver.state(claim.ref) is JobStatus.PENDING


async def test_a_dead_workers_job_is_rescued_soon_after_its_row_is_free(driver: Driver, store: PostgresStore):  # O7
    await driver.add()
    claim = await driver.take_one()
    with psycopg.connect(store.url) as holder:
        holder.execute(f"select from {store.schema}.job for update")
        for _ in range(6):
            await driver.advance(PAST_LEASE)
            await driver.rescue()
    await driver.rescue()
    assert await driver.state(claim.ref) is JobStatus.PENDING
