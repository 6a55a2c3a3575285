"""Jobs as part of the caller's own transaction: they exist, and end, if and only if it commits (X4, X3)."""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Settlement
from onward.errors import InvalidValue, OnwardError, WrongIsolation
from onward.job import EnqueueStatus, JobRef
from onward.lifecycle import Complete, Fail, JobStatus
from tests.conformance.cases import BOOM, Caller, needs
from tests.conformance.driver import Driver, new_job
from tests.conformance.test_signals import listening

pytestmark = needs(Feature.TRANSACTIONS)


@pytest.fixture
def caller(driver: Driver) -> Caller:
    """A connection as the user's program has it."""
    return driver.store.caller()


@pytest.fixture(autouse=True)
async def made(driver: Driver) -> None:
    """The queues that jobs are put into, where they are not made by use."""
    await driver.make("default", "fresh")


OPENINGS = ["begun", "written", "untouched"]
"""How the caller's transaction stands when the job comes: opened by hand, by a write of the caller's, or not yet."""


def opened(caller: Caller, how: str) -> None:
    if how == "begun":
        caller.begin()
    elif how == "written":
        caller.note("before")


@pytest.mark.parametrize("how", OPENINGS)
async def test_a_job_exists_once_the_callers_transaction_commits(driver: Driver, caller: Caller, how: str):  # X4
    opened(caller, how)
    (answer,) = await driver.engine.enqueue([new_job(payload='{"n":1}')], connection=caller.handle)
    caller.note("after")
    if how != "untouched":
        assert await driver.engine.get(answer.ref) is None, "nobody else sees it before the commit"
    caller.commit()
    assert (await driver.job(answer.ref)).payload == {"n": 1}
    assert caller.notes()[-1] == "after"
    assert (await driver.take_one()).ref == answer.ref


@pytest.mark.parametrize("how", OPENINGS)
async def test_a_job_vanishes_when_the_callers_transaction_is_rolled_back(
    driver: Driver, caller: Caller, how: str
):  # X4
    opened(caller, how)
    await driver.engine.enqueue([new_job(queue="fresh")] * 3, connection=caller.handle)
    caller.note("after")
    caller.rollback()
    assert await driver.jobs() == ()
    assert await driver.take("fresh") == ()
    if driver.engine.capabilities.has(Feature.QUEUES_BY_USE):
        assert await driver.engine.queues() == []
    assert caller.notes() == []
    assert (await driver.enqueue()).is_new


async def test_code_without_an_event_loop_can_enqueue_within(driver: Driver, caller: Caller):  # X4
    caller.begin()
    (kept,) = driver.engine.enqueue_sync([new_job()], connection=caller.handle)
    caller.commit()
    caller.begin()
    driver.engine.enqueue_sync([new_job()], connection=caller.handle)
    caller.rollback()
    assert [job.ref for job in await driver.jobs()] == [kept.ref]


@needs(Feature.IDEMPOTENCY)
async def test_keys_hold_within_a_transaction_and_vanish_with_it(driver: Driver, caller: Caller):  # X4, O4
    old = await driver.enqueue(idempotency_key="old")
    caller.begin()
    answers = await driver.engine.enqueue(
        [new_job(idempotency_key="old"), new_job(idempotency_key="new"), new_job(idempotency_key="new")],
        connection=caller.handle,
    )
    assert [answer.enqueue_status for answer in answers] == [
        EnqueueStatus.SAME_KEY,
        EnqueueStatus.INSERTED,
        EnqueueStatus.SAME_KEY,
    ]
    assert answers[0].ref == old.ref
    caller.rollback()
    assert (await driver.enqueue(idempotency_key="new")).is_new


async def test_a_bad_job_leaves_the_callers_transaction_as_it_was(driver: Driver, caller: Caller):  # X4
    caller.begin()
    caller.note("mine")
    await driver.engine.enqueue([new_job(payload="1")], connection=caller.handle)
    with pytest.raises(InvalidValue):
        await driver.engine.enqueue([new_job(payload="2"), new_job(priority=-1)], connection=caller.handle)
    caller.commit()
    assert caller.notes() == ["mine"]
    assert [job.payload for job in await driver.jobs()] == [1]


async def test_an_outcome_is_part_of_the_handlers_own_transaction(driver: Driver, caller: Caller):  # X3
    ref = await driver.add()
    claim = await driver.take_one()
    caller.begin()
    caller.note("effect")
    assert await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle) == frozenset()
    caller.rollback()
    assert await driver.state(ref) is JobStatus.RUNNING
    assert caller.notes() == []

    caller.begin()
    caller.note("effect")
    assert await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle) == frozenset()
    caller.commit()
    assert await driver.state(ref) is JobStatus.COMPLETED
    assert caller.notes() == ["effect"]


