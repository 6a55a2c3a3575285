"""A transaction of somebody's that stays open holds up what it holds, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from onward import App
from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, ClaimRequest, Exchange, Exchanged, Settlement
from onward.engines.postgres import engine as engine_module
from onward.engines.postgres import settle
from onward.engines.postgres.claim_on_notify import ClaimOnNotify
from onward.engines.postgres.engine import PostgresEngine
from onward.errors import StoreBusy, StoreUnavailable
from onward.lifecycle import Cancel, Complete, JobStatus, Outcome, Release, Retry
from tests.conformance.cases import BOOM
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually

DEADLINE = 30
"""Seconds until what must come is given up; never reached where it does."""


@contextmanager
def holding(store: PostgresStore, *claims: Claim) -> Iterator[psycopg.Connection]:
    """Have a transaction stay open that has touched jobs, as one does that cancels them."""
    with psycopg.connect(store.url) as connection:
        for claim in claims:
            connection.execute(f"update {store.schema}.job set updated_at = now() where id = %s", [claim.ref.id])
        yield connection
        connection.rollback()


async def ends(driver: Driver, claim: Claim) -> Exchanged:
    exchange = Exchange(settlements=(Settlement(claim, Complete()),))
    return await asyncio.wait_for(driver.engine.exchange(exchange), DEADLINE)


@pytest.mark.parametrize(
    "outcome", [Complete('"ok"'), Cancel("enough"), Retry(timedelta(seconds=1), BOOM), Release()], ids=repr
)
async def test_outcomes_of_other_jobs_are_stored_and_it_is_said_which_was_not(
    driver: Driver, store: PostgresStore, outcome: Outcome
):  # X3
    await driver.add_many(3)
    claims = await driver.take(slots=3)
    with holding(store, claims[1]):
        settlements = tuple(Settlement(claim, outcome) for claim in claims)
        answer = await asyncio.wait_for(driver.engine.exchange(Exchange(settlements=settlements)), DEADLINE)
        assert (answer.lost, answer.busy) == (frozenset(), {claims[1].token})
        assert [await driver.state(claim.ref) is JobStatus.RUNNING for claim in claims] == [False, True, False]
    again = await driver.engine.exchange(Exchange(settlements=(Settlement(claims[1], outcome),)))
    assert (again.lost, again.busy) == (frozenset(), frozenset())
    assert await driver.state(claims[1].ref) is not JobStatus.RUNNING


async def test_one_that_is_known_to_be_held_is_not_waited_for_again(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    await driver.add()
    held = await driver.take_one()
    with holding(store, held):
        assert (await ends(driver, held)).busy == {held.token}
        monkeypatch.setattr(settle, "exchange", None)  # which waits
        assert (await ends(driver, held)).busy == {held.token}


async def test_beside_a_claim_that_is_on_its_way_it_is_said_as_well(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    class Nothing:
        async def claims(self) -> None:
            return None

    await driver.add()
    held = await driver.take_one()
    monkeypatch.setattr(ClaimOnNotify, "take", lambda *_: Nothing())
    with holding(store, held):
        exchange = Exchange(settlements=(Settlement(held, Complete()),), request=ClaimRequest(worker_id="w", slots=1))
        assert (await driver.engine.exchange(exchange)).busy == {held.token}


async def test_a_job_that_was_cancelled_in_the_end_is_lost(driver: Driver, store: PostgresStore):  # X3
    await driver.add()
    claim = await driver.take_one()
    with psycopg.connect(store.url) as connection:
        connection.execute(f"select {store.schema}.cancel(%s)", [claim.ref.id])
        assert (await ends(driver, claim)).busy == {claim.token}
    answer = await ends(driver, claim)
    assert (answer.lost, answer.busy) == ({claim.token}, frozenset())


async def test_one_that_was_claimed_ahead_is_started_later(driver: Driver, store: PostgresStore):
    await driver.add()
    (prefetch_claimed,) = await driver.take_ahead()
    with holding(store, prefetch_claimed):
        answer = await asyncio.wait_for(driver.engine.exchange(Exchange(starts=(prefetch_claimed,))), DEADLINE)
        assert (answer.lost, answer.busy) == (frozenset(), {prefetch_claimed.token})
    answer = await driver.engine.exchange(Exchange(starts=(prefetch_claimed,)))
    assert (answer.lost, answer.busy) == (frozenset(), frozenset())
    assert await driver.state(prefetch_claimed.ref) is JobStatus.RUNNING


async def test_a_worker_goes_on_with_all_other_jobs(store: PostgresStore):
    """A transaction that locked the row of a running job, and stayed open, stopped the worker that ran it."""
    app = App(engine=PostgresEngine(store.url, schema=store.schema))
    start_after = asyncio.Event()
    ran: list[int] = []

    @app.task(queue="q")
    async def slow() -> None:
        await start_after.wait()

    @app.task(queue="q")
    async def quick(n: int) -> None:
        ran.append(n)

    async with app, app.worker():
        job = await slow.enqueue()

        async def runs() -> bool | None:
            return (await app.jobs.get(job)).status is JobStatus.RUNNING or None

        await eventually(runs)
        async with await psycopg.AsyncConnection.connect(store.url) as connection:
            await connection.execute(f"select from {store.schema}.job where id = %s for update", [job.id])
            start_after.set()
            for n in range(20):
                await quick.enqueue(n=n)

            async def all_ran() -> bool | None:
                return len(ran) == 20 or None

            await eventually(all_ran)
            assert await runs()
        await job.result(timeout=DEADLINE)


# A queue that is told something ---------------------------------------------------------------------------------------


async def at_work(engine: CheckedEngine, stop: asyncio.Event) -> None:
    """Run jobs as quickly as they come: each exchange settles what the one before has brought."""
    held: tuple[Claim, ...] = ()
    while not stop.is_set():
        settlements = tuple(Settlement(claim, Complete()) for claim in held)
        request = ClaimRequest(worker_id="w", queues=("q",), slots=20)
        answer = await engine.exchange(Exchange(settlements=settlements, request=request))
        held = answer.claimed.claims if answer.claimed.claims or answer.busy else ()


async def test_a_busy_queue_is_told_of_a_limit_and_nobody_gets_in_a_circle(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine_module, "_PAUSES", ())  # at the first time
    await driver.add_many(10_000, queue="q")
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(at_work(await store.connect(), stop))
        for concurrency in (10_000, None, 10_000, None):
            info = await asyncio.wait_for(driver.set("q", global_concurrency=concurrency), DEADLINE)
            assert info.settings.global_concurrency == concurrency
            await asyncio.sleep(0.05)
        stop.set()
    with psycopg.connect(store.url, autocommit=True) as connection:
        told = connection.execute("select deadlocks from pg_stat_database where datname = current_database()")
        assert told.fetchone() == (0,)


async def test_who_is_not_let_claim_holds_no_job_meanwhile(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    """Else who tells a queue something, and lets nobody claim, would wait for that job, and it for the queue."""
    await driver.add()
    claim = await driver.take_one()
    engine = PostgresEngine(store.url, schema=store.schema)
    await engine.open()
    gave_up = asyncio.Event()

    async def give_up(*_: object) -> Exchanged:
        gave_up.set()
        return Exchanged()

    monkeypatch.setattr(engine, "_settle_available", give_up)
    with psycopg.connect(store.url) as connection, psycopg.connect(store.url, autocommit=True) as other:
        lock = "lock table onward.claim_gate in exclusive mode"
        connection.execute(engine.schema.insert_schema_name(lock).encode())
        settlements = (Settlement(claim, Complete()),)
        request = ClaimRequest(worker_id="w", slots=1)
        exchanging = asyncio.create_task(engine.exchange(Exchange(settlements=settlements, request=request)))
        while not gave_up.is_set():
            other.execute(f"select from {store.schema}.job for update nowait")
            await asyncio.sleep(0.01)
        await exchanging
    await engine.close()


async def test_a_queue_that_cannot_be_told_lets_everybody_else_go_on(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine_module, "_PAUSES", (0.0,))
    await driver.add(queue="q")
    claim = await driver.take_one("q")
    await driver.add(queue="other")
    with holding(store, claim):
        with pytest.raises(StoreBusy, match="onward doctor"):
            await asyncio.wait_for(driver.set("q", global_concurrency=3), DEADLINE)
        assert len(await asyncio.wait_for(driver.taken("other"), DEADLINE)) == 1
    assert (await driver.set("q", global_concurrency=3)).settings.global_concurrency == 3


# Who loses patience ---------------------------------------------------------------------------------------------------


async def test_a_statement_that_nobody_waits_for_any_more_lets_go_of_its_locks(store: PostgresStore, driver: Driver):
    await driver.add()
    claim = await driver.take_one()
    engine = PostgresEngine(store.url, schema=store.schema, query_timeout=1)
    await engine.open()
    if engine.database.is_pooled:
        await engine.close()
        pytest.skip("a pooler waits in our place")
    with holding(store, claim), psycopg.connect(store.url, autocommit=True) as admin:
        with pytest.raises(StoreUnavailable, match="not answered"):
            await engine.settle([Settlement(claim, Complete())])

        async def nobody_waits() -> bool | None:
            found = admin.execute(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %s",
                [f'%"{store.schema}"%'],
            ).fetchone()
            return found == (0,) or None

        await eventually(nobody_waits)
    await engine.close()
