"""Batches beside a transaction that somebody keeps open: it holds up what it has to do with, and nothing else.

A caller's transaction that has added a job to a batch holds the batch's row until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onward.batches.values import BatchInfo, Callbacks, NewBatch
from onward.engine.values import ClaimRequest, Settlement
from onward.engines.postgres import batch_updater, batches
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.maintenance import NextDue
from onward.errors import StoreBusy
from onward.job import JobRef, NewJob, OnDependencyFailure
from onward.lifecycle import Complete, Fail, JobStatus
from onward.pg.caller_transaction import on_psycopg
from onward.pg.plan_runner import run
from tests.conformance.cases import BOOM
from tests.conformance.driver import LEASE, Driver, new_job
from tests.conformance.postgres_case import PostgresStore
from tests.worker.harness import eventually, in_virtual_time

SOON = 5.0
"""Seconds: longer than a step waits for a batch, and much shorter than anybody keeps a transaction open here."""


@pytest.fixture
def caller(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A connection as a user's program has it."""
    with psycopg.connect(store.url) as connection:
        yield connection
        connection.rollback()


async def put(driver: Driver, name: str, *jobs: NewJob, **fields: Any) -> list[JobRef]:
    return [one.ref for one in await driver.engine.save_batch(NewBatch(name=name, **fields), jobs)]


async def batch_info(driver: Driver, name: str) -> BatchInfo:
    (found,) = (await driver.engine.batches(names=[name])).items
    return found


def advance(driver: Driver, store: PostgresStore) -> bool | None:
    """Act on what is new as a worker does; answer whether there may be more to do."""
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    with psycopg.connect(store.url) as connection:
        connection.execute("set statement_timeout = '5s'")
        more, _ = run(batches.advance(engine.schema), on_psycopg(connection))
        return more


async def end_all(driver: Driver, outcome: Any = Complete()) -> None:  # noqa: B008 - a value that cannot change
    await driver.end_all(await driver.take("*", slots=100), outcome)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_a_batch_that_a_caller_adds_to_holds_up_neither_the_leader_nor_other_batches(
    driver: Driver, store: PostgresStore, caller: psycopg.Connection[Any], commits: bool
):  # O6, X4
    names = ["a", "held", "z"]
    for name in names:
        await put(driver, name, new_job(batch=name), sealed=True)
    await end_all(driver)
    await driver.engine.enqueue([new_job(batch="held")], connection=caller)
    term = await driver.lead()
    async with asyncio.timeout(SOON):
        batch = await driver.engine.promote(term)
    assert not batch.more  # or the leader would ask again and again, for as long as the caller likes
    async with asyncio.timeout(SOON):
        term = await driver.engine.elect(term.leader_id, lease=LEASE, current_term=term) or pytest.fail(
            "it leads no more"
        )
    assert [(await batch_info(driver, name)).completed for name in names] == [1, 0, 1]
    assert [(await batch_info(driver, name)).is_finished for name in names] == [True, False, True]
    caller.commit() if commits else caller.rollback()
    await driver.engine.promote(term)
    held = await batch_info(driver, "held")
    assert (held.total, held.completed, held.is_finished) == (1 + commits, 1, not commits)


async def test_however_much_is_new_of_a_batch_that_is_held_others_have_their_turn(
    driver: Driver, store: PostgresStore, caller: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batches, "_MAX_ROWS", 5)
    await put(driver, "held", *[new_job(batch="held")] * 20)
    await put(driver, "z", new_job(batch="z", queue="z"))
    for claim in [*await driver.take(slots=20), await driver.take_one("z")]:
        await driver.end(claim, Complete())
    await driver.engine.enqueue([new_job(batch="held")], connection=caller)
    assert advance(driver, store)
    assert (await batch_info(driver, "z")).completed == 1
    assert advance(driver, store) is None
    caller.rollback()
    while advance(driver, store):
        pass
    assert (await batch_info(driver, "held")).completed == 20


