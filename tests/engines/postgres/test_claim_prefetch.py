"""An idle worker's claim leaves with the news of a job: the worker takes what it brings, or it goes back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import psycopg
import pytest
from msgspec.structs import replace

from onward.engine.values import ClaimRequest, Exchange, Exchanged, QueueChange, Settlement
from onward.engines.postgres import claim_prefetch, claims
from onward.engines.postgres.engine import PostgresEngine
from onward.errors import StoreUnavailable
from onward.job import JobRef
from onward.lifecycle import Complete, State
from tests.conformance.driver import new_job
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually
from tests.servers.postgres import postgres_url

LONG = 3600.0
REQUEST = ClaimRequest(worker_id="w", slots=3)
ASKS = Exchange(request=REQUEST)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a look at all queues is quick and lasts, and what was brought is kept."""
    monkeypatch.setattr(claims, "_FULL_SCAN_INTERVAL", LONG)
    monkeypatch.setattr(claims, "_MAX_FULL_SCAN_INTERVAL", LONG)
    monkeypatch.setattr(claims, "_SLOW_FULL_SCAN", math.inf)
    monkeypatch.setattr(claim_prefetch, "_KEEP_SECONDS", LONG)


@pytest.fixture
async def giver(store: PostgresStore) -> AsyncIterator[PostgresEngine]:
    """Who adds jobs, and tells nobody: the tests do, when they want to."""
    giver = PostgresEngine(store.url, schema=store.schema, notify=False)
    await giver.open()
    yield giver
    await giver.close()


@pytest.fixture
async def office(store: PostgresStore, giver: PostgresEngine) -> AsyncIterator[PostgresEngine]:
    """Where a worker listens."""
    office = PostgresEngine(postgres_url(), schema=store.schema, answer_within=1)
    await office.open()

    async def listen() -> None:
        async for _ in office.signals(("*",)):
            pass

    listening = asyncio.create_task(listen())
    await until(lambda: office._listener.is_listening)
    yield office
    listening.cancel()
    await office.close()


async def add(giver: PostgresEngine, count: int = 1, *, queue: str = "q") -> list[JobRef]:
    return [one.ref for one in await giver.enqueue([new_job(queue=queue)] * count)]


def tell(store: PostgresStore, notice: str = "q") -> None:
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute("select pg_notify(%s, %s)", [store.schema, notice])


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens on this loop."""

    async def ask() -> bool | None:
        return is_so() or None

    await eventually(ask)


async def has(giver: PostgresEngine, ref: JobRef, state: State) -> None:
    """Wait until a job is in a state."""

    async def ask() -> bool | None:
        job = await giver.get(ref)
        return (job is not None and job.status is state) or None

    await eventually(ask)


async def goes_back(store: PostgresStore, ref: JobRef) -> None:
    """Wait until a job that was taken is so no more."""
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        is_back = f"select 1 from {store.schema}.job where id = %s and claim_no = 1 and lease_until is null"
        await until(lambda: bool(connection.execute(is_back, [ref.id]).fetchall()))


async def stands(office: PostgresEngine, exchange: Exchange = ASKS, *, found: int = 0) -> Exchanged:
    """Have a claim stand."""
    exchanged = await office.exchange(exchange)
    assert len(exchanged.claimed.claims) == found
    assert office._claim_prefetch.here()._armed
    return exchanged


async def received(store: PostgresStore, office: PostgresEngine, giver: PostgresEngine) -> JobRef:
    """Have a job brought."""
    await stands(office)
    (ref,) = await add(giver)
    tell(store)
    await has(giver, ref, State.RUNNING)
    return ref


def refs(exchanged: Exchanged) -> list[JobRef]:
    return [claim.ref for claim in exchanged.claimed.claims]


@asynccontextmanager
async def on_its_way(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
) -> AsyncIterator[tuple[JobRef, psycopg.Connection]]:
    """Have a claim sent for a job, and no answer to it until a lock's connection rolls back or the block ends."""
    await stands(office)
    (ref,) = await add(giver)
    with psycopg.connect(postgres_url()) as lock:
        lock.execute(f"lock table {store.schema}.lease_batch in access exclusive mode")
        tell(store)
        await until(lambda: bool(office._claim_prefetch.here()._sent))
        yield ref, lock
        lock.rollback()


