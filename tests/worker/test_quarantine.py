"""Suspects run alone in child processes, beside all other jobs, and only their own crashes count (SPEC, Counting)."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import pytest

from onward.app import App
from onward.engine.values import ClaimRequest, Claims, QueueChange
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import StoreUnavailable
from onward.handle import JobHandle
from onward.job import Job
from onward.lifecycle import HOLD_TIME, Crashed, Interrupted, JobStatus
from onward.worker.isolated_child import locate_app
from onward.worker.isolation import IsolatedRunner
from onward.worker.processes import Processes
from onward.worker.threads import StartFailed
from tests.worker.harness import claim, eventually

POLL = timedelta(milliseconds=20)
NAME = "tests.worker.isolatedtasks"


@pytest.fixture
async def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModuleType]:
    """The module of the tasks, on a store of this test's own."""
    monkeypatch.setenv("ONWARD_TEST_STORE", str(tmp_path))
    sys.modules.pop(NAME, None)
    module = importlib.import_module(NAME)
    async with module.app:
        yield module
    sys.modules.pop(NAME, None)


async def make_suspects(tasks: ModuleType, *names: str, queue: str = "default", **arguments: object):
    """Enqueue jobs, and let two workers in a row die while they run them."""
    app: App = tasks.app
    engine = app._core.engine
    handles: list[JobHandle[object]] = [await app.tasks[name].using(queue=queue).enqueue(**arguments) for name in names]
    for _ in range(2):
        lease = timedelta(microseconds=1)
        claimed = await engine.claim(ClaimRequest(worker_id="dead", queues=(queue,), slots=len(names), lease=lease))
        assert len(claimed.claims) == len(names)
        term = await engine.elect("leader", lease=timedelta(seconds=30))
        assert term is not None
        await engine.rescue(term, lease=timedelta(seconds=30), max_crashes=3)
        await engine.resign(term)
    for handle in handles:
        job = await read(app, handle)
        assert (job.status, job.is_suspect, job.attempts, job.crashes) == (JobStatus.PENDING, True, 0, 0)
    return handles


async def read(app: App, handle: JobHandle[object]) -> Job:
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    return job


async def has_ended(app: App, handle: JobHandle[object]) -> bool:
    return (await read(app, handle)).completed_at is not None


async def test_suspects_run_in_child_processes_each_in_its_own(tasks: ModuleType):  # Counting
    suspects = await make_suspects(tasks, "innocent", "plain")
    async with tasks.app.worker(poll=POLL, process_slots=2):
        pids = [await handle.result(timeout=60) for handle in suspects]
    assert len({*pids, os.getpid()}) == 3
    for handle in suspects:
        job = await read(tasks.app, handle)
        assert (job.attempts, job.crashes, job.is_suspect) == (1, 0, False)
        assert [line.line for line in await tasks.app._core.engine.logs(handle.ref)] == ["by the middleware"]
    assert (await read(tasks.app, suspects[0])).progress == 50


async def test_a_child_makes_an_app_by_its_factory_and_enters_its_lifespan(tasks: ModuleType, tmp_path: Path):
    made: App = tasks.create_app()
    made.configure(url=tmp_path / "jobs.db")
    made._core.import_path = f"{NAME}:create_app()"  # as the command line notes it
    async with made:
        (suspect,) = await make_suspects(SimpleNamespace(app=made), "stateful")  # type: ignore[arg-type]
        async with made.worker(poll=POLL):
            pid, state = await suspect.result(timeout=60)
    assert pid == state != os.getpid()
    assert locate_app(made._core.engine, ("x:make()", "sqlite://")) is None


async def test_the_worker_goes_on_while_a_suspect_runs(tasks: ModuleType, tmp_path: Path):  # Counting
    (suspect,) = await make_suspects(tasks, "wait_for_file")
    async with tasks.app.worker(poll=POLL, concurrency=10, process_slots=1):
        await eventually(lambda: tasks.runs("wait_for_file began"), timeout=60)
        others = [await tasks.innocent.enqueue() for _ in range(30)]
        for other in others:
            assert await other.result(timeout=60) == os.getpid()
        assert not await has_ended(tasks.app, suspect)
        (tmp_path / "proceed").touch()
        await suspect.result(timeout=60)


