"""Inline: an enqueue runs its job before it returns."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from onward import App, Backoff, JobContext, JobFailed, JobFilter, JobStatus, NewJob, Snooze
from onward.engine.access import AuditRecord
from onward.engine.values import Claim, ClaimRequest, Settlement
from onward.job import Enqueued
from onward.lifecycle import Complete
from onward.testing import inline


async def test_an_enqueue_runs_its_job_and_gives_a_finished_handle(app: App):
    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.task
    def plain(number: int) -> int:
        return number * 3

    with inline(app):
        first, second = await double.enqueue(2), await plain.enqueue(2)
        many = await double.enqueue_many([(number,) for number in range(5)])
    assert (await first.info()).status is JobStatus.COMPLETED
    assert (await first.result(), await second.result()) == (4, 6)
    assert [await handle.result() for handle in many] == [0, 2, 4, 6, 8]
    after = await double.enqueue(1)
    assert (await after.info()).status is JobStatus.PENDING


async def test_delays_and_retries_take_no_time(app: App):
    attempts = []

    @app.task(max_attempts=3, backoff=Backoff.fixed(3600))
    async def flaky(context: JobContext) -> str:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise ConnectionError
        return "at last"

    with inline(app):
        handle = await flaky.using(delay=86400).enqueue()
    assert await handle.result() == "at last"
    assert attempts == [1, 2, 3]


async def test_a_job_that_fails_says_so_by_its_handle(app: App):
    @app.task(max_attempts=2)
    async def fails() -> None:
        raise ValueError("never")

    with inline(app):
        handle = await fails.enqueue()
    with pytest.raises(JobFailed, match="dead_letter: ValueError: never"):
        await handle.result()


async def test_what_a_job_enqueues_runs_within_it(app: App):
    order: list[str] = []

    @app.task
    async def inner(name: str) -> None:
        order.append(name)

    @app.task
    async def outer() -> None:
        order.append("before")
        await inner.enqueue("inner")
        order.append("after")

    @app.task
    def from_a_thread() -> None:
        inner.sync.enqueue("from a thread")
        order.append("thread")

    with inline(app):
        await outer.enqueue()
        await from_a_thread.enqueue()
    assert order == ["before", "inner", "after", "from a thread", "thread"]


async def test_concurrent_enqueues_are_each_finished(app: App):
    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    with inline(app):
        handles = await asyncio.gather(*(double.enqueue(number) for number in range(10)))
        states = {(await handle.info()).status for handle in handles}
    assert states == {JobStatus.COMPLETED}
    assert [await handle.result() for handle in handles] == [number * 2 for number in range(10)]


async def test_a_job_that_somebody_else_has_taken_is_waited_for(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.task
    async def double(number: int) -> int:
        return number * 2

    taken: asyncio.Queue[Claim] = asyncio.Queue()
    store = app._core.engine.enqueue

    async def enqueue(
        jobs: Sequence[NewJob], *, connection: object | None = None, audit: AuditRecord | None = None
    ) -> list[Enqueued]:
        enqueued = await store(jobs, connection=connection, audit=audit)
        taken.put_nowait((await app._core.engine.claim(ClaimRequest(worker_id="somebody"))).claims[0])
        return enqueued

    monkeypatch.setattr(app._core.engine, "enqueue", enqueue)
    with inline(app):
        call = asyncio.create_task(double.enqueue(2))
        claim = await taken.get()
        await asyncio.wait([call], timeout=0.05)
        assert not call.done()
        await app._core.engine.settle([Settlement(claim, Complete("4"))])
        handle = await call
    assert (await handle.info()).status is JobStatus.COMPLETED
    assert await handle.result() == 4


def test_plain_code_runs_its_jobs_too(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def double(number: int) -> int:
        return number * 2

    with inline(app):
        handle = double.sync.enqueue(21)
    assert handle.result(timeout=60) == 42
    app.sync.close()


async def test_keys_are_the_real_ones(app: App):  # H5, O4
    runs = []

    @app.task
    async def charge(order: int) -> None:
        runs.append(order)

    with inline(app):
        first = await charge.using(idempotency_key="7").enqueue(7)
        again = await charge.using(idempotency_key="7").enqueue(7)
    assert (again.id, again.is_new, runs) == (first.id, False, [7])


async def test_what_cannot_be_run_now_waits(app: App, tmp_path: Path):
    @app.task
    async def snoozes(delay: int) -> None:
        raise Snooze(delay)

    @app.task(queue="paused")
    async def paused() -> None: ...

    await app.queues.pause("paused")
    with inline(app):
        assert {(await (await snoozes.enqueue(delay)).info()).status for delay in (0, 60)} == {JobStatus.SCHEDULED}
        assert (await (await paused.enqueue()).info()).status is JobStatus.PENDING


async def test_a_job_in_a_transaction_waits_for_the_commit(tmp_path: Path):  # X4
    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task
        async def send() -> None: ...

        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        with inline(app):
            connection.execute("begin immediate")
            handle = await send.using(connection=connection).enqueue()
            other = await send.using(connection=connection).enqueue()
            connection.execute("commit")
        assert {(await one.info()).status for one in (handle, other)} == {JobStatus.PENDING}
        connection.close()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_job_that_enqueues_itself_for_ever_comes_to_an_end(app: App, is_async):
    if is_async:

        @app.task(name="again")
        async def again() -> None:
            await again.using(delay=60).enqueue()
    else:

        @app.task(name="again")
        def plain() -> None:
            plain.using(delay=60).sync.enqueue()

    with inline(app):
        await app._core.find_task("again").enqueue()
    assert await app.jobs.count() == {"completed": 19, "failed": 1}
    (last,) = (await app.jobs.list(JobFilter(status=frozenset({JobStatus.FAILED})))).items
    assert "does one enqueue itself for ever?" in (last.last_error or "")


async def test_a_bad_call_is_refused_as_ever(app: App):
    @app.task
    async def double(number: int) -> int:
        return number * 2

    with inline(app), pytest.raises(ValueError, match=r"payload\.number"):
        await double.enqueue("two")  # type: ignore[arg-type]
