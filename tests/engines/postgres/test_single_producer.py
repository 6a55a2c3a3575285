"""Who is alone adds jobs on the spot: for moments only, not beside others, and nothing is lost or done twice by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from onward.backoff import Backoff
from onward.engine.values import ClaimRequest, QueueChange
from onward.engines.postgres import enqueue_cache, notify_throttle, single_producer
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.enqueue import SingleInsertStatements
from onward.engines.postgres.notify_throttle import NotifyThrottle
from onward.engines.postgres.single_producer import SingleProducer
from onward.errors import StoreUnavailable
from onward.job import Enqueued, UniformJobs
from onward.pg.pools import ConnectionPools
from onward.pg.timed_connection import QueryExecutor, TimedAsyncConnection
from tests.conformance.driver import new_job
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.turns import turns_of_the_loop

PLAIN = new_job(queue="q")
OTHER = new_job(queue="other")
LONG = 3600.0


@pytest.fixture
async def engine(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresEngine]:
    """An engine whose permits last, for what is not about that."""
    monkeypatch.setattr(enqueue_cache, "TTL", LONG)
    monkeypatch.setattr(single_producer, "_YIELD_INTERVAL", LONG)
    engine = PostgresEngine(store.url, schema=store.schema, query_timeout=1)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def fast_adds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The payloads that were added on the spot."""
    fast_adds: list[str] = []
    add = SingleProducer.add

    def noted(single_producer: SingleProducer, jobs: UniformJobs) -> Any:
        fast_adds.append(jobs.payloads[0])
        return add(single_producer, jobs)

    monkeypatch.setattr(SingleProducer, "add", noted)
    return fast_adds


async def add(engine: PostgresEngine, *payloads: str, template: Any = PLAIN) -> list[Enqueued]:
    return [(await engine.enqueue(UniformJobs(template, [payload])))[0] for payload in payloads]


async def warmed(engine: PostgresEngine, fast_adds: list[str]) -> None:
    """Come so often that the next one is added on the spot, by a statement that the server knows."""
    for _ in range(10):
        await add(engine, "0")
    assert fast_adds
    fast_adds.clear()


async def stored(engine: PostgresEngine) -> list[tuple[str, str, str]]:
    claims = (await engine.claim(ClaimRequest(worker_id="w", slots=1000))).claims
    return [(claim.ref.id, claim.ref.queue, claim.payload) for claim in claims]


@contextmanager
def locked(store: PostgresStore) -> Iterator[None]:
    """Keep everybody from adding jobs for the length of a block."""
    with psycopg.connect(store.url) as connection:
        connection.execute(f"lock table {store.schema}.job in share mode")
        yield
        connection.rollback()


async def test_who_comes_a_third_time_is_added_on_the_spot_and_each_job_once(
    engine: PostgresEngine, fast_adds: list[str]
):
    payloads = [str(number) for number in range(9)]
    added = await add(engine, *payloads)
    assert fast_adds == payloads[2:]
    assert await stored(engine) == [(one.id, "q", payload) for one, payload in zip(added, payloads, strict=True)]


async def test_others_are_not_covered(engine: PostgresEngine, fast_adds: list[str]):
    await warmed(engine, fast_adds)
    await asyncio.create_task(add(engine, "1"))
    await add(engine, "2", "3")
    assert fast_adds == []  # each came after another
    await add(engine, "4")
    assert fast_adds == ["4"]
    await add(engine, "5", template=OTHER)
    await engine.enqueue(UniformJobs(PLAIN, ["6", "7"]))
    await engine.enqueue([PLAIN])
    assert fast_adds == ["4"]
    assert len(await stored(engine)) == 10 + 8


async def test_callers_who_come_together_gather_all_the_same(engine: PostgresEngine, fast_adds: list[str]):
    async def come() -> None:
        await add(engine, *map(str, range(5)))

    await asyncio.gather(*(come() for _ in range(20)))
    assert len(fast_adds) < 10
    assert len(await stored(engine)) == 100


@pytest.fixture
async def other(store: PostgresStore) -> AsyncIterator[PostgresEngine]:
    """Somebody else's engine on the same store."""
    other = PostgresEngine(store.url, schema=store.schema)
    await other.open()
    yield other
    await other.close()