async def test_a_job_that_somebody_writes_is_told_later_and_once(
    driver: Driver, store: PostgresStore, caller: psycopg.Connection[Any]
):  # O1
    waits = new_job(batch="b", after=(0, 1))
    _, _, first, second = await put(driver, "b", new_job(batch="b"), new_job(batch="b"), waits, waits)
    await end_all(driver)
    caller.execute(f"select from {store.schema}.job where id = %s for update", [first.id])
    assert advance(driver, store) is None
    assert [await driver.state(ref) for ref in (first, second)] == [JobStatus.BLOCKED, JobStatus.PENDING]
    assert advance(driver, store) is None
    caller.rollback()
    assert advance(driver, store) is False
    assert [await driver.state(ref) for ref in (first, second)] == [JobStatus.PENDING, JobStatus.PENDING]
    assert (await batch_info(driver, "b")).completed == 2
    with psycopg.connect(store.url) as connection:
        assert connection.execute(f"select pending_dependencies from {store.schema}.job").fetchall() == [(0,), (0,)]


async def test_a_job_that_is_gone_is_not_waited_for(driver: Driver, store: PostgresStore):
    first, second = await put(driver, "b", new_job(batch="b"), new_job(batch="b", after=(0,)))
    await driver.cancel(second)
    await end_all(driver)
    while advance(driver, store):
        pass
    assert advance(driver, store) is False
    assert await driver.state(first) is JobStatus.COMPLETED


async def test_a_batch_that_stops_takes_back_what_nobody_writes_and_the_rest_later(
    driver: Driver, store: PostgresStore, caller: psycopg.Connection[Any]
):
    held, other = await put(driver, "b", *[new_job(batch="b")] * 2)
    await put(driver, "b", stopped=True)
    caller.execute(f"select from {store.schema}.job where id = %s for update", [held.id])
    assert advance(driver, store)
    assert advance(driver, store) is None
    assert [await driver.state(ref) for ref in (held, other)] == [JobStatus.PENDING, JobStatus.CANCELLED]
    caller.rollback()
    while advance(driver, store):
        pass
    assert [await driver.state(ref) for ref in (held, other)] == [JobStatus.CANCELLED, JobStatus.CANCELLED]
    assert (await batch_info(driver, "b")).cancelled == 2


@pytest.mark.parametrize("policy", [OnDependencyFailure.SKIP, OnDependencyFailure.CANCEL])
async def test_what_is_to_be_cancelled_and_is_being_written_is_cancelled_later(
    driver: Driver, store: PostgresStore, caller: psycopg.Connection[Any], policy: OnDependencyFailure
):
    _, waits = await put(
        driver, "b", new_job(batch="b"), new_job(batch="b", after=(0,), on_dependency_failure=policy), sealed=True
    )
    await end_all(driver, Fail(BOOM))
    caller.execute(f"select from {store.schema}.job where id = %s for update", [waits.id])
    assert advance(driver, store) is None
    caller.rollback()
    while advance(driver, store):
        pass
    assert await driver.state(waits) is JobStatus.CANCELLED
    assert (await batch_info(driver, "b")).is_finished


async def test_a_callback_whose_key_a_caller_has_just_used_does_not_hold_up_the_leader(
    driver: Driver, caller: psycopg.Connection[Any]
):  # O6
    called = NewJob(type="called", queue="calls", idempotency_key="k")
    await put(driver, "b", sealed=True, callbacks=Callbacks(on_finished=called))
    await driver.engine.enqueue([called], connection=caller)
    term = await driver.lead()
    async with asyncio.timeout(SOON):
        with pytest.raises(StoreBusy):
            await driver.engine.promote(term)
    caller.rollback()
    await driver.engine.promote(term)
    assert (await batch_info(driver, "b")).is_finished
    assert len(await driver.taken("calls")) == 1


async def test_a_batch_that_somebody_has_for_a_moment_is_waited_for(
    driver: Driver, store: PostgresStore, caller: psycopg.Connection[Any]
):
    """Where many add to a batch, one after the other, it is hardly ever free."""
    await put(driver, "b", new_job(batch="b"))
    await end_all(driver)
    await driver.engine.enqueue([new_job(batch="b")], connection=caller)
    for _ in range(20):  # on a machine that is busy, a moment may be too short
        acting = asyncio.create_task(asyncio.to_thread(advance, driver, store))
        await asyncio.wait([acting], timeout=0.03)
        caller.commit()
        if await acting is False:
            break
        await driver.engine.enqueue([new_job(batch="b")], connection=caller)
    assert (await batch_info(driver, "b")).completed == 1


