"""Jobs as part of the caller's own transaction: they exist, and end, if and only if it commits (X4, X3)."""

from __future__ import annotations

import asyncio
import json

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Settlement
from onward.errors import InvalidJob, OnwardError
from onward.job import EnqueueStatus, JobRef
from onward.lifecycle import Complete, Fail, State
from tests.conformance.cases import BOOM, Caller, needs
from tests.conformance.driver import Desk, new_job
from tests.conformance.test_signals import listening

pytestmark = needs(Feature.TRANSACTIONS)


@pytest.fixture
def caller(desk: Desk) -> Caller:
    """A connection as the user's program has it."""
    return desk.store.caller()


@pytest.fixture(autouse=True)
async def made(desk: Desk) -> None:
    """The queues that jobs are put into, where they are not made by use."""
    await desk.make("default", "fresh")


OPENINGS = ["begun", "written", "untouched"]
"""How the caller's transaction stands when the job comes: opened by hand, by a write of the caller's, or not yet."""


def opened(caller: Caller, how: str) -> None:
    if how == "begun":
        caller.begin()
    elif how == "written":
        caller.note("before")


@pytest.mark.parametrize("how", OPENINGS)
async def test_a_job_exists_once_the_callers_transaction_commits(desk: Desk, caller: Caller, how: str):  # X4
    opened(caller, how)
    (answer,) = await desk.engine.enqueue([new_job(payload='{"n":1}')], within=caller.handle)
    caller.note("after")
    if how != "untouched":
        assert await desk.engine.get(answer.ref) is None, "nobody else sees it before the commit"
    caller.commit()
    assert (await desk.job(answer.ref)).payload == {"n": 1}
    assert caller.notes()[-1] == "after"
    assert (await desk.take_one()).ref == answer.ref


@pytest.mark.parametrize("how", OPENINGS)
async def test_a_job_vanishes_when_the_callers_transaction_is_rolled_back(desk: Desk, caller: Caller, how: str):  # X4
    opened(caller, how)
    await desk.engine.enqueue([new_job(queue="fresh")] * 3, within=caller.handle)
    caller.note("after")
    caller.rollback()
    assert await desk.jobs() == ()
    assert await desk.take("fresh") == ()
    if desk.engine.capabilities.has(Feature.QUEUES_BY_USE):
        assert await desk.engine.queues() == []
    assert caller.notes() == []
    assert (await desk.enqueue()).is_new


async def test_code_without_an_event_loop_can_enqueue_within(desk: Desk, caller: Caller):  # X4
    caller.begin()
    (kept,) = desk.engine.enqueue_sync([new_job()], within=caller.handle)
    caller.commit()
    caller.begin()
    desk.engine.enqueue_sync([new_job()], within=caller.handle)
    caller.rollback()
    assert [job.ref for job in await desk.jobs()] == [kept.ref]


@needs(Feature.IDEMPOTENCY)
async def test_keys_hold_within_a_transaction_and_vanish_with_it(desk: Desk, caller: Caller):  # X4, O4
    old = await desk.enqueue(idempotency_key="old")
    caller.begin()
    answers = await desk.engine.enqueue(
        [new_job(idempotency_key="old"), new_job(idempotency_key="new"), new_job(idempotency_key="new")],
        within=caller.handle,
    )
    assert [answer.enqueue_status for answer in answers] == [
        EnqueueStatus.SAME_KEY,
        EnqueueStatus.INSERTED,
        EnqueueStatus.SAME_KEY,
    ]
    assert answers[0].ref == old.ref
    caller.rollback()
    assert (await desk.enqueue(idempotency_key="new")).is_new


async def test_a_bad_job_leaves_the_callers_transaction_as_it_was(desk: Desk, caller: Caller):  # X4
    caller.begin()
    caller.note("mine")
    await desk.engine.enqueue([new_job(payload="1")], within=caller.handle)
    with pytest.raises(InvalidJob):
        await desk.engine.enqueue([new_job(payload="2"), new_job(priority=-1)], within=caller.handle)
    caller.commit()
    assert caller.notes() == ["mine"]
    assert [job.payload for job in await desk.jobs()] == [1]


async def test_an_outcome_is_part_of_the_handlers_own_transaction(desk: Desk, caller: Caller):  # X3
    ref = await desk.add()
    claim = await desk.take_one()
    caller.begin()
    caller.note("effect")
    assert await desk.engine.settle([Settlement(claim, Complete())], within=caller.handle) == frozenset()
    caller.rollback()
    assert await desk.state(ref) is State.RUNNING
    assert caller.notes() == []

    caller.begin()
    caller.note("effect")
    assert await desk.engine.settle([Settlement(claim, Complete())], within=caller.handle) == frozenset()
    caller.commit()
    assert await desk.state(ref) is State.COMPLETED
    assert caller.notes() == ["effect"]


