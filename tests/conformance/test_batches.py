"""Batches and flows: counted exactly, called back once, and no job starts before those that it waits for have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from onward.batches.values import BatchInfo, Callbacks, Link, NewBatch
from onward.engine.capabilities import Feature
from onward.engine.values import JobFilter, Settlement
from onward.errors import InvalidJob
from onward.job import JobRef, NewJob, OnFailure, UniformJobs
from onward.lifecycle import Bury, Cancel, Complete, Fail, Outcome, Release, Retry, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import PAST_LEASE, Desk, new_job

pytestmark = needs(Feature.BATCHES)

CALLBACKS = Callbacks(
    on_success=NewJob(type="succeeded", queue="calls", payload='{"n":1}'),
    on_failure=NewJob(type="failed", queue="calls"),
    on_finished=NewJob(type="finished", queue="calls"),
)


def member(**fields: Any) -> NewJob:
    return new_job(batch="import", **fields)


async def put(desk: Desk, *jobs: NewJob, sealed: bool = True, **fields: Any) -> list[JobRef]:
    batch = NewBatch(name="import", sealed=sealed, **fields)
    return [one.ref for one in await desk.engine.save_batch(batch, jobs)]


async def info(desk: Desk, name: str = "import") -> BatchInfo:
    await desk.promote()
    (found,) = (await desk.engine.batches(names=[name])).items
    return found


async def counts(desk: Desk) -> tuple[int, int, int, int]:
    batch = await info(desk)
    return batch.total, batch.completed, batch.failed, batch.cancelled


async def calls(desk: Desk) -> list[str]:
    await desk.promote()
    found = await desk.engine.find(JobFilter(queues=("calls",)), limit=100, newest_first=False)
    return sorted(job.type for job in found.items)


async def states(desk: Desk, refs: Sequence[JobRef]) -> list[State]:
    await desk.promote()
    return [await desk.state(ref) for ref in refs]


async def run(desk: Desk, *refs: JobRef, outcome: Any = Complete()) -> None:  # noqa: B008 - a value that cannot change
    """Take what is ready, which must be these and no others, and end it."""
    await desk.promote()
    claims = await desk.take(slots=1000)
    assert {claim.ref for claim in claims} == set(refs)
    await desk.end_all(claims, outcome)


# Counting


async def test_a_batch_counts_how_its_jobs_end(desk: Desk):
    await put(desk, *[member()] * 5, new_job(batch="import", delay=timedelta(hours=1)))
    assert await counts(desk) == (6, 0, 0, 0)
    claims = await desk.take(slots=5)
    outcomes: list[Outcome] = [Complete("1"), Complete(), Fail(BOOM), Bury(BOOM), Cancel("no")]
    await desk.engine.settle([Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)])
    assert await counts(desk) == (6, 2, 2, 1)
    assert not (await info(desk)).is_finished
    assert (await info(desk)).progress == 83  # P7


async def test_a_run_that_does_not_end_the_job_is_not_counted(desk: Desk):
    await put(desk, *[member()] * 3)
    claims = await desk.take(slots=3)
    await desk.end(claims[0], Retry(timedelta(0), BOOM))
    await desk.end(claims[1], Release())
    assert await counts(desk) == (3, 0, 0, 0)


async def test_an_outcome_from_a_lost_claim_is_not_counted(desk: Desk):
    # X3
    await put(desk, member())
    stale = await desk.take_one()
    await desk.advance(PAST_LEASE)
    await desk.rescue()
    fresh = await desk.take_one(alone=True)
    assert not await desk.end(stale, Complete())
    assert await counts(desk) == (1, 0, 0, 0)
    await desk.end(fresh, Complete())
    assert await counts(desk) == (1, 1, 0, 0)


async def test_jobs_that_end_without_a_worker_are_counted(desk: Desk):
    now = desk.now
    cancelled, deleted, _, _ = await put(
        desk, member(), member(), member(start_by=now + timedelta(seconds=5)), member(queue="deadly")
    )
    await desk.engine.cancel(JobFilter(refs=(cancelled,)))
    await desk.engine.delete(JobFilter(refs=(deleted,)))
    await desk.lose(await desk.take_one("deadly"))
    await desk.lose(await desk.take_one("deadly", alone=True), max_crashes=1)
    assert await counts(desk) == (4, 0, 1, 3)
    assert (await info(desk)).is_finished


async def test_jobs_alike_are_counted_in(desk: Desk):
    await desk.engine.save_batch(NewBatch(name="import"), UniformJobs(member(), ["{}"] * 700))
    await desk.engine.enqueue(UniformJobs(member(), ["{}"] * 400))
    assert await counts(desk) == (1100, 0, 0, 0)


async def test_a_job_that_stands_for_another_is_counted_once(desk: Desk):
    # O4, H5
    first = await put(desk, member(idempotency_key="k"), member(dedupe_key="d"))
    again = await put(desk, member(idempotency_key="k"), member(dedupe_key="d"), member())
    assert again[:2] == first
    assert await counts(desk) == (3, 0, 0, 0)


async def test_a_replayed_job_is_counted_anew(desk: Desk):
    (ref,) = await put(desk, member(), callbacks=CALLBACKS)
    await run(desk, ref, outcome=Fail(BOOM))
    assert await counts(desk) == (1, 0, 1, 0)
    await desk.engine.replay(JobFilter(refs=(ref,)))
    assert await counts(desk) == (1, 0, 0, 0)
    await run(desk, ref)
    assert await counts(desk) == (1, 1, 0, 0)
    assert await calls(desk) == ["failed", "finished"]


async def test_jobs_are_found_counted_and_cancelled_by_their_batch(desk: Desk):
    mine = await put(desk, member(), member(queue="other"))
    await desk.add()
    found = await desk.engine.find(JobFilter(batch="import"))
    assert {job.ref for job in found.items} == set(mine)
    assert {job.batch for job in found.items} == {"import"}
    assert {change.ref for change in await desk.engine.cancel(JobFilter(batch="import"))} == set(mine)
    assert len(await desk.taken("*")) == 1


async def test_a_pruned_job_stays_counted(desk: Desk):
    (ref,) = await put(desk, member(), sealed=False)
    await run(desk, ref)
    await desk.advance(timedelta(days=8))
    await desk.prune()
    assert await desk.engine.get(ref) is None
    assert await counts(desk) == (1, 1, 0, 0)


# Finishing


async def test_a_batch_finishes_when_all_have_ended_and_it_is_sealed(desk: Desk):
    (first,) = await put(desk, member(), sealed=False)
    await run(desk, first)
    assert not (await info(desk)).is_finished
    (second,) = await put(desk, member())
    assert not (await info(desk)).is_finished
    await run(desk, second)
    batch = await info(desk)
    assert (batch.finished_at, batch.progress) == (desk.now, 100)


async def test_sealing_a_batch_that_has_ended_finishes_it(desk: Desk):
    (ref,) = await put(desk, member(), sealed=False, callbacks=CALLBACKS)
    await run(desk, ref)
    assert await calls(desk) == []
    await put(desk)
    assert (await info(desk)).is_finished
    assert await calls(desk) == ["finished", "succeeded"]


async def test_an_empty_batch_finishes_at_once(desk: Desk):
    await put(desk, callbacks=CALLBACKS)
    assert (await info(desk)).progress == 100
    assert await calls(desk) == ["finished", "succeeded"]


async def test_a_finished_batch_takes_nothing_more(desk: Desk):
    await put(desk)
    await desk.promote()
    with pytest.raises(InvalidJob, match="has finished"):
        await put(desk, member())
    with pytest.raises(InvalidJob, match="batch"):
        await desk.engine.enqueue([member()])
    assert await counts(desk) == (0, 0, 0, 0)
    assert await desk.taken() == []


async def test_a_job_of_no_known_batch_is_refused_and_its_neighbours_with_it(desk: Desk):
    with pytest.raises(InvalidJob, match="batch"):
        await desk.engine.enqueue([new_job(), member()])
    assert await desk.taken() == []


async def test_batches_are_listed_from_the_newest_on(desk: Desk):
    for name in "abc":
        await desk.engine.save_batch(NewBatch(name=name, queue=f"q/{name}"))
    page = await desk.engine.batches(limit=2)
    assert [(one.name, one.queue) for one in page.items] == [("c", "q/c"), ("b", "q/b")]
    assert [one.name for one in (await desk.engine.batches(limit=2, after=page.after)).items] == ["a"]


async def test_a_batch_is_forgotten_a_month_after_it_has_finished(desk: Desk):  # P9
    a, b = await put(desk, member(), member(after=(0,)))
    await desk.engine.save_batch(NewBatch(name="open"))
    await run(desk, a)
    await run(desk, b)
    await desk.promote()
    await desk.advance(timedelta(days=29))
    await desk.prune()
    assert {one.name for one in (await desk.engine.batches()).items} == {"import", "open"}
    await desk.advance(timedelta(days=1))
    await desk.prune()
    assert {one.name for one in (await desk.engine.batches()).items} == {"open"}
    assert await desk.engine.links("import") == []


async def test_a_finished_batch_can_be_dropped_and_its_name_used_again(desk: Desk):
    a, b = await put(desk, member(), member(after=(0,)))
    assert not await desk.engine.delete_batch("import")
    await run(desk, a)
    await run(desk, b)
    await desk.promote()
    assert await desk.engine.delete_batch("import")
    assert (await desk.engine.batches()).items == ()
    assert await desk.engine.links("import") == []
    assert await desk.state(a) is State.COMPLETED
    await put(desk, sealed=False)
    assert await counts(desk) == (0, 0, 0, 0)


# Callbacks


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Complete(), ["finished", "succeeded"]),
        (Fail(BOOM), ["failed", "finished"]),
        (Bury(BOOM), ["failed", "finished"]),
        (Cancel("no"), ["finished"]),
    ],
)
async def test_callbacks_say_how_a_batch_went(desk: Desk, outcome: Any, expected: list[str]):
    await put(desk, *[member()] * 3, callbacks=CALLBACKS)
    first, *others = await desk.take(slots=3)
    await desk.end(first, outcome)
    assert await calls(desk) == (["failed"] if "failed" in expected else [])  # at the first failure, not at the end
    await desk.end_all(others, Complete())
    assert await calls(desk) == expected


async def test_a_batch_that_is_open_still_tells_of_its_first_failure_and_does_not_finish(desk: Desk):
    (ref,) = await put(desk, member(), sealed=False, callbacks=CALLBACKS)
    await run(desk, ref, outcome=Fail(BOOM))
    assert await calls(desk) == ["failed"]
    assert not (await info(desk)).is_finished


async def test_a_callback_is_the_job_that_was_given(desk: Desk):
    given = NewJob(type="done", queue="calls", payload='{"batch":"import"}', priority=3, org_id="acme", max_attempts=2)
    await put(desk, callbacks=Callbacks(on_finished=given))
    await desk.promote()
    (claim,) = await desk.take("calls")
    assert (claim.type, claim.payload, claim.priority, claim.org_id, claim.max_attempts) == (
        "done", '{"batch":"import"}', 3, "acme", 2,
    )  # fmt: skip


async def test_each_callback_comes_once_however_many_end_jobs_at_once(desk: Desk):
    await put(desk, *[member()] * 60, callbacks=CALLBACKS)
    handles = [await desk.store.connect() for _ in range(4)]
    claims = await desk.take(slots=60)
    outcomes = [Fail(BOOM) if number % 7 == 0 else Complete() for number in range(60)]

    async def end(place: int) -> None:
        for number in range(place, 60, 4):
            await handles[place].settle([Settlement(claims[number], outcomes[number])])

    await asyncio.gather(*(end(place) for place in range(4)))
    assert await counts(desk) == (60, 51, 9, 0)
    assert await calls(desk) == ["failed", "finished"]


async def test_callbacks_can_be_given_later_and_stay_if_they_are_not(desk: Desk):
    await put(desk, sealed=False, callbacks=Callbacks(on_success=CALLBACKS.on_success))
    await put(desk, sealed=False, callbacks=Callbacks(on_finished=CALLBACKS.on_finished))
    await put(desk)
    assert await calls(desk) == ["finished", "succeeded"]


@needs(Feature.TRANSACTIONS)
async def test_a_batch_is_made_within_the_callers_transaction(desk: Desk):
    # X4
    caller = desk.store.caller()
    caller.begin()
    await desk.engine.save_batch(NewBatch(name="import"), [member()], within=caller.handle)
    caller.rollback()
    assert (await desk.engine.batches()).items == ()
    assert await desk.taken() == []
    caller.begin()
    await desk.engine.save_batch(NewBatch(name="import"), [member()], within=caller.handle)
    caller.commit()
    assert await counts(desk) == (1, 0, 0, 0)


@needs(Feature.TRANSACTIONS)
async def test_an_end_within_the_callers_transaction_is_counted_with_it(desk: Desk):
    first, second = await put(desk, member(), member(after=(0,)), callbacks=CALLBACKS)
    claim = await desk.take_one()
    caller = desk.store.caller()
    caller.begin()
    await desk.engine.settle([Settlement(claim, Complete())], within=caller.handle)
    caller.rollback()
    assert await counts(desk) == (2, 0, 0, 0)
    caller.begin()
    await desk.engine.settle([Settlement(claim, Complete())], within=caller.handle)
    caller.commit()
    assert await counts(desk) == (2, 1, 0, 0)
    await run(desk, second)
    assert await calls(desk) == ["finished", "succeeded"]
    assert await desk.state(first) is State.COMPLETED


# Flows


async def test_a_job_waits_for_those_it_comes_after(desk: Desk):
    # O1: blocked until its parents have completed
    a, b, c = await put(desk, member(), member(), member(after=(0, 1)))
    assert await states(desk, [a, b, c]) == [State.PENDING, State.PENDING, State.BLOCKED]
    first, second = await desk.take(slots=10)
    await desk.end(first, Complete())
    assert await states(desk, [c]) == [State.BLOCKED]
    await desk.end(second, Complete())
    await run(desk, c)
    assert (await info(desk)).is_finished


async def test_a_job_that_waits_becomes_ready_when_the_last_one_ends(desk: Desk):
    # O3
    a, b = await put(desk, member(), member(after=(0,)))
    await desk.advance(10)
    other = await desk.add()
    await desk.advance(10)
    await desk.end(await desk.take_one(), Complete())
    await desk.promote()
    assert await desk.taken() == [other, b]
    assert await desk.state(a) is State.COMPLETED


async def test_a_wide_and_deep_flow_runs_in_order(desk: Desk):
    layers, width = 4, 12
    jobs = [member() for _ in range(width)]
    for layer in range(1, layers):
        jobs += [member(after=tuple(range((layer - 1) * width, layer * width))) for _ in range(width)]
    refs = await put(desk, *jobs)
    for layer in range(layers):
        await run(desk, *refs[layer * width : (layer + 1) * width])
    assert await counts(desk) == (layers * width, layers * width, 0, 0)
    assert len(await desk.engine.links("import")) == (layers - 1) * width * width


@pytest.mark.parametrize("failed", [Fail(BOOM), Bury(BOOM), Cancel("no")], ids=["fail", "bury", "cancel"])
@pytest.mark.parametrize("policy", list(OnFailure))
async def test_what_waits_for_a_job_that_does_not_complete_does_as_declared(desk: Desk, policy: OnFailure, failed: Any):
    waiting: dict[str, Any] = {"on_failure": policy}
    a, other, b, c, beside = await put(
        desk,
        member(priority=1),
        member(queue="beside"),
        member(after=(0,), **waiting),
        member(after=(2,), **waiting),
        member(after=(1,), queue="beside"),
    )
    await desk.end(await desk.take_one(), failed)
    S = State  # noqa: N806 - as in the lifecycle table
    expected = {
        OnFailure.STOP: [S.CANCELLED, S.CANCELLED, S.CANCELLED, S.CANCELLED],
        OnFailure.SKIP: [S.PENDING, S.CANCELLED, S.CANCELLED, S.BLOCKED],
        OnFailure.CONTINUE: [S.PENDING, S.PENDING, S.BLOCKED, S.BLOCKED],
    }
    assert await states(desk, [other, b, c, beside]) == expected[policy]
    assert await desk.state(a) is not State.COMPLETED


async def test_a_stopped_flow_lets_what_runs_come_to_its_end_and_takes_nothing_more(desk: Desk):
    await put(desk, member(), member(), member(after=(0,)), callbacks=CALLBACKS)
    one, two = await desk.take(slots=2)
    await desk.end(one, Fail(BOOM))
    await desk.promote()
    with pytest.raises(InvalidJob, match="stopped"):
        await desk.engine.enqueue([member()])
    assert await desk.end(two, Complete())
    assert await counts(desk) == (3, 1, 1, 1)
    assert await calls(desk) == ["failed", "finished"]


async def test_a_batch_can_be_stopped(desk: Desk):
    refs = await put(desk, member(), member(), member(after=(0,)), sealed=False)
    claim = await desk.take_one()
    await put(desk, stopped=True)
    assert sorted(await states(desk, refs)) == [State.CANCELLED, State.CANCELLED, State.RUNNING]
    reasons = {(await desk.job(ref)).last_error for ref in refs}
    assert reasons == {None, "cancelled: its batch was stopped before it started"}
    await desk.end(claim, Complete())
    assert (await info(desk)).is_finished


async def test_a_cancelled_or_deleted_job_is_told_to_those_that_wait_for_it(desk: Desk):
    a, b, c, d = await put(
        desk,
        member(),
        member(),
        member(after=(0,), on_failure=OnFailure.SKIP),
        member(after=(1,), on_failure=OnFailure.CONTINUE),
    )
    await desk.engine.cancel(JobFilter(refs=(a,)))
    await desk.engine.delete(JobFilter(refs=(b,)))
    assert await states(desk, [c, d]) == [State.CANCELLED, State.PENDING]


async def test_a_running_flow_is_added_to(desk: Desk):
    (a,) = await put(desk, member())
    claim = await desk.take_one()
    b, c = await put(desk, member(after=(a.id,)), member(after=(0,)))
    assert await states(desk, [b, c]) == [State.BLOCKED, State.BLOCKED]
    await desk.end(claim, Complete())
    await run(desk, b)
    await run(desk, c)
    assert await counts(desk) == (3, 3, 0, 0)


@pytest.mark.parametrize("policy", [OnFailure.SKIP, OnFailure.CONTINUE])
async def test_what_is_added_after_a_job_that_has_ended_learns_so(desk: Desk, policy: OnFailure):
    a, b = await put(desk, member(priority=1), member(), sealed=False)
    await desk.end(await desk.take_one(), Complete())
    await desk.end(await desk.take_one(), Fail(BOOM))
    well, ill = await put(desk, member(after=(a.id,)), member(after=(b.id,), on_failure=policy))
    expected = State.CANCELLED if policy is OnFailure.SKIP else State.PENDING
    assert await states(desk, [well, ill]) == [State.PENDING, expected]


async def test_links_and_parents_are_told(desk: Desk):
    a, b, c = await put(desk, member(), member(), member(after=(1, 0, 1)))
    assert sorted(await desk.engine.links("import")) == sorted([Link(a.id, c.id), Link(b.id, c.id)])
    claims = {claim.ref: claim for claim in await desk.take(slots=2)}
    await desk.end(claims[a], Complete('"of a"'))
    await desk.end(claims[b], Complete('"of b"'))
    await desk.promote()
    assert [job.result for job in await desk.engine.parents(c)] == ["of b", "of a"]
    assert await desk.engine.parents(a) == []


async def test_a_job_is_not_let_wait_for_one_that_is_not_there(desk: Desk):
    (elsewhere,) = [one.ref for one in await desk.engine.enqueue([new_job(queue="elsewhere")])]
    for stranger in (elsewhere.id, "0190163d-8694-739b-aea5-966c26f8ad91"):
        with pytest.raises(InvalidJob, match="no such job"):
            await put(desk, member(), member(after=(0, stranger)))
    assert (await desk.engine.batches()).items == ()
    assert await desk.taken() == []


async def test_the_end_of_a_followed_job_is_told_however_many_end_at_once(desk: Desk):
    width = 40
    refs = await put(desk, *[member()] * width, member(after=tuple(range(width))), callbacks=CALLBACKS)
    handles = [await desk.store.connect() for _ in range(4)]
    claims = await desk.take(slots=width)

    async def end(place: int) -> None:
        for number in range(place, width, 4):
            await handles[place].settle([Settlement(claims[number], Complete())])

    await asyncio.gather(*(end(place) for place in range(4)))
    await run(desk, refs[-1])
    assert await calls(desk) == ["finished", "succeeded"]


async def test_jobs_added_while_their_parent_ends_are_never_left_waiting(desk: Desk):
    await put(desk, sealed=False)
    other = await desk.store.connect()
    for _ in range(15):
        (a,) = await put(desk, member(), sealed=False)
        claim = await desk.take_one()
        added, _ = await asyncio.gather(
            put(desk, member(after=(a.id,)), sealed=False), other.settle([Settlement(claim, Complete())])
        )
        await run(desk, *added)
    assert await counts(desk) == (30, 30, 0, 0)


async def test_only_a_leader_goes_on_with_what_was_left_undone(desk: Desk):
    # O6: much is done in steps, and the steps that nobody else takes are the leader's
    await desk.engine.save_batch(NewBatch(name="import"), UniformJobs(member(), ["{}"] * 5000))
    term = await desk.lead()
    await desk.advance(timedelta(minutes=5))
    await put(desk, stopped=True)
    (before,) = (await desk.engine.batches()).items
    await desk.engine.promote(term)
    assert (await desk.engine.batches()).items == (before,)
    assert before.cancelled < 5000
    await desk.engine.resign(term)
    while (await desk.promote()).more:
        pass
    assert await counts(desk) == (5000, 0, 0, 5000)
    assert (await info(desk)).is_finished
