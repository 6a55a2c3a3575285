"""A store that has lost recent commits: what was claimed before is never taken for what is claimed since."""

from __future__ import annotations

import psycopg

from onward.engine.values import Claim
from onward.lifecycle import Complete, JobStatus
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore


def forget_jobs(store: PostgresStore) -> None:
    """Set the store back to before its first job, as a promoted asynchronous standby may be."""
    with psycopg.connect(store.url) as connection:
        connection.execute(f"truncate {store.schema}.job, {store.schema}.lease_batch")
        connection.execute(f"alter sequence {store.schema}.job_seq restart")


def forget_claims(store: PostgresStore) -> None:
    """Set the store back to before its first claim."""
    with psycopg.connect(store.url) as connection:
        connection.execute(f"truncate {store.schema}.lease_batch")
        connection.execute(
            f"update {store.schema}.job set claim_no = 0, attempts = 0, worker_id = null, lease = null,"
            " lease_until = null, claimed_at = null, started_at = null"
        )


async def refused(driver: Driver, old: Claim, new: Claim) -> None:
    """Refuse every write of an old claim, and accept those of the new one."""
    assert old.token != new.token
    assert not await driver.end(old, Complete('"of another job"'))
    assert not await driver.engine.report(old, progress=50, message=None, lines=["of another job"])
    assert (await driver.beat(old, new)).lost == {old.token}
    assert (await driver.job(new.ref)).status is JobStatus.RUNNING
    assert await driver.end(new, Complete('"its own"'))
    assert (await driver.job(new.ref)).result == "its own"


async def test_an_outcome_never_reaches_a_job_that_has_the_number_of_a_lost_one(
    driver: Driver, store: PostgresStore
):  # X3
    await driver.add()
    old = await driver.take_one()
    forget_jobs(store)
    await driver.add()
    new = await driver.take_one()
    assert new.token[0] == old.token[0]
    await refused(driver, old, new)


async def test_a_claim_that_the_store_forgot_does_not_pass_for_the_next(driver: Driver, store: PostgresStore):  # X3
    ref = await driver.add()
    old = await driver.take_one()
    forget_claims(store)
    new = await driver.take_one()
    assert new.ref == ref
    await refused(driver, old, new)


async def test_a_start_of_a_forgotten_claim_is_refused(driver: Driver, store: PostgresStore):  # X3
    await driver.add()
    (old,) = await driver.take_ahead()
    forget_jobs(store)
    await driver.add()
    (new,) = await driver.take_ahead()
    assert await driver.engine.start([old, new]) == {old.token}


async def test_a_claim_by_every_path_has_a_number_of_its_own(driver: Driver):  # X3
    for queue in ("a", "b"):
        await driver.add_many(3, queue=queue)
    tour = await driver.take("*", slots=2)
    claims = [*tour, *await driver.take("*", slots=4)]
    assert len({claim.token for claim in claims}) == 6
    assert len({claim.token[1] for claim in claims}) == 2
    assert all(int(claim.token[1]) > 1 << 60 for claim in claims)  # the time is in it
