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
from onward.engines.postgres import claim_on_notify, claims
from onward.engines.postgres.engine import PostgresEngine
from onward.errors import StoreUnavailable
from onward.job import JobRef
from onward.lifecycle import Complete, JobStatus
from tests.conformance.driver import new_job
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually
from tests.servers.postgres import postgres_url

LONG = 3600.0
REQUEST = ClaimRequest(worker_id="w", slots=3)
EXCHANGE = Exchange(request=REQUEST)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a look at all queues is quick and lasts, and what was brought is kept."""
    monkeypatch.setattr(claims, "_FULL_SCAN_INTERVAL", LONG)
    monkeypatch.setattr(claims, "_MAX_FULL_SCAN_INTERVAL", LONG)
    monkeypatch.setattr(claims, "_SLOW_FULL_SCAN", math.inf)
    monkeypatch.setattr(claim_on_notify, "_KEEP_SECONDS", LONG)


@pytest.fixture
async def producer(store: PostgresStore) -> AsyncIterator[PostgresEngine]:
    """Who adds jobs, and tells nobody: the tests do, when they want to."""
    producer = PostgresEngine(store.url, schema=store.schema, notify=False)
    await producer.open()
    yield producer
    await producer.close()


@pytest.fixture
async def consumer(store: PostgresStore, producer: PostgresEngine) -> AsyncIterator[PostgresEngine]:
    """Where a worker listens."""
    consumer = PostgresEngine(postgres_url(), schema=store.schema, query_timeout=1)
    await consumer.open()

    async def listen() -> None:
        async for _ in consumer.signals(("*",)):
            pass

    listening = asyncio.create_task(listen())
    await until(lambda: consumer._listener.is_listening)
    yield consumer
    listening.cancel()
    await consumer.close()


async def add(producer: PostgresEngine, count: int = 1, *, queue: str = "q") -> list[JobRef]:
    return [one.ref for one in await producer.enqueue([new_job(queue=queue)] * count)]


def notify(store: PostgresStore, notice: str = "q") -> None:
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute("select pg_notify(%s, %s)", [store.schema, notice])


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens on this loop."""

    async def ask() -> bool | None:
        return is_so() or None

    await eventually(ask)


async def has(producer: PostgresEngine, ref: JobRef, state: JobStatus) -> None:
    """Wait until a job is in a state."""

    async def ask() -> bool | None:
        job = await producer.get(ref)
        return (job is not None and job.status is state) or None

    await eventually(ask)


async def is_released(store: PostgresStore, ref: JobRef) -> None:
    """Wait until a job that was taken is so no more."""
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        is_back = f"select 1 from {store.schema}.job where id = %s and claim_no <> 0 and lease_until is null"
        await until(lambda: bool(connection.execute(is_back, [ref.id]).fetchall()))


async def arm(consumer: PostgresEngine, exchange: Exchange = EXCHANGE, *, found: int = 0) -> Exchanged:
    """Have a claim stand."""
    exchanged = await consumer.exchange(exchange)
    assert len(exchanged.claimed.claims) == found
    assert consumer._claim_on_notify.current()._armed
    return exchanged


async def prefetched(store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine) -> JobRef:
    """Have a job brought."""
    await arm(consumer)
    (ref,) = await add(producer)
    notify(store)
    await has(producer, ref, JobStatus.RUNNING)
    return ref


def refs(exchanged: Exchanged) -> list[JobRef]:
    return [claim.ref for claim in exchanged.claimed.claims]


@asynccontextmanager
async def in_flight(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
) -> AsyncIterator[tuple[JobRef, psycopg.Connection]]:
    """Have a claim sent for a job, and no answer to it until a lock's connection rolls back or the block ends."""
    await arm(consumer)
    (ref,) = await add(producer)
    with psycopg.connect(postgres_url()) as lock:
        lock.execute(f"lock table {store.schema}.lease_batch in access exclusive mode")
        notify(store)
        await until(lambda: bool(consumer._claim_on_notify.current()._sent))
        yield ref, lock
        lock.rollback()


async def claimed_before(
    store: PostgresStore, producer: PostgresEngine, *, was_claimed: bool = True
) -> Sequence[JobRef]:
    """Take what there is, and see whether it was taken before and given back, without a mark."""
    with psycopg.connect(postgres_url()) as connection:
        numbers = connection.execute(f"select claim_no <> 0 from {store.schema}.job").fetchall()
    claims = (await producer.claim(ClaimRequest(worker_id="other", slots=10))).claims
    assert numbers == [(was_claimed,)] * len(claims)
    assert [(claim.attempts, claim.crashes) for claim in claims] == [(1, 0)] * len(claims)
    return [claim.ref for claim in claims]