@asynccontextmanager
async def listening_to(other: PostgresEngine) -> AsyncIterator[asyncio.Event]:
    """Have somebody else listen for jobs, and note when they are told of one."""
    notified = asyncio.Event()

    async def listen() -> None:
        async for _ in other.signals(["q"]):
            notified.set()

    listening = asyncio.create_task(listen())
    try:
        await notified.wait()  # it has begun to listen
        yield notified
    finally:
        listening.cancel()
        await asyncio.wait([listening])


@pytest.fixture
def cache_checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The payloads of jobs that looked on their way, at what is to be looked at again soon."""
    monkeypatch.setattr(enqueue_cache, "TTL", 0.05)
    monkeypatch.setattr(notify_throttle, "TTL", 0.05)
    cache_checks: list[str] = []
    checked_insert = SingleInsertStatements.checked_insert

    def noted(statements: SingleInsertStatements, payload: str) -> Any:
        cache_checks.append(payload)
        return checked_insert(statements, payload)

    monkeypatch.setattr(SingleInsertStatements, "checked_insert", noted)
    return cache_checks


async def sleep_until_it_is_to_be_looked_again(cache_checks: list[str]) -> None:
    await asyncio.sleep(0.06)
    cache_checks.clear()


async def test_what_was_seen_is_looked_at_again_on_the_way(
    engine: PostgresEngine, fast_adds: list[str], cache_checks: list[str]
):
    await warmed(engine, fast_adds)
    single_producer = engine._single_producer
    for number in range(5):
        await sleep_until_it_is_to_be_looked_again(cache_checks)
        await add(engine, str(number), f"1{number}")
        assert cache_checks == [str(number)]  # and the next relies on it
    assert fast_adds == [one for number in range(5) for one in (str(number), f"1{number}")]
    assert engine._single_producer is single_producer
    assert len(await stored(engine)) == 20


@pytest.mark.parametrize("change", [QueueChange(max_attempts=9), QueueChange(backoff=Backoff.fixed(7))])
async def test_a_queue_that_says_something_since_is_heeded(
    engine: PostgresEngine, other: PostgresEngine, fast_adds: list[str], cache_checks: list[str], change: QueueChange
):
    await warmed(engine, fast_adds)
    await other.configure("q", change)
    await sleep_until_it_is_to_be_looked_again(cache_checks)
    await add(engine, "1", "2", "3")
    assert (cache_checks, fast_adds) == (["1"], ["1"])  # where it was not added; the others do not come so any more
    claims = (await engine.claim(ClaimRequest(worker_id="w", slots=100))).claims
    assert [claim.payload for claim in claims] == ["0"] * 10 + ["1", "2", "3"]
    if change.max_attempts:
        assert [claim.max_attempts for claim in claims] == [5] * 10 + [9] * 3
    else:
        assert [claim.backoff for claim in claims] == [None] * 10 + [change.backoff] * 3


async def test_a_lane_that_has_gone_since_is_opened_again(
    engine: PostgresEngine, store: PostgresStore, fast_adds: list[str], cache_checks: list[str]
):
    await warmed(engine, fast_adds)
    before = len(await stored(engine))
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"delete from {store.schema}.lane")
    await sleep_until_it_is_to_be_looked_again(cache_checks)
    await add(engine, "1")
    assert cache_checks == ["1"]
    assert (before, [payload for _, _, payload in await stored(engine)]) == (10, ["1"])


async def test_somebody_who_listens_since_is_told(
    engine: PostgresEngine, other: PostgresEngine, fast_adds: list[str], cache_checks: list[str]
):
    if engine.database.is_pooled:
        pytest.skip("through a pooler nobody is told")
    await warmed(engine, fast_adds)
    engine._notify_throttle._send = lambda _: None  # with its commit, or not at all
    async with listening_to(other) as notified:
        notified.clear()
        await sleep_until_it_is_to_be_looked_again(cache_checks)
        await add(engine, "1")
        await asyncio.wait_for(notified.wait(), 10)
    assert cache_checks == ["1"]
    assert [payload for _, _, payload in await stored(engine)][-1] == "1"


async def test_one_that_looks_and_takes_longer_is_added_once(
    engine: PostgresEngine, other: PostgresEngine, store: PostgresStore, fast_adds: list[str], cache_checks: list[str]
):
    await warmed(engine, fast_adds)
    for change in (None, QueueChange(max_attempts=9)):
        if change is not None:
            await other.configure("q", change)
        await sleep_until_it_is_to_be_looked_again(cache_checks)
        with psycopg.connect(store.url) as connection:
            connection.execute(f"lock table {store.schema}.job in share mode")
            adding = asyncio.create_task(add(engine, "1"))
            await asyncio.sleep(0.1)
            connection.rollback()
        await adding
    claims = (await engine.claim(ClaimRequest(worker_id="w", slots=100))).claims
    assert [(claim.payload, claim.max_attempts) for claim in claims[-2:]] == [("1", 5), ("1", 9)]
    assert len(claims) == 12


async def test_what_a_queue_is_told_here_holds_for_the_next_job(engine: PostgresEngine, fast_adds: list[str]):
    await warmed(engine, fast_adds)
    await engine.configure("q", QueueChange(max_attempts=9))
    await add(engine, "1")
    claims = (await engine.claim(ClaimRequest(worker_id="w", slots=100))).claims
    assert claims[-1].max_attempts == 9


async def test_the_loop_has_its_turns(engine: PostgresEngine, fast_adds: list[str], monkeypatch: pytest.MonkeyPatch):
    """Answers that are waited for on the spot hold the loop up: others must get their turn."""
    monkeypatch.setattr("onward.pg.timed_connection._BUSY_WAIT_SECONDS", LONG)
    # What is new to the server takes a turn by itself.
    monkeypatch.setattr(NotifyThrottle, "notice_for", lambda *_: None)
    await warmed(engine, fast_adds)
    async with turns_of_the_loop() as turns:
        await add(engine, *map(str, range(20)))
        assert turns.count == 0
        monkeypatch.setattr(single_producer, "_YIELD_INTERVAL", 0.01)
        engine._single_producer = None
        await add(engine, "0", "0", "0")
        had_turns = 0
        for number in range(20):
            time.sleep(0.011)  # noqa: ASYNC251 - the loop must not turn meanwhile
            before = turns.count
            await add(engine, str(number))
            had_turns += turns.count > before
    assert had_turns == 20
    assert len(fast_adds) >= 36  # and goes on as before then
    assert len(await stored(engine)) == 53


async def test_whether_a_connection_is_sound_is_asked_once_for_each_turn_of_the_loop(
    engine: PostgresEngine, fast_adds: list[str], monkeypatch: pytest.MonkeyPatch
):
    """To ask is a call of the kernel, as sending the job is one."""
    monkeypatch.setattr("onward.pg.timed_connection._BUSY_WAIT_SECONDS", LONG)
    await warmed(engine, fast_adds)
    is_healthy, asked = QueryExecutor.is_healthy, 0

    def noted(executor: QueryExecutor) -> bool:
        nonlocal asked
        asked += 1
        return is_healthy(executor)

    monkeypatch.setattr(QueryExecutor, "is_healthy", noted)
    for _ in range(3):
        await asyncio.sleep(0)
        await add(engine, *map(str, range(10)))
    assert (len(fast_adds), asked) == (30, 3)


async def test_a_connection_that_somebody_else_has_taken_is_not_waited_for(
    engine: PostgresEngine, fast_adds: list[str]
):
    await warmed(engine, fast_adds)
    idle = engine._connections.loop_pool().idle
    taken = idle.copy()
    idle.clear()
    try:
        await add(engine, "1")
    finally:
        idle.extend(taken)
    assert fast_adds == []


async def test_who_comes_when_the_loop_has_had_a_turn_waits_for_no_other(
    engine: PostgresEngine, fast_adds: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("onward.pg.timed_connection._BUSY_WAIT_SECONDS", LONG)
    # What is new to the server takes a turn by itself: no job notifies, and none looks on its way.
    monkeypatch.setattr(NotifyThrottle, "notice_for", lambda *_: None)
    monkeypatch.setattr(notify_throttle, "TTL", LONG)
    now = time.monotonic()
    monkeypatch.setattr(single_producer, "monotonic", lambda: now)
    monkeypatch.setattr(single_producer, "_YIELD_INTERVAL", 0.01)
    await warmed(engine, fast_adds)
    async with turns_of_the_loop() as turns:
        for number in range(5):
            begun = turns.count
            while turns.count == begun:
                await asyncio.sleep(0)
            now += 0.02
            before = turns.count
            await add(engine, str(number))
            assert turns.count == before
        now += 0.02  # and who comes when it has had none lets it have one
        before = turns.count
        await add(engine, "5")
        assert turns.count > before
    assert fast_adds == list("012345")


async def test_one_that_takes_longer_holds_nobody_up_and_is_added_once(
    engine: PostgresEngine, store: PostgresStore, fast_adds: list[str]
):
    await warmed(engine, fast_adds)
    with psycopg.connect(store.url) as connection:
        connection.execute(f"lock table {store.schema}.job in share mode")

        async def release() -> None:
            await asyncio.sleep(0.1)
            connection.rollback()

        letting = asyncio.create_task(release())  # it must have its turn, or the job would wait for ever
        added = await add(engine, "1")
        await letting
    assert fast_adds == ["1"]
    added += await add(engine, "2", "3", "4")
    assert [job_id for job_id, _, _ in await stored(engine)][-4:] == [one.id for one in added]


async def test_one_that_takes_longer_is_one_of_as_many_connections_as_there_may_be(
    engine: PostgresEngine, store: PostgresStore, fast_adds: list[str]
):
    engine._connections = ConnectionPools(engine.database, max_size=1)
    engine._connections.open()
    await warmed(engine, fast_adds)
    order: list[str] = []

    async def look() -> None:
        async with engine._connections.borrowed():
            order.append("looked")

    with psycopg.connect(store.url) as connection:
        connection.execute(f"lock table {store.schema}.job in share mode")

        async def release(looking: asyncio.Task[None]) -> None:
            await asyncio.wait([looking], timeout=0.3)
            connection.rollback()

        looking = asyncio.create_task(look())
        letting = asyncio.create_task(release(looking))
        await add(engine, "1")
        order.append("added")
        await asyncio.gather(looking, letting)
    assert (fast_adds, order) == (["1"], ["added", "looked"])


async def test_a_connection_that_was_cut_is_not_used_and_one_that_is_cut_meanwhile_is_told_of(
    engine: PostgresEngine, store: PostgresStore, fast_adds: list[str]
):
    await warmed(engine, fast_adds)
    cut(store)
    await asyncio.sleep(0)  # whether it is sound is asked once for each turn of the loop
    await add(engine, "1")  # on another
    await warmed(engine, fast_adds)

    async def cut_soon() -> None:
        await asyncio.sleep(0.05)
        cut(store)

    with locked(store):
        cutting = asyncio.create_task(cut_soon())
        with pytest.raises(StoreUnavailable, match="terminating"):
            await add(engine, "99")
        await cutting
    await add(engine, "2", "3", "4")
    assert [payload for _, _, payload in await stored(engine) if payload != "0"] == ["1", "2", "3", "4"]


def cut(store: PostgresStore) -> None:
    """End the sessions of all others that add jobs."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'onward' and query like %s",
            [f'insert into "{store.schema}".job%'],
        )


