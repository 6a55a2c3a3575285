"""A burst: work until no job is ready, then stop."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from onward import App, Backoff, JobContext, JobStatus, Rate

WITHIN = 60.0


async def test_a_burst_runs_all_that_is_ready_and_what_that_enqueues():
    async with App("sqlite://") as app:
        done: list[int] = []

        @app.task
        async def step(left: int) -> None:
            done.append(left)
            if left:
                await step.enqueue(left - 1)

        @app.task
        def plain() -> None:
            done.append(-1)

        await step.enqueue_many([(3,), (0,)])
        await plain.enqueue_many([()] * 250)
        await asyncio.wait_for(app.work(burst=True, concurrency=20), WITHIN)
        assert sorted(done) == sorted([3, 2, 1, 0, 0, *[-1] * 250])
        await asyncio.wait_for(app.work(burst=True), WITHIN)  # with nothing to do
        assert await app.workers.list() == []


async def test_a_burst_runs_what_is_due_and_leaves_what_is_not():
    async with App("sqlite://") as app:

        @app.task(max_attempts=2, backoff=Backoff.fixed(3600))
        async def fail() -> None:
            raise ValueError

        @app.task
        async def send() -> None: ...

        failing = await fail.enqueue()
        due = await send.using(delay=timedelta(milliseconds=1)).enqueue()
        later = await send.using(delay=3600).enqueue()
        await asyncio.wait_for(app.work(burst=True), WITHIN)
        assert [(await job.info()).status for job in (failing, due, later)] == [
            JobStatus.SCHEDULED,
            JobStatus.COMPLETED,
            JobStatus.SCHEDULED,
        ]


async def test_a_burst_waits_for_the_permits_of_a_rate_and_not_for_a_paused_queue():
    async with App("sqlite://") as app:

        @app.task(queue="limited", rate=Rate(2, timedelta(seconds=1)))
        async def limited() -> None: ...

        @app.task(queue="paused")
        async def paused() -> None: ...

        await limited.enqueue_many([()] * 4)
        waiting = await paused.enqueue()
        await app.queues.pause("paused")
        await asyncio.wait_for(app.work(burst=True), WITHIN)
        assert await app.jobs.count(by="status") == {JobStatus.COMPLETED: 4, JobStatus.PENDING: 1}
        assert (await waiting.info()).status is JobStatus.PENDING


async def test_a_burst_beside_a_leader_ends_too():
    async with App("sqlite://") as app:
        ran: list[str] = []

        @app.task(queue="burst")
        async def send(context: JobContext) -> None:
            ran.append(context.id)

        async with app.worker(queues=["other"]):
            await send.enqueue()
            await asyncio.wait_for(app.work(burst=True, queues=["burst"]), WITHIN)
        assert len(ran) == 1