async def test_a_claim_leaves_with_the_notification_and_the_next_exchange_takes_what_it_brings(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):  # O11
    ref = await prefetched(store, consumer, producer)
    job = await producer.get(ref)
    assert job is not None
    assert (job.worker_id, job.attempts) == ("w", 1)
    exchanged = await consumer.exchange(EXCHANGE)
    (claim,) = exchanged.claimed.claims
    assert (claim.ref, claim.started, claim.attempts) == (ref, True, 1)
    assert exchanged.claimed.retry_after != 0.0
    assert not await consumer.settle([Settlement(claim, Complete('"done"'))])
    await has(producer, ref, JobStatus.COMPLETED)


async def test_what_has_ended_meanwhile_is_recorded_beside_it(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):
    (first,) = await add(producer)
    (claim,) = (await arm(consumer, found=1)).claimed.claims
    (second,) = await add(producer)
    notify(store)
    await has(producer, second, JobStatus.RUNNING)
    exchanged = await consumer.exchange(Exchange(settlements=(Settlement(claim, Complete()),), request=REQUEST))
    assert (exchanged.lost, refs(exchanged)) == (frozenset(), [second])
    await has(producer, first, JobStatus.COMPLETED)


async def test_it_brings_no_more_than_there_was_room_for(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):
    await add(producer)
    await arm(consumer, found=1)
    added = await add(producer, 3)
    notify(store)
    await has(producer, added[1], JobStatus.RUNNING)
    exchanged = await consumer.exchange(EXCHANGE)
    assert (refs(exchanged), exchanged.claimed.retry_after) == (added[:2], 0.0)  # and there may be more
    assert refs(await consumer.exchange(EXCHANGE)) == [added[2]]


async def test_none_is_sent_while_the_worker_asks_for_itself(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine, monkeypatch: pytest.MonkeyPatch
):
    await arm(consumer)
    monkeypatch.setattr(claims, "_SLOW_FULL_SCAN", -1.0)  # it asks only where there is news
    (first,) = await add(producer)
    (second,) = await add(producer, queue="r")
    notify(store, "q,r")
    await until(lambda: len(consumer._rotation(REQUEST.queues, "w").notified) == 2)
    with psycopg.connect(postgres_url()) as lock:
        lock.execute(f"lock table {store.schema}.lease_batch in access exclusive mode")
        asking = asyncio.create_task(consumer.exchange(EXCHANGE))
        await until(lambda: not consumer._rotation(REQUEST.queues, "w").notified)
        notify(store)
        await until(
            lambda: bool(consumer._rotation(REQUEST.queues, "w").notified or consumer._claim_on_notify.current()._sent)
        )
        assert not consumer._claim_on_notify.current()._sent
        lock.rollback()
        assert refs(await asking) == [first, second]
    (third,) = await add(producer)
    notify(store)
    await has(producer, third, JobStatus.RUNNING)  # now one stands again
    assert refs(await consumer.exchange(EXCHANGE)) == [third]


async def test_none_stands_for_a_worker_that_has_enough(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):
    await arm(consumer)
    await add(producer, 3)
    consumer._rotation(REQUEST.queues, "w").needs_full_scan = True
    assert len(refs(await consumer.exchange(EXCHANGE))) == 3
    await arm(consumer, Exchange(request=replace(REQUEST, worker_id="idle")))
    (ref,) = await add(producer)
    notify(store)
    await has(producer, ref, JobStatus.RUNNING)
    job = await producer.get(ref)
    assert job is not None
    assert job.worker_id == "idle"


async def test_news_since_has_the_worker_ask_again_at_once(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):
    first = await prefetched(store, consumer, producer)
    (second,) = await add(producer, queue="r")
    notify(store, "r")
    await until(lambda: bool(consumer._rotation(REQUEST.queues, "w").notified))
    exchanged = await consumer.exchange(EXCHANGE)
    assert (refs(exchanged), exchanged.claimed.retry_after) == ([first], 0.0)
    assert refs(await consumer.exchange(EXCHANGE)) == [second]


