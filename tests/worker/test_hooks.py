"""What is called when a job has ended: once, after the outcome is recorded, and without a say in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from onward import (
    App,
    Backoff,
    Cancel,
    DoNotRetry,
    FailedAttempt,
    InvalidValue,
    Job,
    JobContext,
    JobStatus,
    Retry,
    Snooze,
    StoreUnavailable,
)
from onward.engine.values import Claim, Settlement
from onward.job import JobRef
from onward.lifecycle import Complete
from onward.worker.hooks import Hooks
from tests.worker.harness import eventually

LONG = 60


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@pytest.mark.parametrize("by", ["worker", "tick"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_hook_is_called_after_the_outcome_is_recorded(app: App, by: str, is_async: bool):
    called: list[tuple[object, ...]] = []
    done = threading.Event()

    def note(context: JobContext, value: object, job: Job) -> None:
        called.append((context.type, context.payload, context.attempt, value, job.status.value))
        if len(called) == 2:
            done.set()

    def shown(error: FailedAttempt) -> object:
        return error.attempt, error.error_type, error.message, "in pay" in (error.traceback or "")

    async def on_success(context: JobContext, result: int) -> None:
        note(context, result, await app.jobs.get(context.ref))

    async def on_failure(context: JobContext, error: FailedAttempt) -> None:
        note(context, shown(error), await app.jobs.get(context.ref))

    def plain_success(context: JobContext, result: int) -> None:
        note(context, result, app.sync.jobs.get(context.ref))

    def plain_failure(context: JobContext, error: FailedAttempt) -> None:
        note(context, shown(error), app.sync.jobs.get(context.ref))

    @app.task(
        max_attempts=2,
        backoff=Backoff.fixed(0.001),
        on_success=on_success if is_async else plain_success,
        on_failure=on_failure if is_async else plain_failure,
    )
    async def pay(amount: int) -> int:
        if amount < 0:
            raise ValueError("negative")
        return amount

    await pay.enqueue_many([(3,), (-3,)])
    if by == "worker":
        async with app.worker():
            await eventually(done.is_set)
    else:
        while not done.is_set():
            await app.tick()
    assert sorted(called, key=str) == [
        ("pay", {"amount": -3}, 2, (2, "ValueError", "negative", True), "dead_letter"),
        ("pay", {"amount": 3}, 1, 3, "completed"),
    ]


@pytest.mark.parametrize("by", ["worker", "tick"])
async def test_a_hook_gets_the_result_that_is_stored(app: App, tmp_path: Path, by: str):
    called: dict[str, object] = {}

    def on_success(context: JobContext, result: int) -> None:
        called[context.type] = result

    @app.task(on_success=on_success, store_result=False)
    async def unstored() -> int:
        return 1

    @app.task(on_success=on_success)
    async def completed(context: JobContext) -> int:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        with contextlib.closing(connection), connection:
            connection.execute("begin immediate")
            await context.complete(42, connection=connection)
        return 1

    await unstored.enqueue()
    await completed.enqueue()
    if by == "worker":
        async with app.worker():
            await eventually(lambda: len(called) == 2)
    else:
        await app.tick()
    assert called == {"unstored": None, "completed": 42}


@pytest.mark.parametrize("by", ["worker", "tick"])
@pytest.mark.parametrize("end", ["lost", "unknown"])
async def test_a_job_that_is_not_known_to_be_completed_calls_no_hook(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, end: str
):  # X3
    called: list[object] = []
    asked: list[JobRef] = []

    @app.task(on_success=lambda _context, result: called.append(result))
    async def completed(context: JobContext) -> int:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        with contextlib.closing(connection), connection:
            connection.execute("begin immediate")
            await context.complete(42, connection=connection)
        return 1

    handle = await completed.enqueue()
    inner = app._core.engine.inner
    get = inner.get

    async def answer(ref: JobRef) -> Job | None:
        asked.append(ref)
        if end == "unknown":
            raise StoreUnavailable("gone")
        job = await get(ref)
        return None if job is None else replace(job, status=JobStatus.CANCELLED)

    monkeypatch.setattr(inner, "get", answer)
    if by == "worker":
        async with app.worker() as worker:
            await eventually(lambda: bool(asked))
        assert worker.tally == ({"stale_rejections": 1} if end == "lost" else {})
    else:
        report = await app.tick()
        assert (report.claimed, report.completed, report.lost) == (1, 0, int(end == "lost"))
    assert asked == [handle.ref]
    assert called == []


async def test_only_final_failures_call_a_hook(app: App):
    called: list[str] = []

    @app.task(
        max_attempts=5,
        backoff=Backoff.fixed(3600),
        on_success=lambda _context, _result: called.append("success"),
        on_failure=lambda _context, error: called.append(error.error_type),
    )
    async def end(how: str) -> None:
        raise {"retry": ValueError(), "snooze": Snooze(60), "cancel": Cancel(), "stop": DoNotRetry()}[how]

    await end.enqueue_many([("retry",), ("snooze",), ("cancel",), ("stop",)])
    await app.tick()
    assert called == ["DoNotRetry"]


async def test_a_hook_that_fails_is_logged_and_changes_nothing(app: App, caplog: pytest.LogCaptureFixture):
    async def fail(_context: JobContext, _result: int) -> None:
        raise RuntimeError("the hook is broken")

    @app.task(on_success=fail)
    async def pay() -> int:
        return 1

    handle = await pay.enqueue()
    with caplog.at_level(logging.ERROR, "onward.worker"):
        await app.tick()
    assert (await handle.info()).status is JobStatus.COMPLETED
    (record,) = [record for record in caplog.records if "hook failed" in record.message]
    assert record.exc_info is not None
    assert "the hook is broken" in str(record.exc_info[1])
    assert getattr(record, "job_id") == handle.id  # noqa: B009 - the log record's own extras


async def test_a_worker_that_stops_waits_for_its_hooks(app: App):
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow(_context: JobContext, _result: None) -> None:
        began.set()
        while await app.workers.list():  # the worker leaves the list when all else is done
            await asyncio.sleep(0)
        await app.jobs.count()
        ended.set()

    @app.task(on_success=slow)
    async def pay() -> None: ...

    await pay.enqueue()
    async with app.worker():
        await asyncio.wait_for(began.wait(), LONG)
    assert ended.is_set()


async def test_hooks_that_never_end_are_cancelled(app: App, caplog: pytest.LogCaptureFixture):
    async def never(_context: JobContext, _result: None) -> None:
        await asyncio.Event().wait()

    @app.task(on_success=never)
    async def pay() -> None: ...

    handlers = app._core.handlers
    hooks = Hooks(handlers.values(), handler_for=lambda claim: handlers[claim.type], worker_id="me")
    claim = Claim(ref=JobRef("default", "1"), token=(1, 1), type="pay", payload="{}", attempts=1, started=True)
    hooks.after(lambda _: None)([Settlement(claim, Complete())])
    await hooks.finish(0.01)
    assert "1 hooks cancelled" in caplog.text


def test_tasks_without_hooks_cost_nothing(app: App):
    @app.task
    async def pay() -> None: ...

    handlers = app._core.handlers

    def count(_: object) -> None: ...

    assert Hooks(handlers.values(), handler_for=handlers.__getitem__, worker_id="me").after(count) is count  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["on_success", "on_failure"])
def test_a_hook_must_be_a_function(app: App, field: str):
    with pytest.raises(InvalidValue, match=f"{field} = 'mail'"):
        app.task(**{field: "mail"})  # type: ignore[call-overload]


async def test_a_handler_chooses_when_to_be_retried_and_it_counts_as_an_attempt(app: App):  # O8
    failed: list[FailedAttempt] = []

    @app.task(max_attempts=2, on_failure=lambda _context, error: failed.append(error))
    async def call(context: JobContext) -> None:
        try:
            raise ConnectionError("busy")
        except ConnectionError as error:
            raise Retry(3600 if context.attempt == 1 else 0) from error

    handle = await call.enqueue()
    await app.tick()
    waiting = await handle.info()
    assert (waiting.status, waiting.attempts, waiting.last_error) == (JobStatus.SCHEDULED, 1, "ConnectionError: busy")
    assert waiting.next_run_at is not None
    assert 3500 < (waiting.next_run_at - waiting.updated_at).total_seconds() < 3700
    await app.jobs.edit(handle, run_at=waiting.created_at)
    await app.tick()
    buried = await handle.info()
    assert (buried.status, buried.attempts) == (JobStatus.DEAD_LETTER, 2)
    assert [error.error_type for error in failed] == ["ConnectionError"]