async def test_one_who_gets_no_answer_gives_up(engine: PostgresEngine, store: PostgresStore, fast_adds: list[str]):
    await warmed(engine, fast_adds)
    for connection in engine._connections.loop_pool().idle:
        connection.query_timeout = None  # as after a look at all jobs
    with locked(store), pytest.raises(StoreUnavailable, match="not answered"):
        await add(engine, "99")


async def test_one_that_had_to_give_way_is_added_all_the_same(
    engine: PostgresEngine, fast_adds: list[str], monkeypatch: pytest.MonkeyPatch
):
    await warmed(engine, fast_adds)
    do, refused = TimedAsyncConnection.try_execute, 0

    def refuse(connection: TimedAsyncConnection, text: str, values: Any) -> int | None:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise psycopg.errors.SerializationFailure
        return do(connection, text, values)

    monkeypatch.setattr(TimedAsyncConnection, "try_execute", refuse)
    await add(engine, "1", "2")
    assert refused == 2  # the other was not
    assert [payload for _, _, payload in await stored(engine)][-2:] == ["1", "2"]


async def test_whoever_listens_is_told_of_jobs_added_on_the_spot(
    engine: PostgresEngine, other: PostgresEngine, fast_adds: list[str]
):
    if engine.database.is_pooled:
        pytest.skip("through a pooler nobody is told")
    async with listening_to(other) as notified:
        await warmed(engine, fast_adds)
        engine._notify_throttle._send = lambda _: None  # with its commit, or not at all
        for number in range(5):
            await asyncio.sleep(0.5)  # until it was told of what came before
            notified.clear()
            await add(engine, str(number))
            await asyncio.wait_for(notified.wait(), 10)
    assert fast_adds == [str(number) for number in range(5)]


async def test_a_closed_engine_adds_nothing(store: PostgresStore, engine: PostgresEngine, fast_adds: list[str]):
    await warmed(engine, fast_adds)
    await engine.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await add(engine, "1")
    await engine.open()
    assert len(await stored(engine)) == 10
