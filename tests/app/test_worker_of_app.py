"""The App's own worker, beside whatever else the process does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward import App, JobCancelled, JobContext, JobFailed
from onward.engines.sqlite.engine import CAPABILITIES, SQLiteEngine
from onward.job import NewJob
from onward.lifecycle import JobStatus
from onward.worker.runner import CallNext


async def test_a_worker_runs_beside_the_code_that_enqueues(tmp_path: Path):  # X1
    seen: list[str] = []

    async def noted(context: JobContext, call_next: CallNext) -> Any:
        seen.append(context.type)
        return await call_next()

    app = App(f"sqlite:///{tmp_path}/jobs.db", middleware=[noted])

    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.task
    def fail() -> None:
        raise ValueError("never")

    async with app, app.worker(concurrency=5):
        assert await (await double.enqueue(21)).result(timeout=60) == 42
        with pytest.raises(JobFailed, match="ValueError: never"):
            await (await fail.using(max_attempts=1).enqueue()).result(timeout=60)
        assert [worker.pool_size for worker in await app.workers.list()] == [5]
    assert seen == ["double", "fail"]


async def test_cancelling_a_job_stops_its_handler_in_the_worker(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    running, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def waits() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app, app.worker():
        handle = await waits.enqueue()
        await running.wait()
        await app.jobs.cancel(handle, reason="enough")
        await stopped.wait()
        with pytest.raises(JobCancelled, match="enough"):
            await handle.result(timeout=60)


async def test_work_goes_on_until_it_is_cancelled(tmp_path: Path):
    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task
        async def double(number: int) -> int:
            return number * 2

        work = asyncio.create_task(app.work(concurrency=1))
        assert await (await double.enqueue(1)).result(timeout=60) == 2
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work


class Shared(SQLiteEngine):
    """A store in which others, too, name queues and work."""

    capabilities = replace(CAPABILITIES, is_shared=True)


async def test_in_a_store_shared_with_others_a_worker_takes_the_jobs_of_its_own_tasks(tmp_path):  # X5
    app = App(engine=Shared(tmp_path / "jobs.db"))

    @app.task(queue="mail/{org_id}")
    async def mail() -> None: ...

    @app.task(queue="Video Queue")
    async def video() -> None: ...

    async with app:
        ours = [await mail.using(org_id="acme").enqueue(), await video.enqueue()]
        (theirs,) = await app.enqueue_many([NewJob(type="node", queue="node")])
        assert (await app.tick()).claimed == 2
        assert app.worker().options.pools == ((("mail/*", "Video Queue"), 100),)
        assert [(await handle.info()).status for handle in ours] == [JobStatus.COMPLETED] * 2
        assert (await theirs.info()).status is JobStatus.PENDING