async def test_of_a_queue_of_which_something_is_said_the_exchange_asks_for_itself(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):
    await producer.configure("q", QueueChange(global_concurrency=1))
    await arm(consumer)
    first, _ = await add(producer, 2)
    notify(store)
    await until(lambda: bool(consumer._claim_on_notify.current()._sent))
    assert refs(await consumer.exchange(EXCHANGE)) == [first]


async def test_what_nobody_asks_for_goes_back(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine, monkeypatch: pytest.MonkeyPatch
):  # X3
    monkeypatch.setattr(claim_on_notify, "_KEEP_SECONDS", 0.2)
    ref = await prefetched(store, consumer, producer)
    await has(producer, ref, JobStatus.PENDING)
    assert await claimed_before(store, producer) == [ref]


@pytest.mark.parametrize("closes", [False, True])
async def test_a_worker_that_leaves_gives_it_back(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine, closes: bool
):  # X3
    async with in_flight(store, consumer, producer) as (ref, lock):
        leaving = asyncio.create_task(consumer.close() if closes else consumer.deregister("w"))
        await asyncio.sleep(0.05)
        lock.rollback()
        await leaving
    assert await claimed_before(store, producer) == [ref]


async def test_a_worker_that_leaves_gives_back_what_was_brought_once(
    store: PostgresStore,
    consumer: PostgresEngine,
    producer: PostgresEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(claim_on_notify, "_KEEP_SECONDS", 1.0)
    ref = await prefetched(store, consumer, producer)
    await until(lambda: any(sent.expiry for sent in consumer._claim_on_notify.current()._sent.values()))
    await consumer.deregister("w")
    assert await claimed_before(store, producer) == [ref]
    await asyncio.sleep(1.1)
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_nothing_is_brought_to_one_that_has_left(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):
    await arm(consumer)
    await consumer.deregister("w")
    await add(producer)
    notify(store)
    await until(lambda: bool(consumer._rotation(REQUEST.queues, "w").notified))
    assert len(await claimed_before(store, producer, was_claimed=False)) == 1


async def test_what_is_brought_to_an_exchange_that_was_cancelled_goes_back(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):  # X3
    async with in_flight(store, consumer, producer) as (ref, _):
        asking = asyncio.create_task(consumer.exchange(EXCHANGE))
        await asyncio.sleep(0.05)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
    await is_released(store, ref)
    assert await claimed_before(store, producer) == [ref]


async def test_what_is_brought_goes_back_if_what_has_ended_cannot_be_recorded(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine, monkeypatch: pytest.MonkeyPatch
):  # X3
    (first,) = await add(producer)
    (claim,) = (await arm(consumer, found=1)).claimed.claims
    (second,) = await add(producer)
    notify(store)
    await has(producer, second, JobStatus.RUNNING)

    async def fails(_: Exchange) -> Exchanged:
        raise StoreUnavailable

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(consumer, "_exchange", fails)
        await consumer.exchange(Exchange(settlements=(Settlement(claim, Complete()),), request=REQUEST))
    await has(producer, second, JobStatus.PENDING)
    await has(producer, first, JobStatus.RUNNING)


async def test_a_claim_whose_connection_is_cut_is_made_again(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):  # X3
    async with in_flight(store, consumer, producer) as (ref, lock):
        asking = asyncio.create_task(consumer.exchange(EXCHANGE))
        with psycopg.connect(postgres_url(), autocommit=True) as killer:
            kill = """select pg_terminate_backend(pid) from pg_stat_activity
                       where wait_event_type = 'Lock' and query like %s"""
            await until(lambda: bool(killer.execute(kill, [f"%{store.schema}%claim_queue%"]).fetchall()))
        await asyncio.sleep(0.05)
        lock.rollback()
        exchanged = await asking
    assert refs(exchanged) == [ref]


async def test_an_answer_that_does_not_come_is_not_waited_for_without_end(
    store: PostgresStore, consumer: PostgresEngine, producer: PostgresEngine
):  # X3
    async with in_flight(store, consumer, producer), asyncio.timeout(30):
        with pytest.raises(StoreUnavailable):
            await consumer.exchange(EXCHANGE)
    await until(lambda: consumer._listener.is_listening)
    await arm(consumer)
    (ref,) = await add(producer, queue="r")
    notify(store, "r")
    await has(producer, ref, JobStatus.RUNNING)
    assert refs(await consumer.exchange(EXCHANGE)) == [ref]
