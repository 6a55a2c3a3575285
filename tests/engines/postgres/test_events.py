"""Events on a database where transactions become visible in another order than that in which they wrote (B7)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import psycopg
import pytest

from onward.engine.values import Settlement
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.events import EventLog
from onward.job import JobRef
from onward.lifecycle import Complete
from tests.conformance.cases import Caller
from tests.conformance.driver import Driver, new_job
from tests.conformance.event_recorder import DEADLINE, fall_silent, hear, take
from tests.conformance.postgres_case import PostgresStore


async def add_within(driver: Driver, caller: Caller) -> JobRef:
    """Add a job in a caller's transaction, which stays open."""
    (added,) = await driver.engine.enqueue([new_job()], connection=caller.handle)
    return added.ref


async def test_a_transaction_that_began_first_and_commits_last_is_neither_missed_nor_waited_for(driver: Driver):  # B7
    early, late = driver.store.caller(), driver.store.caller()
    async with aclosing(await driver.engine.events(["*"])) as events:
        slow = await add_within(driver, early)
        quick = await add_within(driver, late)
        late.commit()
        (first,) = await take(events, 1)
        assert first.ref == quick  # while the one that began before it is open
        later = await driver.add()
        (second,) = await take(events, 1)
        assert second.ref == later
        early.commit()
        (third,) = await take(events, 1)
        assert third.ref == slow
    last = await driver.add()
    for cursor, rest in ((first.cursor, {later, slow, last}), (second.cursor, {slow, last}), (third.cursor, {last})):
        async with aclosing(await driver.engine.events(["*"], cursor=cursor)) as events:
            assert {event.ref for event in await take(events, len(rest))} == rest


async def test_from_the_middle_of_what_was_seen_together_comes_the_rest_and_what_commits_then(driver: Driver):  # B7
    caller = driver.store.caller()
    async with aclosing(await driver.engine.events(["*"])) as events:
        slow = await add_within(driver, caller)
        jobs = await driver.add_many(5)
        told = await take(events, 5)
    caller.commit()
    async with aclosing(await driver.engine.events(["*"], cursor=told[1].cursor)) as events:
        assert [event.ref for event in await take(events, 4)] == [*jobs[2:], slow]


async def test_events_begin_when_those_have_ended_who_wrote_before_they_were_recorded(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):  # B7
    caller = driver.store.caller()
    before = await add_within(driver, caller)
    looks = 0
    has_waited = asyncio.Event()
    look = EventLog._writers

    async def counted(record: EventLog, of: list[str] | None) -> list[str]:
        nonlocal looks
        looks += 1
        if looks > 2:
            has_waited.set()
        return await look(record, of)

    monkeypatch.setattr(EventLog, "_writers", counted)
    beginning = asyncio.create_task(driver.engine.events(["*"]))
    await asyncio.wait_for(has_waited.wait(), DEADLINE)
    assert not beginning.done()
    caller.commit()
    async with aclosing(await asyncio.wait_for(beginning, DEADLINE)) as events:
        claim = await driver.take_one()
        assert claim.ref == before
        await driver.end(claim, Complete())
        assert [event.name for event in await hear(events, until="completed")] == ["active", "completed"]


async def test_a_transaction_that_sees_the_past_is_told_of_all_the_same(driver: Driver, store: PostgresStore):  # B7
    with psycopg.connect(store.url) as caller:
        caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        caller.execute(f"select count(*) from {store.schema}.migration")  # from here on it sees nothing new
        async with aclosing(await driver.engine.events(["*"])) as events:
            (added,) = await driver.engine.enqueue([new_job()], connection=caller)
            caller.commit()
            assert [event.ref for event in await take(events, 1)] == [added.ref]


async def test_an_end_in_a_transaction_that_stayed_open_while_recording_stopped_is_told(driver: Driver):  # B7
    caller = driver.store.caller()
    caller.begin()
    caller.note("open since before the cursor")
    async with aclosing(await driver.engine.events(["*"])) as events:
        ref = await driver.add()
        claim = await driver.take_one()
        (*_, active) = await hear(events, until="active")
    await fall_silent(driver)
    with caller.handle.transaction():  # a savepoint: what is written in it bears another number
        assert not await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle)
    caller.commit()
    async with aclosing(await driver.engine.events(["*"], cursor=active.cursor)) as events:
        assert (await hear(events, until="completed"))[-1].ref == ref


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize("org_id", [None, "o"])
async def test_however_a_job_comes_in_it_is_told_of(store: PostgresStore, count: int, org_id: str | None):  # B7
    engine = PostgresEngine(store.url, schema=store.schema)
    await engine.open()
    try:
        await engine.enqueue([new_job()])
        async with aclosing(await engine.events(["*"])) as events:
            added = []
            for apart in (60, 0):  # relying on what was seen, if it is one; with a notice, too
                engine._notify_throttle._interval = apart
                engine._queue_cache.has_listener = True
                added += await engine.enqueue([new_job(org_id=org_id)] * count)
            assert {event.ref for event in await take(events, 2 * count)} == {each.ref for each in added}
    finally:
        await engine.close()


async def test_what_is_done_by_one_who_may_not_write_the_record_is_recorded(driver: Driver, store: PostgresStore):  # B7
    role = f"worker_{store.schema}"
    with psycopg.connect(store.url) as connection:
        connection.execute(f"create role {role} login")
        connection.execute(f"select {store.schema}.allow_worker('{role}')")
        connection.execute(f"revoke all on {store.schema}.event, {store.schema}.event_log from {role}")
        for function in ("notify_event_listeners", "record_job_event", "record_end_event"):
            connection.execute(f"revoke all on function {store.schema}.{function} from {role}")
    try:
        async with aclosing(await driver.engine.events(["*"])) as events:
            with psycopg.connect(store.url) as connection:
                connection.execute(f"set role {role}")
                connection.execute(f"insert into {store.schema}.job (type) values ('greet')")
            assert [event.name for event in await take(events, 1)] == ["waiting"]
    finally:
        with psycopg.connect(store.url) as connection:
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")


async def test_the_leader_trims_events_each_time_it_looks_for_lost_jobs(store: PostgresStore):  # B7
    store.events, store.max_events = "all", 20
    driver = Driver(store, await store.connect())
    for _ in range(3):
        await driver.engine.enqueue([new_job()] * 120)
        for _ in range(3):  # events of transactions that an earlier look has not seen ended are kept
            await driver.rescue()
            await driver.advance(6)
        with psycopg.connect(store.url) as connection:
            (kept,) = connection.execute(f"select count(*) from {store.schema}.event").fetchone() or (None,)
        assert kept is not None
        assert kept <= 21
