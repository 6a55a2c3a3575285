"""Drain: runs what waits, until nothing does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward import App, Backoff, InvalidValue, JobContext, JobStatus, Rate, Snooze
from onward.clock import ManualClock
from onward.testing import drain


async def test_everything_that_is_ready_is_run_and_nothing_else(app: App):
    @app.task
    async def step(left: int) -> None:
        if left:
            await step.enqueue(left - 1)

    await step.enqueue(3)
    later = await step.using(delay=60).enqueue(0)
    report = await drain(app)
    assert (report.completed, report.claimed) == (4, 4)
    assert (await later.info()).status is JobStatus.SCHEDULED


async def test_until_idle_moves_the_clock_to_what_is_due_next(app: App, clock: ManualClock):
    seen: list[tuple[int, timedelta]] = []
    start = clock.now()

    @app.task(max_attempts=3, backoff=Backoff.exponential(10))
    async def flaky(context: JobContext, snooze: bool = False) -> None:
        seen.append((context.attempt, timedelta(seconds=(clock.now() - start).seconds)))
        if snooze and len(seen) == 1:
            raise Snooze(3600)
        if context.attempt < 3:
            raise ValueError

    handle = await flaky.using(delay=60).enqueue(snooze=True)
    report = await drain(app, until_idle=True)
    assert (await handle.info()).status is JobStatus.COMPLETED
    assert (report.completed, report.retried, report.snoozed) == (1, 2, 1)
    seconds = [moment.total_seconds() for _, moment in seen]
    assert [attempt for attempt, _ in seen] == [1, 1, 2, 3]
    assert seconds == [60, 3660, 3670, 3690]


async def test_until_idle_waits_for_the_slots_of_a_limited_queue(app: App, clock: ManualClock):
    @app.task(queue="slow")
    async def send() -> None: ...

    await send.enqueue_many([()] * 5)
    await app.queues.configure("slow", rate=Rate(2, timedelta(minutes=1)))
    start = clock.now()
    assert (await drain(app, until_idle=True)).completed == 5
    assert clock.now() - start >= timedelta(minutes=2)


async def test_until_idle_needs_a_clock_that_can_be_moved():
    async with App("sqlite://") as app:
        with pytest.raises(InvalidValue, match=r"clock=ManualClock\(\)"):
            await drain(app, until_idle=True)
        assert (await drain(app)).claimed == 0


async def test_jobs_without_end_are_told_of(app: App):
    @app.task
    async def again() -> None:
        await again.enqueue()

    await again.enqueue()
    with pytest.raises(RuntimeError, match="50 jobs run and no end"):
        await drain(app, limit=50)


async def test_a_job_that_snoozes_for_ever_is_told_of(app: App):
    @app.task
    async def snoozes() -> None:
        raise Snooze(60)

    await snoozes.enqueue()
    with pytest.raises(RuntimeError, match="no end"):
        await drain(app, until_idle=True, limit=50)
