"""Batches and flows: counted exactly, called back once, and no job starts before those that it waits for have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from onward.batches.values import BatchInfo, Callbacks, Dependency, NewBatch
from onward.engine.capabilities import Feature
from onward.engine.values import JobFilter, Settlement
from onward.errors import InvalidValue
from onward.job import JobRef, NewJob, OnDependencyFailure, UniformJobs
from onward.lifecycle import Bury, Cancel, Complete, Fail, JobStatus, Outcome, Release, Retry
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import PAST_LEASE, Driver, new_job

pytestmark = needs(Feature.BATCHES)

CALLBACKS = Callbacks(
    on_success=NewJob(type="succeeded", queue="calls", payload='{"n":1}'),
    on_failure=NewJob(type="failed", queue="calls"),
    on_finished=NewJob(type="finished", queue="calls"),
)


def member(**fields: Any) -> NewJob:
    return new_job(batch="import", **fields)


async def put(driver: Driver, *jobs: NewJob, sealed: bool = True, **fields: Any) -> list[JobRef]:
    batch = NewBatch(name="import", sealed=sealed, **fields)
    return [one.ref for one in await driver.engine.save_batch(batch, jobs)]


async def info(driver: Driver, name: str = "import") -> BatchInfo:
    await driver.promote()
    (found,) = (await driver.engine.batches(names=[name])).items
    return found


async def counts(driver: Driver) -> tuple[int, int, int, int]:
    batch = await info(driver)
    return batch.total, batch.completed, batch.failed, batch.cancelled


async def calls(driver: Driver) -> list[str]:
    await driver.promote()
    found = await driver.engine.find(JobFilter(queues=("calls",)), limit=100, newest_first=False)
    return sorted(job.type for job in found.items)


async def states(driver: Driver, refs: Sequence[JobRef]) -> list[JobStatus]:
    await driver.promote()
    return [await driver.state(ref) for ref in refs]


async def run(driver: Driver, *refs: JobRef, outcome: Any = Complete()) -> None:  # noqa: B008 - a value that cannot change
    """Take what is ready, which must be these and no others, and end it."""
    await driver.promote()
    claims = await driver.take(slots=1000)
    assert {claim.ref for claim in claims} == set(refs)
    await driver.end_all(claims, outcome)


# Counting


async def test_a_batch_counts_how_its_jobs_end(driver: Driver):
    await put(driver, *[member()] * 5, new_job(batch="import", delay=timedelta(hours=1)))
    assert await counts(driver) == (6, 0, 0, 0)
    claims = await driver.take(slots=5)
    outcomes: list[Outcome] = [Complete("1"), Complete(), Fail(BOOM), Bury(BOOM), Cancel("no")]
    await driver.engine.settle([Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)])
    assert await counts(driver) == (6, 2, 2, 1)
    assert not (await info(driver)).is_finished
    assert (await info(driver)).progress == 83  # P7


async def test_a_run_that_does_not_end_the_job_is_not_counted(driver: Driver):
    await put(driver, *[member()] * 3)
    claims = await driver.take(slots=3)
    await driver.end(claims[0], Retry(timedelta(0), BOOM))
    await driver.end(claims[1], Release())
    assert await counts(driver) == (3, 0, 0, 0)


async def test_an_outcome_from_a_lost_claim_is_not_counted(driver: Driver):
    # X3
    await put(driver, member())
    stale = await driver.take_one()
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    fresh = await driver.take_one()
    assert not await driver.end(stale, Complete())
    assert await counts(driver) == (1, 0, 0, 0)
    await driver.end(fresh, Complete())
    assert await counts(driver) == (1, 1, 0, 0)


async def test_jobs_that_end_without_a_worker_are_counted(driver: Driver):
    now = driver.now
    cancelled, deleted, _, _ = await put(
        driver, member(), member(), member(start_by=now + timedelta(seconds=5)), member(queue="deadly")
    )
    await driver.engine.cancel(JobFilter(refs=(cancelled,)))
    await driver.engine.delete(JobFilter(refs=(deleted,)))
    await driver.suspect("deadly")
    await driver.end(await driver.take_one("deadly", alone=True), Bury(BOOM))
    assert await counts(driver) == (4, 0, 1, 3)
    assert (await info(driver)).is_finished


async def test_jobs_alike_are_counted_in(driver: Driver):
    await driver.engine.save_batch(NewBatch(name="import"), UniformJobs(member(), ["{}"] * 700))
    await driver.engine.enqueue(UniformJobs(member(), ["{}"] * 400))
    assert await counts(driver) == (1100, 0, 0, 0)


async def test_a_job_that_stands_for_another_is_counted_once(driver: Driver):
    # O4, H5
    first = await put(driver, member(idempotency_key="k"), member(dedupe_key="d"))
    again = await put(driver, member(idempotency_key="k"), member(dedupe_key="d"), member())
    assert again[:2] == first
    assert await counts(driver) == (3, 0, 0, 0)


async def test_a_replayed_job_is_counted_anew(driver: Driver):
    (ref,) = await put(driver, member(), callbacks=CALLBACKS)
    await run(driver, ref, outcome=Fail(BOOM))
    assert await counts(driver) == (1, 0, 1, 0)
    await driver.engine.replay(JobFilter(refs=(ref,)))
    assert await counts(driver) == (1, 0, 0, 0)
    await run(driver, ref)
    assert await counts(driver) == (1, 1, 0, 0)
    assert await calls(driver) == ["failed", "finished"]


async def test_jobs_are_found_counted_and_cancelled_by_their_batch(driver: Driver):
    mine = await put(driver, member(), member(queue="other"))
    await driver.add()
    found = await driver.engine.find(JobFilter(batch="import"))
    assert {job.ref for job in found.items} == set(mine)
    assert {job.batch for job in found.items} == {"import"}
    assert {change.ref for change in await driver.engine.cancel(JobFilter(batch="import"))} == set(mine)
    assert len(await driver.taken("*")) == 1


async def test_a_pruned_job_stays_counted(driver: Driver):
    (ref,) = await put(driver, member(), sealed=False)
    await run(driver, ref)
    await driver.advance(timedelta(days=8))
    await driver.prune()
    assert await driver.engine.get(ref) is None
    assert await counts(driver) == (1, 1, 0, 0)


# Finishing


async def test_a_batch_finishes_when_all_have_ended_and_it_is_sealed(driver: Driver):
    (first,) = await put(driver, member(), sealed=False)
    await run(driver, first)
    assert not (await info(driver)).is_finished
    (second,) = await put(driver, member())
    assert not (await info(driver)).is_finished
    await run(driver, second)
    batch = await info(driver)
    assert (batch.finished_at, batch.progress) == (driver.now, 100)


async def test_sealing_a_batch_that_has_ended_finishes_it(driver: Driver):
    (ref,) = await put(driver, member(), sealed=False, callbacks=CALLBACKS)
    await run(driver, ref)
    assert await calls(driver) == []
    await put(driver)
    assert (await info(driver)).is_finished
    assert await calls(driver) == ["finished", "succeeded"]


async def test_an_empty_batch_finishes_at_once(driver: Driver):
    await put(driver, callbacks=CALLBACKS)
    assert (await info(driver)).progress == 100
    assert await calls(driver) == ["finished", "succeeded"]


async def test_a_finished_batch_takes_nothing_more(driver: Driver):
    await put(driver)
    await driver.promote()
    with pytest.raises(InvalidValue, match="has finished"):
        await put(driver, member())
    with pytest.raises(InvalidValue, match="batch"):
        await driver.engine.enqueue([member()])
    assert await counts(driver) == (0, 0, 0, 0)
    assert await driver.taken() == []


async def test_a_job_of_no_known_batch_is_refused_and_its_neighbours_with_it(driver: Driver):
    with pytest.raises(InvalidValue, match="batch"):
        await driver.engine.enqueue([new_job(), member()])
    assert await driver.taken() == []


async def test_batches_are_listed_from_the_newest_on(driver: Driver):
    for name in "abc":
        await driver.engine.save_batch(NewBatch(name=name, queue=f"q/{name}"))
    page = await driver.engine.batches(limit=2)
    assert [(one.name, one.queue) for one in page.items] == [("c", "q/c"), ("b", "q/b")]
    assert [one.name for one in (await driver.engine.batches(limit=2, cursor=page.next_cursor)).items] == ["a"]


async def test_a_batch_is_forgotten_a_month_after_it_has_finished(driver: Driver):  # P9
    a, b = await put(driver, member(), member(after=(0,)))
    await driver.engine.save_batch(NewBatch(name="open"))
    await run(driver, a)
    await run(driver, b)
    await driver.promote()
    await driver.advance(timedelta(days=29))
    await driver.prune()
    assert {one.name for one in (await driver.engine.batches()).items} == {"import", "open"}
    await driver.advance(timedelta(days=1))
    await driver.prune()
    assert {one.name for one in (await driver.engine.batches()).items} == {"open"}
    assert await driver.engine.dependencies("import") == []


async def test_a_finished_batch_can_be_dropped_and_its_name_used_again(driver: Driver):
    a, b = await put(driver, member(), member(after=(0,)))
    assert not await driver.engine.delete_batch("import")
    await run(driver, a)
    await run(driver, b)
    await driver.promote()
    assert await driver.engine.delete_batch("import")
    assert (await driver.engine.batches()).items == ()
    assert await driver.engine.dependencies("import") == []
    assert await driver.state(a) is JobStatus.COMPLETED
    await put(driver, sealed=False)
    assert await counts(driver) == (0, 0, 0, 0)


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
async def test_callbacks_say_how_a_batch_went(driver: Driver, outcome: Any, expected: list[str]):
    await put(driver, *[member()] * 3, callbacks=CALLBACKS)
    first, *others = await driver.take(slots=3)
    await driver.end(first, outcome)
    assert await calls(driver) == (["failed"] if "failed" in expected else [])  # at the first failure, not at the end
    await driver.end_all(others, Complete())
    assert await calls(driver) == expected


async def test_a_batch_that_is_open_still_tells_of_its_first_failure_and_does_not_finish(driver: Driver):
    (ref,) = await put(driver, member(), sealed=False, callbacks=CALLBACKS)
    await run(driver, ref, outcome=Fail(BOOM))
    assert await calls(driver) == ["failed"]
    assert not (await info(driver)).is_finished


async def test_a_callback_is_the_job_that_was_given(driver: Driver):
    given = NewJob(type="done", queue="calls", payload='{"batch":"import"}', priority=3, org_id="acme", max_attempts=2)
    await put(driver, callbacks=Callbacks(on_finished=given))
    await driver.promote()
    (claim,) = await driver.take("calls")
    assert (claim.type, claim.payload, claim.priority, claim.org_id, claim.max_attempts) == (
        "done", '{"batch":"import"}', 3, "acme", 2,
    )  # fmt: skip


async def test_each_callback_comes_once_however_many_end_jobs_at_once(driver: Driver):
    await put(driver, *[member()] * 60, callbacks=CALLBACKS)
    handles = [await driver.store.connect() for _ in range(4)]
    claims = await driver.take(slots=60)
    outcomes = [Fail(BOOM) if number % 7 == 0 else Complete() for number in range(60)]

    async def end(place: int) -> None:
        for number in range(place, 60, 4):
            await handles[place].settle([Settlement(claims[number], outcomes[number])])

    await asyncio.gather(*(end(place) for place in range(4)))
    assert await counts(driver) == (60, 51, 9, 0)
    assert await calls(driver) == ["failed", "finished"]


async def test_callbacks_can_be_given_later_and_stay_if_they_are_not(driver: Driver):
    await put(driver, sealed=False, callbacks=Callbacks(on_success=CALLBACKS.on_success))
    await put(driver, sealed=False, callbacks=Callbacks(on_finished=CALLBACKS.on_finished))
    await put(driver)
    assert await calls(driver) == ["finished", "succeeded"]


@needs(Feature.TRANSACTIONS)
async def test_a_batch_is_made_within_the_callers_transaction(driver: Driver):
    # X4
    caller = driver.store.caller()
    caller.begin()
    await driver.engine.save_batch(NewBatch(name="import"), [member()], connection=caller.handle)
    caller.rollback()
    assert (await driver.engine.batches()).items == ()
    assert await driver.taken() == []
    caller.begin()
    await driver.engine.save_batch(NewBatch(name="import"), [member()], connection=caller.handle)
    caller.commit()
    assert await counts(driver) == (1, 0, 0, 0)


@needs(Feature.TRANSACTIONS)
async def test_an_end_within_the_callers_transaction_is_counted_with_it(driver: Driver):
    first, second = await put(driver, member(), member(after=(0,)), callbacks=CALLBACKS)
    claim = await driver.take_one()
    caller = driver.store.caller()
    caller.begin()
    await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle)
    caller.rollback()
    assert await counts(driver) == (2, 0, 0, 0)
    caller.begin()
    await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle)
    caller.commit()
    assert await counts(driver) == (2, 1, 0, 0)
    await run(driver, second)
    assert await calls(driver) == ["finished", "succeeded"]
    assert await driver.state(first) is JobStatus.COMPLETED


# Flows


async def test_a_job_waits_for_those_it_comes_after(driver: Driver):
    # O1: blocked until its parents have completed
    a, b, c = await put(driver, member(), member(), member(after=(0, 1)))
    assert await states(driver, [a, b, c]) == [JobStatus.PENDING, JobStatus.PENDING, JobStatus.BLOCKED]
    first, second = await driver.take(slots=10)
    await driver.end(first, Complete())
    assert await states(driver, [c]) == [JobStatus.BLOCKED]
    await driver.end(second, Complete())
    await run(driver, c)
    assert (await info(driver)).is_finished


async def test_a_job_that_waits_becomes_ready_when_the_last_one_ends(driver: Driver):
    # O3
    a, b = await put(driver, member(), member(after=(0,)))
    await driver.advance(10)
    other = await driver.add()
    await driver.advance(10)
    await driver.end(await driver.take_one(), Complete())
    await driver.promote()
    assert await driver.taken() == [other, b]
    assert await driver.state(a) is JobStatus.COMPLETED


async def test_a_wide_and_deep_flow_runs_in_order(driver: Driver):
    layers, width = 4, 12
    jobs = [member() for _ in range(width)]
    for layer in range(1, layers):
        jobs += [member(after=tuple(range((layer - 1) * width, layer * width))) for _ in range(width)]
    refs = await put(driver, *jobs)
    for layer in range(layers):
        await run(driver, *refs[layer * width : (layer + 1) * width])
    assert await counts(driver) == (layers * width, layers * width, 0, 0)
    assert len(await driver.engine.dependencies("import")) == (layers - 1) * width * width


@pytest.mark.parametrize("failed", [Fail(BOOM), Bury(BOOM), Cancel("no")], ids=["fail", "bury", "cancel"])
@pytest.mark.parametrize("policy", list(OnDependencyFailure))
async def test_what_waits_for_a_job_that_does_not_complete_does_as_declared(
    driver: Driver, policy: OnDependencyFailure, failed: Any
):
    waiting: dict[str, Any] = {"on_dependency_failure": policy}
    a, other, b, c, beside = await put(
        driver,
        member(priority=1),
        member(queue="beside"),
        member(after=(0,), **waiting),
        member(after=(2,), **waiting),
        member(after=(1,), queue="beside"),
    )
    await driver.end(await driver.take_one(), failed)
    S = JobStatus  # noqa: N806 - as in the lifecycle table
    expected = {
        OnDependencyFailure.CANCEL: [S.CANCELLED, S.CANCELLED, S.CANCELLED, S.CANCELLED],
        OnDependencyFailure.SKIP: [S.PENDING, S.CANCELLED, S.CANCELLED, S.BLOCKED],
        OnDependencyFailure.RUN: [S.PENDING, S.PENDING, S.BLOCKED, S.BLOCKED],
    }
    assert await states(driver, [other, b, c, beside]) == expected[policy]
    assert await driver.state(a) is not JobStatus.COMPLETED


async def test_a_stopped_flow_lets_what_runs_come_to_its_end_and_takes_nothing_more(driver: Driver):
    await put(driver, member(), member(), member(after=(0,)), callbacks=CALLBACKS)
    one, two = await driver.take(slots=2)
    await driver.end(one, Fail(BOOM))
    await driver.promote()
    with pytest.raises(InvalidValue, match="stopped"):
        await driver.engine.enqueue([member()])
    assert await driver.end(two, Complete())
    assert await counts(driver) == (3, 1, 1, 1)
    assert await calls(driver) == ["failed", "finished"]


async def test_a_batch_can_be_stopped(driver: Driver):
    refs = await put(driver, member(), member(), member(after=(0,)), sealed=False)
    claim = await driver.take_one()
    await put(driver, stopped=True)
    assert sorted(await states(driver, refs)) == [JobStatus.CANCELLED, JobStatus.CANCELLED, JobStatus.RUNNING]
    reasons = {(await driver.job(ref)).last_error for ref in refs}
    assert reasons == {None, "cancelled: its batch was stopped before it started"}
    await driver.end(claim, Complete())
    assert (await info(driver)).is_finished


async def test_a_cancelled_or_deleted_job_is_told_to_those_that_wait_for_it(driver: Driver):
    a, b, c, d = await put(
        driver,
        member(),
        member(),
        member(after=(0,), on_dependency_failure=OnDependencyFailure.SKIP),
        member(after=(1,), on_dependency_failure=OnDependencyFailure.RUN),
    )
    await driver.engine.cancel(JobFilter(refs=(a,)))
    await driver.engine.delete(JobFilter(refs=(b,)))
    assert await states(driver, [c, d]) == [JobStatus.CANCELLED, JobStatus.PENDING]


async def test_a_running_flow_is_added_to(driver: Driver):
    (a,) = await put(driver, member())
    claim = await driver.take_one()
    b, c = await put(driver, member(after=(a.id,)), member(after=(0,)))
    assert await states(driver, [b, c]) == [JobStatus.BLOCKED, JobStatus.BLOCKED]
    await driver.end(claim, Complete())
    await run(driver, b)
    await run(driver, c)
    assert await counts(driver) == (3, 3, 0, 0)


@pytest.mark.parametrize("policy", [OnDependencyFailure.SKIP, OnDependencyFailure.RUN])
async def test_what_is_added_after_a_job_that_has_ended_learns_so(driver: Driver, policy: OnDependencyFailure):
    a, b = await put(driver, member(priority=1), member(), sealed=False)
    await driver.end(await driver.take_one(), Complete())
    await driver.end(await driver.take_one(), Fail(BOOM))
    well, ill = await put(driver, member(after=(a.id,)), member(after=(b.id,), on_dependency_failure=policy))
    expected = JobStatus.CANCELLED if policy is OnDependencyFailure.SKIP else JobStatus.PENDING
    assert await states(driver, [well, ill]) == [JobStatus.PENDING, expected]


async def test_links_and_parents_are_told(driver: Driver):
    a, b, c = await put(driver, member(), member(), member(after=(1, 0, 1)))
    assert sorted(await driver.engine.dependencies("import")) == sorted(
        [Dependency(c.id, a.id), Dependency(c.id, b.id)]
    )
    claims = {claim.ref: claim for claim in await driver.take(slots=2)}
    await driver.end(claims[a], Complete('"of a"'))
    await driver.end(claims[b], Complete('"of b"'))
    await driver.promote()
    assert [job.result for job in await driver.engine.dependency_jobs(c)] == ["of b", "of a"]
    assert await driver.engine.dependency_jobs(a) == []


async def test_a_job_is_not_let_wait_for_one_that_is_not_there(driver: Driver):
    (elsewhere,) = [one.ref for one in await driver.engine.enqueue([new_job(queue="elsewhere")])]
    for stranger in (elsewhere.id, "0190163d-8694-739b-aea5-966c26f8ad91"):
        with pytest.raises(InvalidValue, match="no such job"):
            await put(driver, member(), member(after=(0, stranger)))
    assert (await driver.engine.batches()).items == ()
    assert await driver.taken() == []


async def test_the_end_of_a_followed_job_is_told_however_many_end_at_once(driver: Driver):
    width = 40
    refs = await put(driver, *[member()] * width, member(after=tuple(range(width))), callbacks=CALLBACKS)
    handles = [await driver.store.connect() for _ in range(4)]
    claims = await driver.take(slots=width)

    async def end(place: int) -> None:
        for number in range(place, width, 4):
            await handles[place].settle([Settlement(claims[number], Complete())])

    await asyncio.gather(*(end(place) for place in range(4)))
    await run(driver, refs[-1])
    assert await calls(driver) == ["finished", "succeeded"]


async def test_jobs_added_while_their_parent_ends_are_never_left_waiting(driver: Driver):
    await put(driver, sealed=False)
    other = await driver.store.connect()
    for _ in range(15):
        (a,) = await put(driver, member(), sealed=False)
        claim = await driver.take_one()
        added, _ = await asyncio.gather(
            put(driver, member(after=(a.id,)), sealed=False), other.settle([Settlement(claim, Complete())])
        )
        await run(driver, *added)
    assert await counts(driver) == (30, 30, 0, 0)


async def test_only_a_leader_goes_on_with_what_was_left_undone(driver: Driver):
    # O6: much is done in steps, and the steps that nobody else takes are the leader's
    await driver.engine.save_batch(NewBatch(name="import"), UniformJobs(member(), ["{}"] * 5000))
    term = await driver.lead()
    await driver.advance(timedelta(minutes=5))
    await put(driver, stopped=True)
    (before,) = (await driver.engine.batches()).items
    await driver.engine.promote(term)
    assert (await driver.engine.batches()).items == (before,)
    assert before.cancelled < 5000
    await driver.engine.resign(term)
    while (await driver.promote()).more:
        pass
    assert await counts(driver) == (5000, 0, 0, 5000)
    assert (await info(driver)).is_finished