async def claimed_before(giver: PostgresEngine, times: int) -> Sequence[JobRef]:
    """Take what there is, and see that it was taken so often before and given back each time, without a mark."""
    claims = (await giver.claim(ClaimRequest(worker_id="other", slots=10))).claims
    assert [(claim.token[1], claim.attempts, claim.crashes) for claim in claims] == [(times + 1, 1, 0)] * len(claims)
    return [claim.ref for claim in claims]


async def test_a_claim_leaves_with_the_notification_and_the_next_exchange_takes_what_it_brings(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):  # O11
    ref = await received(store, office, giver)
    job = await giver.get(ref)
    assert job is not None
    assert (job.worker_id, job.attempts) == ("w", 1)
    exchanged = await office.exchange(ASKS)
    (claim,) = exchanged.claimed.claims
    assert (claim.ref, claim.started, claim.attempts) == (ref, True, 1)
    assert exchanged.claimed.retry_after != 0.0
    assert not await office.settle([Settlement(claim, Complete('"done"'))])
    await has(giver, ref, State.COMPLETED)


async def test_what_has_ended_meanwhile_is_recorded_beside_it(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):
    (first,) = await add(giver)
    (claim,) = (await stands(office, found=1)).claimed.claims
    (second,) = await add(giver)
    tell(store)
    await has(giver, second, State.RUNNING)
    exchanged = await office.exchange(Exchange(settlements=(Settlement(claim, Complete()),), request=REQUEST))
    assert (exchanged.lost, refs(exchanged)) == (frozenset(), [second])
    await has(giver, first, State.COMPLETED)


async def test_it_brings_no_more_than_there_was_room_for(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):
    await add(giver)
    await stands(office, found=1)
    added = await add(giver, 3)
    tell(store)
    await has(giver, added[1], State.RUNNING)
    exchanged = await office.exchange(ASKS)
    assert (refs(exchanged), exchanged.claimed.retry_after) == (added[:2], 0.0)  # and there may be more
    assert refs(await office.exchange(ASKS)) == [added[2]]


async def test_none_is_sent_while_the_worker_asks_for_itself(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine, monkeypatch: pytest.MonkeyPatch
):
    await stands(office)
    monkeypatch.setattr(claims, "_SLOW_FULL_SCAN", -1.0)  # it asks only where there is news
    (first,) = await add(giver)
    (second,) = await add(giver, queue="r")
    tell(store, "q,r")
    await until(lambda: len(office._rotation(REQUEST.queues, "w").notified) == 2)
    with psycopg.connect(postgres_url()) as lock:
        lock.execute(f"lock table {store.schema}.lease_batch in access exclusive mode")
        asking = asyncio.create_task(office.exchange(ASKS))
        await until(lambda: not office._rotation(REQUEST.queues, "w").notified)
        tell(store)
        await until(lambda: bool(office._rotation(REQUEST.queues, "w").notified or office._claim_prefetch.here()._sent))
        assert not office._claim_prefetch.here()._sent
        lock.rollback()
        assert refs(await asking) == [first, second]
    (third,) = await add(giver)
    tell(store)
    await has(giver, third, State.RUNNING)  # now one stands again
    assert refs(await office.exchange(ASKS)) == [third]


async def test_none_stands_for_a_worker_that_has_enough(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):
    await stands(office)
    await add(giver, 3)
    office._rotation(REQUEST.queues, "w").needs_full_scan = True
    assert len(refs(await office.exchange(ASKS))) == 3
    await stands(office, Exchange(request=replace(REQUEST, worker_id="idle")))
    (ref,) = await add(giver)
    tell(store)
    await has(giver, ref, State.RUNNING)
    job = await giver.get(ref)
    assert job is not None
    assert job.worker_id == "idle"


async def test_news_since_has_the_worker_ask_again_at_once(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):
    first = await received(store, office, giver)
    (second,) = await add(giver, queue="r")
    tell(store, "r")
    await until(lambda: bool(office._rotation(REQUEST.queues, "w").notified))
    exchanged = await office.exchange(ASKS)
    assert (refs(exchanged), exchanged.claimed.retry_after) == ([first], 0.0)
    assert refs(await office.exchange(ASKS)) == [second]