@needs(Feature.PUSH)
async def test_a_stage_ends_and_the_next_begins_in_one_transaction_and_its_worker_is_woken(
    driver: Driver, caller: Caller
):  # G4, X4
    """The queue's part of a pipeline: what a stage found goes on if and only if the stage has ended."""
    next_stage = Driver(driver.store, await driver.store.connect())
    ref = await driver.add()
    claim = await driver.take_one()

    async def go_on() -> JobRef:
        caller.begin()
        assert await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle) == frozenset()
        (answer,) = await driver.engine.enqueue([new_job(queue="fresh", payload='{"n":1}')], connection=caller.handle)
        return answer.ref

    await go_on()
    caller.rollback()
    assert (await driver.state(ref), await next_stage.take("fresh")) == (JobStatus.RUNNING, ())

    async with listening(next_stage.engine, "fresh") as hear:
        following = await go_on()
        caller.commit()
        while not (claims := await next_stage.take("fresh")):
            await hear()
    assert [(one.ref, json.loads(one.payload)) for one in claims] == [(following, {"n": 1})]
    assert await driver.state(ref) is JobStatus.COMPLETED


async def test_a_lost_claim_is_told_before_the_handlers_effects_are_kept(driver: Driver, caller: Caller):  # X3
    ref = await driver.add()
    lost = await driver.take_one()
    await driver.cancel(ref)
    caller.begin()
    caller.note("effect")
    assert driver.engine.settle_sync([Settlement(lost, Complete())], connection=caller.handle) == {lost.token}
    caller.rollback()
    assert caller.notes() == []
    assert await driver.engine.get(ref) is not None or not driver.engine.capabilities.has(Feature.CANCELLED_STATE)


@needs(Feature.CONCURRENCY)
async def test_settling_within_a_transaction_frees_its_place_only_with_the_commit(driver: Driver, caller: Caller):  # X3
    await driver.set("q", global_concurrency=1)
    await driver.add_many(2, queue="q")
    claim = await driver.take_one("q")
    caller.begin()
    assert not await driver.engine.settle([Settlement(claim, Fail(BOOM))], connection=caller.handle)
    caller.rollback()
    assert await driver.take("q") == ()
    caller.begin()
    assert not await driver.engine.settle([Settlement(claim, Fail(BOOM))], connection=caller.handle)
    caller.commit()
    assert len(await driver.take("q")) == 1


async def test_a_mixed_batch_within_a_transaction_loses_only_what_is_lost(driver: Driver, caller: Caller):  # X3
    refs = await driver.add_many(3)
    claims = await driver.take(slots=3)
    await driver.cancel(refs[1])
    caller.begin()
    settlements = [Settlement(claim, Complete()) for claim in claims]
    assert await driver.engine.settle(settlements, connection=caller.handle) == {claims[1].token}
    caller.commit()
    assert [await driver.state(refs[index]) for index in (0, 2)] == [JobStatus.COMPLETED] * 2


async def test_a_connection_to_another_database_is_refused(driver: Driver):  # X4
    stranger = driver.store.stranger()
    claim_of = await driver.add()
    claim = await driver.take_one()
    with pytest.raises(OnwardError):
        await driver.engine.enqueue([new_job()], connection=stranger.handle)
    with pytest.raises(OnwardError):
        driver.engine.enqueue_sync([new_job()], connection=stranger.handle)
    with pytest.raises(OnwardError):
        await driver.engine.settle([Settlement(claim, Complete())], connection=stranger.handle)
    assert await driver.state(claim_of) is JobStatus.RUNNING
    assert len(await driver.jobs()) == 1


@pytest.mark.parametrize("connection", [object(), "sqlite:///jobs.db", 7], ids=["object", "url", "number"])
async def test_what_is_no_connection_is_refused(driver: Driver, connection: object):  # X4
    with pytest.raises(OnwardError):
        await driver.engine.enqueue([new_job()], connection=connection)
    assert await driver.jobs() == ()


async def test_the_callers_connection_stays_as_the_caller_had_it(driver: Driver, caller: Caller):  # X4
    for _ in range(2):
        caller.begin()
        await driver.engine.enqueue([new_job()], connection=caller.handle)
        caller.note("kept")
        caller.commit()
    assert caller.notes() == ["kept", "kept"]
    assert len(await driver.taken()) == 2


@needs(Feature.PUSH)
async def test_a_committed_job_wakes_whoever_waits_for_work(driver: Driver, caller: Caller):  # X4
    listening = driver.engine.signals(["*"])
    waiting = asyncio.ensure_future(anext(listening))
    await asyncio.sleep(0)
    caller.begin()
    await driver.engine.enqueue([new_job()], connection=caller.handle)
    caller.commit()
    async with asyncio.timeout(10):
        await waiting
    await listening.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_job_is_not_completed_in_a_transaction_that_keeps_its_snapshot(
    driver: Driver, caller: Caller, level: str
):  # X3
    ref = await driver.add()
    claim = await driver.take_one()
    if not isinstance(caller.handle, psycopg.Connection):  # SQLite: nobody has written since a writer's snapshot
        caller.note("before")
        assert not await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle)
        caller.commit()
        assert await driver.state(ref) is JobStatus.COMPLETED
        return
    caller.handle.execute(f"set transaction isolation level {level}")
    caller.note("before")
    with pytest.raises(WrongIsolation, match=level.upper()):
        await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle)
    with pytest.raises(WrongIsolation, match=level.upper()):
        driver.engine.settle_sync([Settlement(claim, Complete())], connection=caller.handle)
    caller.commit()
    assert caller.notes() == ["before"]
    assert await driver.state(ref) is JobStatus.RUNNING
    assert await driver.end(claim, Complete())
