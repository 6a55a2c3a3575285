"""Where answers get lost: what was said may have been done, and is neither done twice nor waited for without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, ClaimRequest, JobFilter, Settlement
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.urls import open_engine
from onward.errors import InvalidValue, StoreUnavailable
from onward.job import EnqueueStatus
from onward.lifecycle import Complete, JobStatus, Release
from tests.conformance.driver import PAST_LEASE, Driver, new_job, worker_info
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually
from tests.servers.proxy import Proxy

SILENT, HUNG_UP = False, True


@pytest.fixture
async def proxy(store: PostgresStore) -> AsyncIterator[Proxy]:
    known = conninfo_to_dict(store.url)
    socket = Path(unquote(str(known["host"]))) / f".s.PGSQL.{known.get('port', 5432)}"
    async with Proxy.before(socket) as proxy:
        yield proxy


@pytest.fixture
async def far(driver: Driver, store: PostgresStore, proxy: Proxy) -> AsyncIterator[CheckedEngine]:
    """A handle that reaches the store through the proxy, and has little patience."""
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
    bare = PostgresEngine(url, schema=store.schema, clock=store.clock, query_timeout=0.5)
    bare._listener.probe_interval = 0.2
    engine = CheckedEngine(bare)
    await engine.open()
    yield engine
    await engine.close()


@pytest.mark.parametrize("hang_up", [SILENT, HUNG_UP])
async def test_an_outcome_whose_answer_is_lost_stands_and_cannot_be_given_again(
    far: CheckedEngine, driver: Driver, proxy: Proxy, hang_up: bool
):  # X3
    ref = await driver.add()
    (claim,) = (await far.claim(ClaimRequest(worker_id="far", slots=1))).claims
    proxy.deafen_all(hang_up=hang_up)
    with pytest.raises(StoreUnavailable):
        await far.settle([Settlement(claim, Complete('"first"'))])
    job = await driver.job(ref)
    assert (job.status, job.result) == (JobStatus.COMPLETED, "first")
    assert await far.settle([Settlement(claim, Complete('"second"'))]) == {claim.token}
    assert (await driver.job(ref)).result == "first"


@pytest.mark.parametrize("hang_up", [SILENT, HUNG_UP])
async def test_an_enqueue_whose_answer_is_lost_can_be_repeated_with_its_key(
    far: CheckedEngine, driver: Driver, proxy: Proxy, hang_up: bool
):  # O4
    await far.enqueue([new_job()])
    proxy.deafen_all(hang_up=hang_up)
    with pytest.raises(StoreUnavailable):
        await far.enqueue([new_job(idempotency_key="k")])
    (again,) = await far.enqueue([new_job(idempotency_key="k")])
    # Deaf before the commit was sent, or after: either way there is one, and who asks again is told of it.
    assert again.enqueue_status in {EnqueueStatus.INSERTED, EnqueueStatus.SAME_KEY}
    assert len(await driver.jobs()) == 2


async def test_whoever_is_cancelled_while_no_answer_comes_learns_of_that_and_of_nothing_else(
    far: CheckedEngine, proxy: Proxy
):
    """Or a part of a worker would take its end for a store that is away, try again, and never end."""
    await far.workers()
    proxy.deafen_all(hang_up=False)
    asked = asyncio.create_task(far.workers())

    async def is_lost() -> bool | None:
        return proxy.lost_answers > 0 or None

    await eventually(is_lost)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_claim_whose_answer_is_lost_goes_back_with_its_lease_and_costs_nothing(
    far: CheckedEngine, driver: Driver, proxy: Proxy
):  # X3, Counting
    await far.claim(ClaimRequest(worker_id="far", slots=1))  # the first one also asks where the store is
    ref = await driver.add()
    proxy.deafen_all(hang_up=True)
    with pytest.raises(StoreUnavailable):
        await far.claim(ClaimRequest(worker_id="far", slots=1))
    assert (await driver.job(ref)).status is JobStatus.RUNNING
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    job = await driver.job(ref)
    assert (job.status, job.attempts, job.crashes) == (JobStatus.PENDING, 0, 0)


Verb = Callable[[CheckedEngine, Sequence[Claim]], Awaitable[object]]

VERBS: dict[str, Verb] = {
    "enqueue": lambda engine, claims: engine.enqueue([new_job()]),
    "claim": lambda engine, claims: engine.claim(ClaimRequest(worker_id="far", slots=1)),
    "heartbeat": lambda engine, claims: engine.heartbeat(worker_info("far"), claims),
    "workers": lambda engine, claims: engine.workers(),
    "enqueue_sync": lambda engine, claims: asyncio.to_thread(engine.enqueue_sync, [new_job()]),
    "settle_sync": lambda engine, claims: asyncio.to_thread(engine.settle_sync, [Settlement(claims[0], Release())]),
    "heartbeat_sync": lambda engine, claims: asyncio.to_thread(engine.heartbeat_sync, worker_info("far"), claims),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_nobody_waits_for_ever_for_an_answer(far: CheckedEngine, driver: Driver, proxy: Proxy, verb: Verb):
    await driver.add()
    claims = (await far.claim(ClaimRequest(worker_id="far", slots=1))).claims
    await verb(far, claims)
    proxy.deafen_all(hang_up=False)
    with pytest.raises(StoreUnavailable, match="has not answered"):
        await verb(far, claims)
    await verb(far, claims)


async def test_what_may_take_long_is_waited_for(driver: Driver, store: PostgresStore):
    hasty = CheckedEngine(PostgresEngine(store.url, schema=store.schema, clock=store.clock, query_timeout=0.1))
    await hasty.open()
    await driver.add()
    with psycopg.connect(store.url) as blocker, psycopg.connect(store.url, autocommit=True) as admin:
        blocker.execute(f"lock table {store.schema}.job")
        finding = asyncio.ensure_future(hasty.find(JobFilter()))

        async def has_waited() -> bool | None:
            return (
                admin.execute(
                    "select true from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'onward'"
                    " and clock_timestamp() - query_start > interval '0.5 s'"
                ).fetchone()
                is not None
                or None
            )

        await eventually(has_waited)
        blocker.rollback()
        assert len((await finding).items) == 1
    await hasty.close()


async def test_who_listens_finds_out_that_nothing_can_be_heard_any_more(
    far: CheckedEngine, driver: Driver, proxy: Proxy
):
    async with aclosing(far.signals(["*"])) as signals, asyncio.timeout(30):  # type: ignore[type-var]
        await anext(signals)
        proxy.deafen_all(hang_up=False)
        lost = proxy.lost_answers
        ref = await driver.add()
        await anext(signals)
        assert proxy.lost_answers > lost, "nothing was lost: nothing was tried"
    assert [claim.ref for claim in (await far.claim(ClaimRequest(worker_id="far", slots=1))).claims] == [ref]


@pytest.mark.parametrize("told", ["0", "-1", "soon", "1.5", ""])
def test_patience_is_a_number_of_seconds(told: str):
    with pytest.raises(InvalidValue, match="query_timeout"):
        open_engine(f"postgresql://host/db?query_timeout={told}")