async def test_of_a_queue_of_which_something_is_said_the_exchange_asks_for_itself(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):
    await giver.configure("q", QueueChange(concurrency=1))
    await stands(office)
    first, _ = await add(giver, 2)
    tell(store)
    await until(lambda: bool(office._claim_prefetch.here()._sent))
    assert refs(await office.exchange(ASKS)) == [first]


async def test_what_nobody_asks_for_goes_back(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine, monkeypatch: pytest.MonkeyPatch
):  # X3
    monkeypatch.setattr(claim_prefetch, "_KEEP_SECONDS", 0.2)
    ref = await received(store, office, giver)
    await has(giver, ref, State.PENDING)
    assert await claimed_before(giver, 1) == [ref]


@pytest.mark.parametrize("closes", [False, True])
async def test_a_worker_that_leaves_gives_it_back(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine, closes: bool
):  # X3
    async with on_its_way(store, office, giver) as (ref, lock):
        leaving = asyncio.create_task(office.close() if closes else office.deregister("w"))
        await asyncio.sleep(0.05)
        lock.rollback()
        await leaving
    assert await claimed_before(giver, 1) == [ref]


async def test_a_worker_that_leaves_gives_back_what_was_brought_once(
    store: PostgresStore,
    office: PostgresEngine,
    giver: PostgresEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(claim_prefetch, "_KEEP_SECONDS", 1.0)
    ref = await received(store, office, giver)
    await until(lambda: any(sent.expiry for sent in office._claim_prefetch.here()._sent.values()))
    await office.deregister("w")
    assert await claimed_before(giver, 1) == [ref]
    await asyncio.sleep(1.1)
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_nothing_is_brought_to_one_that_has_left(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):
    await stands(office)
    await office.deregister("w")
    await add(giver)
    tell(store)
    await until(lambda: bool(office._rotation(REQUEST.queues, "w").notified))
    assert len(await claimed_before(giver, 0)) == 1


async def test_what_is_brought_to_an_exchange_that_was_cancelled_goes_back(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):  # X3
    async with on_its_way(store, office, giver) as (ref, _):
        asking = asyncio.create_task(office.exchange(ASKS))
        await asyncio.sleep(0.05)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
    await goes_back(store, ref)
    assert await claimed_before(giver, 1) == [ref]


async def test_what_is_brought_goes_back_if_what_has_ended_cannot_be_recorded(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine, monkeypatch: pytest.MonkeyPatch
):  # X3
    (first,) = await add(giver)
    (claim,) = (await stands(office, found=1)).claimed.claims
    (second,) = await add(giver)
    tell(store)
    await has(giver, second, State.RUNNING)

    async def fails(_: Exchange) -> Exchanged:
        raise StoreUnavailable

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(office, "_exchange", fails)
        await office.exchange(Exchange(settlements=(Settlement(claim, Complete()),), request=REQUEST))
    await has(giver, second, State.PENDING)
    await has(giver, first, State.RUNNING)


async def test_a_claim_whose_connection_is_cut_is_made_again(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):  # X3
    async with on_its_way(store, office, giver) as (ref, lock):
        asking = asyncio.create_task(office.exchange(ASKS))
        with psycopg.connect(postgres_url(), autocommit=True) as killer:
            kill = """select pg_terminate_backend(pid) from pg_stat_activity
                       where wait_event_type = 'Lock' and query like %s"""
            await until(lambda: bool(killer.execute(kill, [f"%{store.schema}%claim_queue%"]).fetchall()))
        await asyncio.sleep(0.05)
        lock.rollback()
        exchanged = await asking
    assert refs(exchanged) == [ref]


async def test_an_answer_that_does_not_come_is_not_waited_for_without_end(
    store: PostgresStore, office: PostgresEngine, giver: PostgresEngine
):  # X3
    async with on_its_way(store, office, giver), asyncio.timeout(30):
        with pytest.raises(StoreUnavailable):
            await office.exchange(ASKS)
    await until(lambda: office._listener.is_listening)
    await stands(office)
    (ref,) = await add(giver, queue="r")
    tell(store, "r")
    await has(giver, ref, State.RUNNING)
    assert refs(await office.exchange(ASKS)) == [ref]
