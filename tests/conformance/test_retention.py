"""How long finished jobs are kept (P9)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Retention
from onward.job import JobRef
from onward.lifecycle import Bury, Cancel, Complete, Fail, Outcome, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Desk

pytestmark = needs(Feature.RETENTION, Feature.LEADER)

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


async def ended(desk: Desk, outcome: Outcome, queue: str = "q") -> JobRef:
    """Add a job and end it; every moment of its life is an hour from the next, so that none stands for another."""
    ref = await desk.add(queue=queue)
    await desk.advance(HOUR)
    claim = await desk.take_one(queue, lease=2 * HOUR)
    assert claim.ref == ref
    await desk.advance(HOUR)
    assert await desk.end(claim, outcome)
    return ref


async def test_by_default_done_jobs_go_after_a_week_and_failed_ones_stay(desk: Desk):  # P9, O8
    done = await ended(desk, Complete())
    cancelled = await ended(desk, Cancel("enough"))
    failed = await ended(desk, Fail(BOOM))
    dead = await ended(desk, Bury(BOOM))
    waiting = await desk.add(queue="elsewhere")
    await desk.advance(6 * DAY)
    assert (await desk.prune()).changed == 0
    await desk.advance(2 * DAY)
    assert (await desk.prune()).changed == 1 + desk.engine.capabilities.has(Feature.CANCELLED_STATE)
    assert {job.ref for job in await desk.jobs()} == {failed, dead, waiting}
    assert {done, cancelled} & {job.ref for job in await desk.jobs()} == set()
    await desk.advance(400 * DAY)
    assert (await desk.prune()).changed == 0


async def test_age_is_counted_from_the_end_of_the_job(desk: Desk):  # P9
    await desk.set("q", retention=Retention(completed=DAY))
    ref = await ended(desk, Complete())
    await desk.advance(DAY - timedelta(seconds=1))
    await desk.prune()
    assert await desk.state(ref) is State.COMPLETED
    await desk.advance(1)
    await desk.prune()
    assert await desk.engine.get(ref) is None


@pytest.mark.parametrize(
    ("retention", "outcome"),
    [
        (Retention(completed=DAY, failed=None, cancelled=None), Complete()),
        (Retention(completed=None, failed=DAY, cancelled=None), Fail(BOOM)),
        (Retention(completed=None, failed=DAY, cancelled=None), Bury(BOOM)),
        pytest.param(
            Retention(completed=None, failed=None, cancelled=DAY),
            Cancel("enough"),
            marks=needs(Feature.CANCELLED_STATE),
        ),
    ],
    ids=["completed", "failed", "dead_letter", "cancelled"],
)
async def test_each_kind_of_end_has_its_own_time(desk: Desk, retention: Retention, outcome: Outcome):  # P9
    await desk.set("q", retention=retention)
    goes = await ended(desk, outcome)
    others: list[Outcome] = [Complete(), Fail(BOOM), Bury(BOOM)]
    if desk.engine.capabilities.has(Feature.CANCELLED_STATE):
        others.append(Cancel("enough"))
    kept_for_ever = {"completed": retention.completed, "failed": retention.failed, "cancelled": retention.cancelled}
    stay = [
        await ended(desk, other)
        for other in others
        if kept_for_ever[{Complete: "completed", Cancel: "cancelled"}.get(type(other), "failed")] is None
    ]
    await desk.advance(30 * DAY)
    assert (await desk.prune()).changed == 1
    assert await desk.engine.get(goes) is None
    assert {job.ref for job in await desk.jobs()} == set(stay)


async def test_each_queue_keeps_its_own_way(desk: Desk):  # P9
    await desk.set("brief", retention=Retention(completed=HOUR))
    await desk.set("for-ever", retention=Retention(completed=None))
    brief, kept = await ended(desk, Complete(), "brief"), await ended(desk, Complete(), "for-ever")
    await desk.advance(100 * DAY)
    await desk.prune()
    assert await desk.engine.get(brief) is None
    assert await desk.state(kept) is State.COMPLETED


async def test_nothing_kept_goes_with_the_next_pruning(desk: Desk):  # P9
    await desk.set("q", retention=Retention(completed=timedelta(0)))
    ref = await ended(desk, Complete())
    await desk.prune()
    assert await desk.engine.get(ref) is None


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [(Complete(), Retention(completed=None, completed_count=2)), (Bury(BOOM), Retention(failed_count=2))],
)
async def test_the_last_so_many_are_kept(desk: Desk, outcome: Outcome, kept: Retention):  # P9
    await desk.set("q", retention=kept)
    refs = [await ended(desk, outcome) for _ in range(5)]
    other = await ended(desk, outcome, "elsewhere")
    assert (await desk.prune()).changed == 3
    assert {job.ref for job in await desk.jobs()} == {*refs[-2:], other}


async def test_the_last_are_those_that_ended_last(desk: Desk):  # P9
    await desk.set("q", retention=Retention(completed=None, completed_count=1))
    first, second = await desk.add_many(2, queue="q")
    claims = await desk.take("q", slots=2)
    await desk.advance(1)
    assert await desk.end(claims[1], Complete())
    await desk.advance(1)
    assert await desk.end(claims[0], Complete())
    await desk.prune()
    assert [job.ref for job in await desk.jobs()] == [first]
    assert await desk.engine.get(second) is None


@needs(Feature.DELAY)
async def test_what_lives_is_never_pruned(desk: Desk):  # P9, X3
    nothing = Retention(
        completed=timedelta(0), completed_count=0, failed=timedelta(0), failed_count=0, cancelled=timedelta(0)
    )
    await desk.set("q", retention=nothing)
    await desk.add_many(3, queue="q")
    await desk.add(queue="q", delay=timedelta(days=900))
    await desk.take("q")
    await desk.advance(500 * DAY)
    assert (await desk.prune()).changed == 0
    assert len(await desk.jobs()) == 4


async def test_pruning_stops_at_its_limit_says_so_and_goes_on_next_time(desk: Desk):
    await desk.add_many(5, queue="q")
    await desk.end_all(await desk.take("q", slots=5), Complete())
    await desk.advance(8 * DAY)
    batches = [await desk.prune(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(2, True), (2, True), (1, False)]
