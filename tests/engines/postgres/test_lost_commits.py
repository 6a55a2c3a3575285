"""A store that has lost recent commits: what was claimed before is never taken for what is claimed since."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onward.cron import Interval
from onward.engine.restore import RESTORED, WENT_BACK
from onward.engine.values import Claim, ClaimRequest, Exchange, Settlement
from onward.engines.postgres.engine import PostgresEngine
from onward.job import NewJob
from onward.lifecycle import Complete, JobStatus
from onward.schedule import Schedule
from tests.conformance.driver import LEASE, Driver
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


def move(store: PostgresStore, **columns: str) -> None:
    """Have the store be a copy of one that was elsewhere, or on another timeline."""
    with psycopg.connect(store.url) as connection:
        for column, value in columns.items():
            connection.execute(f"update {store.schema}.identity set {column} = %s", [value])


async def test_a_restored_copy_gives_no_job_until_it_is_confirmed(
    driver: Driver, store: PostgresStore, caplog: pytest.LogCaptureFixture
):  # X3
    await driver.add_many(2)
    held = await driver.take_one()
    move(store, home="elsewhere")
    await driver.engine.elect("worker-1", lease=LEASE)  # as every worker does now and then
    assert await driver.take(slots=10) == ()
    exchange = Exchange(
        settlements=(Settlement(held, Complete()),), request=ClaimRequest(worker_id="worker-1", slots=10)
    )
    exchanged = await driver.engine.exchange(exchange)
    assert (exchanged.lost, exchanged.claimed.claims, exchanged.claimed.retry_after) == (frozenset(), (), 1.0)
    assert RESTORED in (await driver.engine.check()).problems
    assert caplog.text.count(RESTORED) == 1
    await driver.engine.confirm_restore()
    assert RESTORED not in (await driver.engine.check()).problems
    assert len(await driver.take(slots=10)) == 1


async def test_a_restored_copy_with_schedules_alone_is_held(driver: Driver, store: PostgresStore):  # X3
    schedule = Schedule(
        name="digest", job=NewJob(type="digest"), trigger=Interval(timedelta(hours=1)), next_at=datetime.now(UTC)
    )
    await driver.engine.save_schedule(schedule)
    move(store, home="elsewhere")
    await driver.engine.elect("worker-1", lease=LEASE)
    assert RESTORED in (await driver.engine.check()).problems
    await driver.add()
    assert await driver.take() == ()


async def test_a_restored_copy_without_jobs_needs_no_confirmation(driver: Driver, store: PostgresStore):  # X3
    move(store, home="elsewhere")
    assert await driver.take() == ()
    await driver.add()
    assert len(await driver.take()) == 1


async def test_a_promoted_server_is_noticed_and_goes_on(
    driver: Driver, store: PostgresStore, caplog: pytest.LogCaptureFixture
):  # X3
    await driver.add()
    move(store, timeline="00000000")
    await driver.engine.elect("worker-1", lease=LEASE)
    assert caplog.text.count(WENT_BACK) == 1
    assert WENT_BACK in (await driver.engine.check()).warnings
    assert len(await driver.take()) == 1
    await driver.engine.confirm_restore()
    assert WENT_BACK not in (await driver.engine.check()).warnings


@pytest.fixture
def restricted(store: PostgresStore) -> Iterator[tuple[str, str]]:
    """A database that gives its cluster and its timeline to nobody but a superuser, and an owner for the schema."""
    name, role = f"{store.schema}_restricted", f"owner_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {role}")
        connection.execute(f"create database {name} owner {role}")
    url = make_conninfo(store.url, dbname=name)
    with psycopg.connect(url, autocommit=True) as connection:
        for function in ("pg_control_system()", "pg_current_wal_lsn()"):
            connection.execute(f"revoke execute on function {function} from public")
    yield url, role
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")
        connection.execute(f"drop role {role}")


async def test_a_server_that_hides_its_cluster_and_timeline_is_worked_on(restricted: tuple[str, str]):  # X3
    url, role = restricted
    as_owner, as_superuser = (
        PostgresEngine(make_conninfo(url, options=options)) for options in (f"-c role={role}", "-c role=none")
    )
    for engine in (as_owner, as_superuser):
        await engine.open()
        try:
            await engine.enqueue([NewJob(type="t")])
            assert await engine.elect("w", lease=LEASE) is not None or engine is as_superuser
            assert len((await engine.claim(ClaimRequest(worker_id="w", slots=1))).claims) == 1
            info = await engine.check()
            assert not {RESTORED, WENT_BACK} & {*info.problems, *info.warnings}
        finally:
            await engine.close()
    with psycopg.connect(url) as connection:
        connection.execute("update onward.identity set home = 'elsewhere'")
    await as_owner.open()
    await as_owner.enqueue([NewJob(type="t")])
    assert (await as_owner.claim(ClaimRequest(worker_id="w", slots=1))).claims == ()
    await as_owner.close()
