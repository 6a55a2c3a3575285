"""Behind PgBouncer in transaction mode: every verb works, and nothing depends on a session.

The whole suite can be run so, and CI runs a part of it: see ``make conformance-postgres``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import ClaimRequest, Exchange, Settlement
from onward.engines.postgres.engine import PostgresEngine
from onward.errors import OnwardError
from onward.job import EnqueueStatus
from onward.lifecycle import Complete, Retry
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Driver, new_job, worker_info
from tests.conformance.postgres_case import PostgresStore, other_database
from tests.servers.pgbouncer import pooled_url
from tests.servers.postgres import postgres_url


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresStore]:
    """A schema that is reached through the pooler."""
    store = PostgresStore(tmp_path)
    store.url = pooled_url()
    yield store
    await store.close()


async def test_a_pooler_is_found_out_and_spoken_of(driver: Driver, store: PostgresStore):
    info = await driver.engine.check()
    assert any("pooler" in warning and "listen_url=" in warning for warning in info.warnings)
    assert (await PostgresEngine(postgres_url(), schema=store.schema).check()).warnings == ()


async def test_every_statement_can_go_to_another_session_each_time(driver: Driver):  # X3
    """Often enough that a statement which is prepared would have been."""
    for number in range(12):
        refs = await driver.add_many(4)
        keyed = [new_job(idempotency_key=f"k{number}"), new_job(dedupe_key="d"), new_job(idempotency_key=f"k{number}")]
        answers = await asyncio.gather(*[driver.engine.enqueue(keyed) for _ in range(3)])
        assert sum(answer.enqueue_status is EnqueueStatus.INSERTED for row in answers for answer in row) >= 1
        claims = await driver.take(slots=3, prefetch_claimed=1)
        assert [claim.ref for claim in claims] == refs
        assert not await driver.engine.start(claims[3:])
        await driver.beat(*claims)
        await asyncio.to_thread(driver.engine.heartbeat_sync, worker_info("worker-1"), claims)
        settlements = (Settlement(claims[0], Complete("1")), Settlement(claims[1], Retry(timedelta(0), BOOM)))
        request = ClaimRequest(worker_id="worker-1", queues=("default",), slots=50)
        answer = await driver.engine.exchange(Exchange(settlements=settlements, request=request))
        assert not answer.lost
        await driver.end_all([*claims[2:], *answer.claimed.claims], Complete())
        assert (await driver.promote()).changed == 1
        (again,) = await driver.take(slots=9)
        await driver.end(again, Complete())
        await driver.advance(PAST_LEASE)
        await driver.rescue()
        await driver.prune()
        await driver.set("q", paused=bool(number % 2))
    assert {job.status for job in await driver.jobs()} == {"completed"}


async def test_who_listens_behind_a_pooler_is_told_to_look_all_the_same(driver: Driver):
    async with aclosing(driver.engine.signals(["*"])) as signals, asyncio.timeout(30):  # type: ignore[type-var]
        await anext(signals)
        await driver.add()
        await anext(signals)


async def test_a_direct_address_lets_workers_be_told_at_once(driver: Driver, store: PostgresStore):
    engine = CheckedEngine(PostgresEngine(store.url, schema=store.schema, clock=store.clock, listen_url=postgres_url()))
    await engine.open()
    assert (await engine.check()).warnings == ()
    async with aclosing(engine.signals(["mail/*"])) as signals, asyncio.timeout(30):  # type: ignore[type-var]
        await anext(signals)  # it listens
        await driver.add(queue="other")
        await driver.add(queue="mail/x")
        await anext(signals)
    await engine.close()


async def test_a_direct_address_that_leads_elsewhere_is_refused(driver: Driver, store: PostgresStore):
    engine = PostgresEngine(store.url, schema=store.schema, listen_url=other_database(postgres_url()))
    with pytest.raises(OnwardError, match="the jobs are in"):
        await engine.open()