@needs(Feature.PUSH)
async def test_a_stage_ends_and_the_next_begins_in_one_transaction_and_its_worker_is_woken(
    desk: Desk, caller: Caller
):  # G4, X4
    """The queue's part of a pipeline: what a stage found goes on if and only if the stage has ended."""
    next_stage = Desk(desk.store, await desk.store.connect())
    ref = await desk.add()
    claim = await desk.take_one()

    async def go_on() -> JobRef:
        caller.begin()
        assert await desk.engine.settle([Settlement(claim, Complete())], within=caller.handle) == frozenset()
        (answer,) = await desk.engine.enqueue([new_job(queue="fresh", payload='{"n":1}')], within=caller.handle)
        return answer.ref

    await go_on()
    caller.rollback()
    assert (await desk.state(ref), await next_stage.take("fresh")) == (State.RUNNING, ())

    async with listening(next_stage.engine, "fresh") as hear:
        following = await go_on()
        caller.commit()
        while not (claims := await next_stage.take("fresh")):
            await hear()
    assert [(one.ref, json.loads(one.payload)) for one in claims] == [(following, {"n": 1})]
    assert await desk.state(ref) is State.COMPLETED


async def test_a_lost_claim_is_told_before_the_handlers_effects_are_kept(desk: Desk, caller: Caller):  # X3
    ref = await desk.add()
    lost = await desk.take_one()
    await desk.cancel(ref)
    caller.begin()
    caller.note("effect")
    assert desk.engine.settle_sync([Settlement(lost, Complete())], within=caller.handle) == {lost.token}
    caller.rollback()
    assert caller.notes() == []
    assert await desk.engine.get(ref) is not None or not desk.engine.capabilities.has(Feature.CANCELLED_STATE)


@needs(Feature.CONCURRENCY)
async def test_settling_within_a_transaction_frees_its_place_only_with_the_commit(desk: Desk, caller: Caller):  # X3
    await desk.set("q", concurrency=1)
    await desk.add_many(2, queue="q")
    claim = await desk.take_one("q")
    caller.begin()
    assert not await desk.engine.settle([Settlement(claim, Fail(BOOM))], within=caller.handle)
    caller.rollback()
    assert await desk.take("q") == ()
    caller.begin()
    assert not await desk.engine.settle([Settlement(claim, Fail(BOOM))], within=caller.handle)
    caller.commit()
    assert len(await desk.take("q")) == 1


async def test_a_mixed_batch_within_a_transaction_loses_only_what_is_lost(desk: Desk, caller: Caller):  # X3
    refs = await desk.add_many(3)
    claims = await desk.take(slots=3)
    await desk.cancel(refs[1])
    caller.begin()
    settlements = [Settlement(claim, Complete()) for claim in claims]
    assert await desk.engine.settle(settlements, within=caller.handle) == {claims[1].token}
    caller.commit()
    assert [await desk.state(refs[index]) for index in (0, 2)] == [State.COMPLETED] * 2


async def test_a_connection_to_another_database_is_refused(desk: Desk):  # X4
    stranger = desk.store.stranger()
    claim_of = await desk.add()
    claim = await desk.take_one()
    with pytest.raises(OnwardError):
        await desk.engine.enqueue([new_job()], within=stranger.handle)
    with pytest.raises(OnwardError):
        desk.engine.enqueue_sync([new_job()], within=stranger.handle)
    with pytest.raises(OnwardError):
        await desk.engine.settle([Settlement(claim, Complete())], within=stranger.handle)
    assert await desk.state(claim_of) is State.RUNNING
    assert len(await desk.jobs()) == 1


@pytest.mark.parametrize("within", [object(), "sqlite:///jobs.db", 7], ids=["object", "url", "number"])
async def test_what_is_no_connection_is_refused(desk: Desk, within: object):  # X4
    with pytest.raises(OnwardError):
        await desk.engine.enqueue([new_job()], within=within)
    assert await desk.jobs() == ()


async def test_the_callers_connection_stays_as_the_caller_had_it(desk: Desk, caller: Caller):  # X4
    for _ in range(2):
        caller.begin()
        await desk.engine.enqueue([new_job()], within=caller.handle)
        caller.note("kept")
        caller.commit()
    assert caller.notes() == ["kept", "kept"]
    assert len(await desk.taken()) == 2


@needs(Feature.PUSH)
async def test_a_committed_job_wakes_whoever_waits_for_work(desk: Desk, caller: Caller):  # X4
    listening = desk.engine.signals(["*"])
    waiting = asyncio.ensure_future(anext(listening))
    await asyncio.sleep(0)
    caller.begin()
    await desk.engine.enqueue([new_job()], within=caller.handle)
    caller.commit()
    async with asyncio.timeout(10):
        await waiting
    await listening.aclose()  # type: ignore[attr-defined]