async def test_a_job_that_kills_its_process_is_buried_and_its_worker_lives(tasks: ModuleType):  # Counting
    crash, innocent = await make_suspects(tasks, "crash", "innocent")
    async with tasks.app.worker(poll=POLL):
        await eventually(lambda: has_ended(tasks.app, crash), timeout=60)
        assert await innocent.result(timeout=60) != os.getpid()
        assert await (await tasks.innocent.enqueue()).result(timeout=60) == os.getpid()
    job = await read(tasks.app, crash)
    assert (job.status, job.crashes) == (JobStatus.DEAD_LETTER, 3)
    assert "its child process died 3 times while it ran there alone" in (job.last_error or "")
    assert "SIGKILL" in (job.last_error or "")
    assert len(set(tasks.runs("crash ran"))) == 3
    assert ((await read(tasks.app, innocent)).attempts, (await read(tasks.app, innocent)).crashes) == (1, 0)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("crash_retry", JobStatus.SCHEDULED),
        ("crash_fail", JobStatus.FAILED),
        ("crash_hold", JobStatus.SCHEDULED),
    ],
)
async def test_what_becomes_of_a_job_that_crashes_is_its_tasks_to_say(
    tasks: ModuleType, name: str, status: JobStatus
):  # Counting
    (handle,) = await make_suspects(tasks, name)
    async with tasks.app.worker(poll=POLL, max_crashes=1):
        await eventually(lambda: _is(tasks.app, handle, status), timeout=60)
    job = await read(tasks.app, handle)
    assert (job.crashes, job.attempts) == (1, 1)
    assert job.next_run_at is None or (job.next_run_at - job.updated_at > HOLD_TIME / 2) is (name == "crash_hold")
    assert ("held for a person" in (job.last_error or "")) is (name == "crash_hold")


async def test_a_person_releases_a_held_job_by_its_run_at(tasks: ModuleType):  # Counting
    (handle,) = await make_suspects(tasks, "crash_hold")
    async with tasks.app.worker(poll=POLL, max_crashes=1):
        await eventually(lambda: _is(tasks.app, handle, JobStatus.SCHEDULED), timeout=60)
        (tasks.DIRECTORY / "proceed").touch()
        edited = await tasks.app.jobs.edit(handle.id, run_at=datetime.now(UTC))
        assert edited.last_error is not None
        await handle.result(timeout=60)
    assert (await read(tasks.app, handle)).status is JobStatus.COMPLETED


async def _is(app: App, handle: JobHandle[object], status: JobStatus) -> bool:
    return (await read(app, handle)).status is status


async def test_a_suspect_that_fails_is_retried_as_any_other(tasks: ModuleType):  # Counting
    (handle,) = await make_suspects(tasks, "fail")
    async with tasks.app.worker(poll=POLL):
        await eventually(lambda: _is(tasks.app, handle, JobStatus.SCHEDULED), timeout=60)
    job = await read(tasks.app, handle)
    assert (job.attempts, job.crashes, job.is_suspect) == (1, 0, False)
    assert job.last_error == "ValueError: as any other"
    assert job.errors[-1].traceback is not None
    assert "isolatedtasks.py" in job.errors[-1].traceback


async def test_a_handler_that_holds_the_interpreter_past_the_lease_runs_to_its_end_alone(tasks: ModuleType):
    # Counting, O7: the heartbeat is in the worker, so the lease holds
    (handle,) = await make_suspects(tasks, "hold_interpreter", seconds=2.5)
    async with tasks.app.worker(poll=POLL, lease=timedelta(seconds=1)):
        assert await handle.result(timeout=60) != os.getpid()
    job = await read(tasks.app, handle)
    assert (job.status, job.attempts, job.crashes) == (JobStatus.COMPLETED, 1, 0)


async def test_a_timeout_stops_a_plain_suspect(tasks: ModuleType):
    (handle,) = await make_suspects(tasks, "sleep", seconds=3600)
    async with tasks.app.worker(poll=POLL):
        await eventually(lambda: has_ended(tasks.app, handle), timeout=60)
    assert "TimeoutError" in ((await read(tasks.app, handle)).last_error or "")


async def test_a_cancelled_suspect_is_stopped(tasks: ModuleType):
    (handle,) = await make_suspects(tasks, "wait_for_file")
    async with tasks.app.worker(poll=POLL, grace=timedelta(0)):
        await eventually(lambda: tasks.runs("wait_for_file began"), timeout=60)
        (pid,) = tasks.runs("wait_for_file began")
        # Until then the child may learn by its own report that the job is gone.
        await eventually(lambda: tasks.app._core.engine.logs(handle.ref), timeout=60)
        assert await tasks.app.jobs.cancel(handle)
        await eventually(lambda: not _lives(pid), timeout=30)
    assert (await read(tasks.app, handle)).status is JobStatus.CANCELLED


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_stop_gives_a_suspect_back_without_blame(tasks: ModuleType):  # Counting
    (handle,) = await make_suspects(tasks, "wait_for_file")
    async with tasks.app.worker(poll=POLL, grace=timedelta(0)):
        await eventually(lambda: tasks.runs("wait_for_file began"), timeout=60)
    job = await read(tasks.app, handle)
    assert (job.status, job.attempts, job.crashes, job.is_suspect) == (JobStatus.PENDING, 0, 0, True)


async def test_a_stop_while_a_suspect_is_asked_for_is_not_held_against_it(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
):  # Counting
    claim_now, claim_returned = SQLiteEngine.claim, asyncio.Event()

    async def slow(engine: SQLiteEngine, request: ClaimRequest) -> Claims:
        claimed = await claim_now(engine, request)
        if request.alone:
            claim_returned.set()
            await asyncio.sleep(0.05)
        return claimed

    (handle,) = await make_suspects(tasks, "innocent")
    monkeypatch.setattr(SQLiteEngine, "claim", slow)
    async with tasks.app.worker(poll=POLL):
        await asyncio.wait_for(claim_returned.wait(), 20)
    job = await read(tasks.app, handle)
    assert (job.status, job.attempts, job.crashes) == (JobStatus.PENDING, 0, 0)
    assert not tasks.runs("innocent ran")