def is_waiting(store: PostgresStore) -> bool:
    with psycopg.connect(store.url) as connection:
        waiting = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query ~ %s)"
        ((found,),) = connection.execute(waiting, [store.schema]).fetchall()
        return bool(found)


# Coming back


@pytest.fixture
async def engine_by_the_clock(store: PostgresStore) -> AsyncIterator[PostgresEngine]:
    """An engine that acts by itself: by the database's own clock."""
    engine = PostgresEngine(store.url, schema=store.schema)
    await engine.open()
    yield engine
    await engine.close()


def add(engine: PostgresEngine, caller: psycopg.Connection[Any]) -> None:
    """Add a job within the caller's transaction; on a thread, since the engine may be at the batch on this one."""
    engine.enqueue_sync([NewJob(type="t", batch="b")], connection=caller)


async def test_the_process_that_ended_a_job_comes_back_soon_after_the_caller_is_done(
    engine_by_the_clock: PostgresEngine, caller: psycopg.Connection[Any]
):
    engine = engine_by_the_clock
    await engine.save_batch(NewBatch(name="b", sealed=True), [NewJob(type="t", batch="b")])
    (claim,) = (await engine.claim(ClaimRequest(worker_id="w", slots=1))).claims
    await asyncio.to_thread(add, engine, caller)
    await engine.settle([Settlement(claim, Complete())])
    await asyncio.sleep(0.3)
    assert not (await engine.batches()).items[0].completed
    caller.rollback()  # nobody is told of it

    async def is_finished() -> bool:
        return (await engine.batches()).items[0].is_finished

    await eventually(is_finished)


def test_what_is_held_is_asked_for_now_and_then():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        began, steps = loop.time(), list[float]()
        answers: list[bool | None] = [True, None, None, False]

        async def step() -> bool | None:
            steps.append(round(loop.time() - began, 3))
            if len(steps) == 5:
                raise StoreBusy("somebody holds a lock")
            return answers.pop(0) if answers else False

        progress = batch_updater.BatchUpdater(step)
        progress.request(immediately=True)
        await asyncio.sleep(3)
        progress.request(immediately=True)
        await asyncio.sleep(3)
        await progress.close()
        return steps

    assert in_virtual_time(main) == pytest.approx([0, 0, 0.5, 1.0, 3.0, 3.5])


# Waiting for others


async def test_a_job_is_added_after_one_that_is_being_written(
    driver: Driver, store: PostgresStore, caller: psycopg.Connection[Any]
):
    """A claim, a sign of life or a report gives the parent's row another version."""
    (parent,) = await put(driver, "b", new_job(batch="b"))
    caller.execute(f"update {store.schema}.job set progress = 7 where id = %s", [parent.id])
    (child,) = await driver.engine.enqueue([new_job(batch="b", after=(parent.id,))])
    caller.commit()
    await driver.promote()
    assert await driver.state(child.ref) is JobStatus.BLOCKED
    await driver.end(await driver.take_one(), Complete())
    await driver.promote()
    assert await driver.state(child.ref) is JobStatus.PENDING


async def test_the_leader_comes_back_soon_after_the_caller_is_done(
    driver: Driver,
    engine_by_the_clock: PostgresEngine,
    caller: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
):
    """As one that hears of everything, and so does not look again before something is told."""
    monkeypatch.setattr(PostgresEngine, "_is_listening", True)
    monkeypatch.setattr(NextDue, "TTL", timedelta(hours=1))
    engine = engine_by_the_clock
    await engine.save_batch(NewBatch(name="b", sealed=True), [NewJob(type="t", batch="b")])
    (claim,) = (await engine.claim(ClaimRequest(worker_id="w", slots=1))).claims
    await asyncio.to_thread(add, engine, caller)
    monkeypatch.setattr(engine._batch_updater, "request", lambda **_: None)  # the process that ends the job dies
    await engine.settle([Settlement(claim, Complete())])
    term = await engine.elect("leader", lease=LEASE)
    assert term is not None

    async def is_finished() -> bool:
        batch = await engine.promote(term)
        assert not batch.more
        await asyncio.sleep(min(0.05, batch.next_in or 0.05))
        return (await engine.batches()).items[0].is_finished

    assert not await is_finished()
    caller.rollback()
    await eventually(is_finished)
