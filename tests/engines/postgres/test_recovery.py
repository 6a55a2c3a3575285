"""What stays behind after a clock that went back, a restore or an edit by hand does not stop the store."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from onward.errors import StoreBusy
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