async def test_a_suspect_in_a_paused_queue_is_not_asked_for_all_the_time(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    claim_now, asked = SQLiteEngine.claim, []

    async def counted(engine: SQLiteEngine, request: ClaimRequest) -> Claims:
        asked.append(request.alone)
        return await claim_now(engine, request)

    await make_suspects(tasks, "innocent", queue="stopped")
    await tasks.app._core.engine.configure("stopped", QueueChange(paused=True))
    monkeypatch.setattr(SQLiteEngine, "claim", counted)
    async with tasks.app.worker(poll=POLL):
        for _ in range(100):
            await (await tasks.innocent.using(queue="open").enqueue()).result(timeout=20)
    assert asked.count(True) < 15


async def test_a_child_that_cannot_be_started_is_no_crash(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
):  # Counting
    failures, request = [1, 2], Processes.request

    async def request_or_fail(processes: Processes, *arguments: object) -> object:
        if failures:
            failures.pop()
            raise StartFailed("no process can be started now")
        return await request(processes, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Processes, "request", request_or_fail)
    monkeypatch.setattr("onward.worker.isolation._RETRY_DELAY", 0.01)
    (handle,) = await make_suspects(tasks, "innocent")
    async with tasks.app.worker(poll=POLL):
        await handle.result(timeout=60)
    job = await read(tasks.app, handle)
    assert (job.attempts, job.crashes, failures) == (1, 0, [])


async def test_a_tick_runs_a_suspect_in_a_child_process_too(tasks: ModuleType):  # H7, Counting
    crash, innocent = await make_suspects(tasks, "crash", "innocent")
    report = await tasks.app.tick()
    assert (report.buried, report.completed, report.released) == (1, 1, 2)
    assert (await read(tasks.app, crash)).crashes == 3
    assert await innocent.result(timeout=20) != os.getpid()


async def test_where_no_child_can_find_the_app_an_innocent_suspect_runs_in_its_worker(tmp_path: Path):  # Counting
    async with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        assert locate_app(app._core.engine) is None

        @app.task(max_attempts=1)
        async def local() -> int:
            return os.getpid()

        (handle,) = await make_suspects(_module(app), "local")
        async with app.worker(poll=POLL):
            assert await handle.result(timeout=60) == os.getpid()
        job = await read(app, handle)
        assert (job.attempts, job.is_suspect, job.errors) == (1, False, ())


async def test_where_no_child_can_find_the_app_a_crasher_is_found_in_its_worker(tmp_path: Path):  # Counting
    async with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        runs = []

        @app.task
        async def local() -> None:
            runs.append(1)

        (handle,) = await make_suspects(_module(app), "local")
        engine = app._core.engine
        dead = IsolatedRunner(engine, worker_id="w", size=1, max_crashes=3, handler_for=lambda _: None, run_here=_die)
        for crashes in (1, 2, 3):
            (held,) = (await engine.claim(ClaimRequest(worker_id="dead", slots=1, lease=_BRIEF, alone=True))).claims
            with pytest.raises(_Died):
                await dead.run(held)
            term = await engine.elect("leader", lease=timedelta(seconds=30))
            assert term is not None
            await engine.rescue(term, lease=timedelta(seconds=30), max_crashes=3)
            await engine.resign(term)
            job = await read(app, handle)
            assert (job.status, job.crashes, job.is_suspect) == (JobStatus.PENDING, crashes, True)
        async with app.worker(poll=POLL):
            await eventually(lambda: has_ended(app, handle), timeout=60)
        job = await read(app, handle)
        assert (job.status, runs) == (JobStatus.DEAD_LETTER, [])
        assert "top level of an importable module" in (job.last_error or "")


_BRIEF = timedelta(microseconds=1)


class _Died(Exception):
    """Ends a run as the death of its process does, as far as the store can see: nothing is settled."""


async def _die(_: object) -> NoReturn:
    raise _Died


def _module(app: App) -> ModuleType:
    module = ModuleType("nowhere")
    module.app = app  # type: ignore[attr-defined]
    return module


async def test_a_crash_that_cannot_be_counted_is_not_held_against_the_job(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    engine = tasks.app._core.engine
    runner = IsolatedRunner(engine, worker_id="w", size=1, max_crashes=1, handler_for=lambda _: None, run_here=_die)

    async def away(_: object) -> bool:
        raise StoreUnavailable("away")

    assert isinstance(await runner._crashed(claim(1), "SIGKILL"), Crashed)
    monkeypatch.setattr(SQLiteEngine, "record_crash", lambda _engine, one: away(one))
    assert isinstance(await runner._crashed(claim(1), "SIGKILL"), Interrupted)
