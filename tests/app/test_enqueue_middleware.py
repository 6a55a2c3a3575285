"""Middleware around enqueues: one for sync and async, batches included."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from onward import App, Enqueued, InvalidValue, JobStatus, NewJob
from onward.testing import drain

Steps = Generator[Sequence[NewJob], list[Enqueued], None]


async def test_middleware_sees_and_changes_every_enqueue_in_order(app: App):
    seen: list[str] = []

    def outer(jobs: Sequence[NewJob]) -> Steps:
        seen.append(f"outer {[job.org_id for job in jobs]}")
        enqueued = yield [replace(job, org_id="acme") for job in jobs]
        seen.append(f"outer has {len(enqueued)}")

    def inner(jobs: Sequence[NewJob]) -> Steps:
        seen.append(f"inner {[job.org_id for job in jobs]}")
        enqueued = yield jobs
        seen.append(f"inner has {[one.is_new for one in enqueued]}")

    app.enqueue_middleware += [outer, inner]

    @app.task
    async def send(to: str) -> None: ...

    handle = await send.using(idempotency_key="k").enqueue("ann")
    assert seen == ["outer [None]", "inner ['acme']", "inner has [True]", "outer has 1"]
    assert (await handle.info()).org_id == "acme"
    for use in ("sync", "many", "batch", "name", "schedule"):
        seen.clear()
        match use:
            case "sync":
                await asyncio.to_thread(send.sync.enqueue, "bob")
            case "many":
                await send.enqueue_many([{"to": "cid"}, {"to": "dan"}])
            case "batch":
                async with app.batch("b") as batch:
                    await batch.add([send.job("eve")])
            case "name":
                await app.enqueue("elsewhere", {"x": 1})
            case "schedule":
                await app.schedules.set("daily", send.job("fay"), cron="@daily")
                await app.schedules.run("daily")
        assert seen[0].startswith("outer [None"), use
        assert seen[-1] == f"outer has {2 if use == 'many' else 1}"
    assert {job.org_id for job in (await app.jobs.list()).items} == {"acme"}


async def test_what_middleware_refuses_is_not_stored(app: App):
    def guard(jobs: Sequence[NewJob]) -> Steps:
        if any(job.org_id is None for job in jobs):
            raise PermissionError("no organisation")
        yield jobs

    app.enqueue_middleware.append(guard)

    @app.task
    async def send() -> None: ...

    with pytest.raises(PermissionError):
        await send.enqueue()
    assert (await app.jobs.list()).items == ()
    await send.using(org_id="acme").enqueue()


async def test_an_error_of_the_store_reaches_the_middleware_and_cannot_be_swallowed(app: App):
    seen: list[str] = []

    def watching(jobs: Sequence[NewJob]) -> Steps:
        try:
            yield [replace(job, priority=-1) for job in jobs]
        except InvalidValue as error:
            seen.append(error.field)

    app.enqueue_middleware.append(watching)

    @app.task
    async def send() -> None: ...

    with pytest.raises(InvalidValue, match="priority"):  # checked as the middleware has left it
        await send.enqueue()
    assert seen == ["priority"]
    assert (await app.jobs.list()).items == ()


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_middleware_that_drops_or_adds_jobs_is_refused(app: App, number: int):
    def wrong(jobs: Sequence[NewJob]) -> Steps:
        if number:
            yield [jobs[0]] * number

    app.enqueue_middleware.append(wrong)

    @app.task
    async def send() -> None: ...

    with pytest.raises(InvalidValue, match=r"wrong.*raise an exception"):
        await send.enqueue_many([()] * 2)
    assert (await app.jobs.list()).items == ()


async def test_middleware_that_yields_twice_is_named(app: App, caplog: pytest.LogCaptureFixture):
    def twice(jobs: Sequence[NewJob]) -> Steps:
        yield jobs
        yield jobs

    app.enqueue_middleware.append(twice)

    @app.task
    async def send() -> None: ...

    await send.enqueue()
    (record,) = [record for record in caplog.records if record.name == "onward.engine"]
    assert record.exc_info is not None
    assert re.search(r"twice.*yield once", str(record.exc_info[1]))


@pytest.mark.parametrize("use", ["async", "sync", "batch"])
async def test_middleware_that_fails_afterwards_refuses_no_stored_job(
    app: App, caplog: pytest.LogCaptureFixture, use: str
):  # X1
    seen: list[int] = []

    def outer(jobs: Sequence[NewJob]) -> Steps:
        seen.append(len((yield jobs)))

    def failing(jobs: Sequence[NewJob]) -> Steps:
        yield jobs
        raise RuntimeError("no metrics")

    app.enqueue_middleware += [outer, failing]

    @app.task
    async def send() -> None: ...

    match use:
        case "async":
            await send.enqueue()
        case "sync":
            await asyncio.to_thread(send.sync.enqueue)
        case "batch":
            async with app.batch("b") as batch:
                await batch.add([send.job()])
    assert len((await app.jobs.list()).items) == 1
    assert seen == [1]
    assert "failing failed after the jobs were enqueued" in caplog.text


async def test_middleware_that_fails_afterwards_lets_the_caller_roll_back(tmp_path: Path):  # X1
    def failing(jobs: Sequence[NewJob]) -> Steps:
        yield jobs
        raise RuntimeError("no metrics")

    async with App(f"sqlite:///{tmp_path}/jobs.db", enqueue_middleware=[failing]) as app:

        @app.task
        async def send() -> None: ...

        await app.open()
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            connection.execute("begin immediate")
            with pytest.raises(RuntimeError, match="no metrics"):
                await send.using(connection=connection).enqueue()
            connection.rollback()
        assert (await app.jobs.list()).items == ()


# By name


async def test_a_job_is_enqueued_by_name_for_another_program(app: App):  # X1
    handle = await app.enqueue("billing.charge", {"cents": 5}, queue="billing", priority=3, org_id="acme", delay=60)
    job = await handle.info()
    assert (job.type, job.queue, job.payload, job.priority) == ("billing.charge", "billing", {"cents": 5}, 3)
    assert (job.status, job.org_id) == (JobStatus.SCHEDULED, "acme")
    assert (await app.enqueue("ping")).ref.queue == "default"
    twice = [await app.enqueue("once", idempotency_key="k") for _ in range(2)]
    assert [one.is_new for one in twice] == [True, False]
    with pytest.raises(InvalidValue, match="payload"):
        await app.enqueue("billing.charge", {"at": object()})


async def test_a_job_enqueued_by_the_name_of_a_task_of_ours_must_fit_it(app: App):
    @app.task(queue="mail/{org_id}", max_attempts=2)
    async def send(to: str) -> str:
        return to.upper()

    @app.task(whole_payload=True)
    async def whole(value: list[int] | None) -> int:
        return sum(value or [40])

    handle = await app.enqueue("send", {"to": "ann"}, org_id="acme")
    assert ((await handle.info()).queue, (await handle.info()).max_attempts) == ("mail/acme", 2)
    with pytest.raises(InvalidValue, match="to"):
        await app.enqueue("send", {"too": "ann"}, org_id="acme")
    with pytest.raises(InvalidValue, match="org_id"):
        await app.enqueue("send", {"to": "ann"})
    sums = [await app.enqueue("whole", [1, 2]), await app.enqueue("whole")]
    await drain(app)
    assert (await handle.result(), [await one.result() for one in sums]) == ("ANN", [3, 40])
