"""One call does what a worker does all the time."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onward import App, Backoff, Cancel, ClaimLost, DoNotRetry, InvalidValue, JobContext, JobStatus, Snooze
from onward.clock import ManualClock
from onward.engine.values import (
    DEFAULT_LEASE,
    Claim,
    ClaimRequest,
    Claims,
    GroupBy,
    HeartbeatReply,
    JobFilter,
    WorkerInfo,
)
from onward.lifecycle import Commit, SelfCompleted
from onward.testing import detached_context
from onward.worker.runner import CallNext, Runner
from tests.app.test_app import Lesser


async def test_a_tick_does_it_all_without_a_worker(app: App, clock: ManualClock):  # H7
    @app.task(max_attempts=1)
    async def run(how: str) -> None:
        match how:
            case "fail":
                raise DoNotRetry
            case "bury":
                raise ValueError
            case "snooze":
                raise Snooze(60)
            case "cancel":
                raise Cancel

    @app.task
    async def again() -> None:
        raise ValueError

    await run.enqueue_many([("complete",), ("fail",), ("bury",), ("snooze",), ("cancel",)])
    await again.enqueue()
    await run.using(delay=30).enqueue("complete")
    # A worker that dies with a job in its hands.
    await app._core.engine.claim(ClaimRequest(worker_id="dead", slots=1))
    clock.advance(DEFAULT_LEASE + timedelta(seconds=1))
    report = await app.tick(limit=10)
    assert msgspec.to_builtins(report) == {
        "ok": True,
        "fired": 0,
        "promoted": 1,
        "rescued": 1,
        "pruned": 0,
        "claimed": 7,
        "completed": 2,
        "failed": 1,
        "buried": 1,
        "snoozed": 1,
        "cancelled": 1,
        "retried": 1,
        "released": 0,
        "lost": 0,
        "timed_out": False,
    }
    assert await app.workers.list() == []


async def test_a_tick_takes_no_more_than_it_may(app: App):  # H7
    @app.task
    async def run() -> None: ...

    await run.enqueue_many([()] * 250)
    assert (await app.tick(limit=130)).claimed == 130
    assert await app.jobs.count() == {"completed": 130, "pending": 120}
    assert (await app.tick(limit=1000)).claimed == 120
    with pytest.raises(InvalidValue, match="limit = 0"):
        await app.tick(limit=0)


async def test_a_tick_leaves_the_lead_to_whoever_has_it(app: App, clock: ManualClock):  # O6, H7
    @app.task
    async def run() -> None: ...

    await run.using(delay=1).enqueue()
    await run.enqueue()
    await app.open()
    term = await app._core.engine.elect("somebody", lease=timedelta(seconds=30))
    clock.advance(2)
    report = await app.tick()
    assert (report.promoted, report.completed) == (0, 1), "what is ready is run all the same"
    assert term is not None
    await app._core.engine.resign(term)
    assert (await app.tick()).promoted == 1
    assert await app._core.engine.elect("other", lease=timedelta(seconds=30)) is not None, "a tick gives the lead up"


async def test_a_tick_needs_no_leader_where_there_is_none():  # X1, H7
    async with App(engine=Lesser()) as app:

        @app.task
        async def run() -> None: ...

        await run.enqueue()
        assert (await app.tick()).completed == 1


async def test_attempts_are_runs_started_and_not_given_back(app: App, clock: ManualClock):  # Counting
    seen: list[int] = []

    @app.task(max_attempts=2, backoff=Backoff.fixed(10))
    async def run(context: JobContext) -> None:
        seen.append(context.attempt)
        if len(seen) in {1, 3}:
            raise Snooze(10)
        raise ValueError(f"failure {context.attempt}")

    handle = await run.enqueue()
    for _ in range(6):
        await app.tick()
        clock.advance(10)
    job = await handle.info()
    assert seen == [1, 1, 2, 2], "a snooze costs nothing"
    assert (job.status, job.attempts, job.max_attempts) == (JobStatus.DEAD_LETTER, 2, 2)
    assert [error.message for error in job.errors] == ["failure 1", "failure 2"]
    assert job.last_error == "ValueError: failure 2"


async def test_a_failed_attempt_backs_off_as_the_exception_says(app: App, clock: ManualClock):  # O8, H3
    @app.task(backoff=Backoff.fixed(10), retry={ConnectionError: Backoff.fixed(60)})
    async def run(error: str) -> None:
        raise {"connection": ConnectionError, "value": ValueError}[error]

    handles = await run.enqueue_many([("connection",), ("value",)])
    await app.tick()
    waits = [(await handle.info()).next_run_at for handle in handles]
    assert waits == [clock.now() + timedelta(seconds=60), clock.now() + timedelta(seconds=10)]


async def test_a_job_without_a_handler_fails_at_once_if_the_app_says_so(clock: ManualClock):  # O8
    async with App("sqlite://", clock=clock, unknown_tasks="fail") as app:
        handle = (await app.enqueue_many([msgspec.structs.replace(_some_job(app), type="unknown")]))[0]
        assert (await app.tick()).failed == 1
        job = await handle.info()
    assert (job.status, job.attempts) == (JobStatus.FAILED, 1)
    assert (job.last_error or "").startswith("NoHandler: this worker has no task 'unknown'")


async def test_a_job_without_a_handler_is_put_back_at_no_cost_until_the_grace_is_over(
    app: App, clock: ManualClock, caplog: pytest.LogCaptureFixture
):  # O8
    handle = (await app.enqueue_many([msgspec.structs.replace(_some_job(app), type="unknown")]))[0]
    began = clock.now()
    waits: list[float] = []
    while True:
        # Each tick is another worker: how long the job has been put back survives a restart.
        report = await app.tick()
        job = await handle.info()
        if report.failed:
            break
        assert (report.snoozed, job.status, job.attempts, job.last_error) == (1, JobStatus.SCHEDULED, 0, None)
        assert job.next_run_at is not None
        waits.append((job.next_run_at - clock.now()).total_seconds())
        clock.advance(job.next_run_at - clock.now())
    assert 10 < len(waits) < 40
    assert waits[0] < waits[3] < waits[6] <= 330
    assert timedelta(hours=1) <= clock.now() - began <= timedelta(hours=1, seconds=2)
    assert (job.status, (job.last_error or "").partition(":")[0]) == (JobStatus.FAILED, "NoHandler")
    warnings = [record for record in caplog.records if record.levelname == "WARNING" and "put back" in record.message]
    assert {getattr(record, "task", None) for record in warnings} == {"unknown"}
    # Replayed by a person, it has the grace period again.
    await app.jobs.replay(handle)
    assert (await app.tick()).snoozed == 1


async def test_a_job_without_a_handler_is_not_failed_while_a_live_worker_has_its_task(
    app: App, clock: ManualClock
):  # O8
    handle = (await app.enqueue_many([msgspec.structs.replace(_some_job(app), type="unknown")]))[0]
    other = WorkerInfo(id="other", hostname="h", pool_size=1, version="1", types=("unknown",))
    for _ in range(30):
        await app._core.engine.heartbeat(other, [])
        assert (await app.tick()).snoozed == 1
        job = await handle.info()
        assert job.next_run_at is not None
        assert job.next_run_at - clock.now() <= timedelta(seconds=11)
        clock.advance(job.next_run_at - clock.now())
    clock.advance(timedelta(hours=2))
    await app._core.engine.heartbeat(other, [])
    assert (await app.tick()).snoozed == 1
    assert (await handle.info()).attempts == 0


async def test_the_grace_begins_when_the_last_worker_that_has_the_task_is_gone(app: App, clock: ManualClock):  # O8
    handle = (await app.enqueue_many([msgspec.structs.replace(_some_job(app), type="unknown")]))[0]
    other = WorkerInfo(id="other", hostname="h", pool_size=1, version="1", types=("unknown",))
    began = clock.now()
    while clock.now() - began < timedelta(hours=2):  # as in a backlog of the other's
        await app._core.engine.heartbeat(other, [])
        assert (await app.tick()).snoozed == 1
        job = await handle.info()
        assert job.next_run_at is not None
        clock.advance(max(job.next_run_at - clock.now(), timedelta(minutes=5)))
    await app._core.engine.deregister("other")
    gone_at = clock.now()
    while not (await app.tick()).failed:
        job = await handle.info()
        assert job.next_run_at is not None
        clock.advance(job.next_run_at - clock.now())
    assert timedelta(hours=1) <= clock.now() - gone_at <= timedelta(hours=1, seconds=2)


async def test_the_grace_begins_again_after_a_time_in_which_a_job_was_not_put_back(app: App, clock: ManualClock):  # O8
    handle = (await app.enqueue_many([msgspec.structs.replace(_some_job(app), type="unknown")]))[0]
    for _ in range(3):  # its task has run meanwhile, and snoozed it
        assert (await app.tick()).snoozed == 1
        clock.advance(timedelta(hours=2))
    assert (await handle.info()).attempts == 0


@pytest.mark.parametrize("options", [{"unknown_tasks": "drop"}, {"unknown_task_grace": -1}], ids=str)
def test_a_policy_for_unknown_tasks_that_cannot_be_meant_is_refused(options: Any):
    with pytest.raises(InvalidValue):
        App("sqlite://", **options)


def _some_job(app: App) -> Any:
    @app.task
    async def known() -> None: ...

    return known.job()


async def test_a_job_not_started_in_time_is_cancelled(app: App, clock: ManualClock):
    @app.task
    async def run() -> None: ...

    handle = await run.using(start_by=clock.now() + timedelta(seconds=5)).enqueue()
    clock.advance(6)
    assert (await app.tick()).claimed == 0
    assert (await handle.info()).status is JobStatus.CANCELLED


async def test_a_tick_that_is_cancelled_gives_its_jobs_back(app: App):  # X3
    running = asyncio.Event()

    @app.task
    async def run() -> None:
        running.set()
        await asyncio.Event().wait()

    handle = await run.enqueue()
    tick = asyncio.create_task(app.tick())
    await running.wait()
    tick.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tick
    job = await handle.info()
    assert (job.status, job.attempts) == (JobStatus.PENDING, 0)


async def test_a_tick_that_was_too_slow_records_nothing(app: App, clock: ManualClock):  # X3
    running, go_on = asyncio.Event(), asyncio.Event()
    runs = 0

    @app.task
    async def run() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            running.set()
            await go_on.wait()
            return "from the dead"
        return "alive"

    handle = await run.enqueue()
    slow = asyncio.create_task(app.tick())
    await running.wait()
    clock.advance(DEFAULT_LEASE + timedelta(seconds=1))
    second = await app.tick()
    go_on.set()
    report = await slow
    assert (second.rescued, report.completed, report.lost) == (1, 0, 1)
    await app.tick()
    assert await handle.result() == "alive"


async def test_a_long_tick_keeps_its_jobs_and_learns_what_it_has_lost(monkeypatch: pytest.MonkeyPatch):
    app = App("sqlite://", lease=1)
    running, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def run() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    handle = await run.enqueue()
    beats: list[HeartbeatReply] = []
    beat = app._core.engine.heartbeat_sync

    def heartbeat(worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        beats.append(beat(worker, claims))
        return beats[-1]

    monkeypatch.setattr(app._core.engine, "heartbeat_sync", heartbeat)
    tick = asyncio.create_task(app.tick())
    await running.wait()
    await app.jobs.cancel(handle, reason="enough")
    await stopped.wait()
    report = await tick
    assert beats
    assert (report.lost, (await handle.info()).last_error) == (1, "enough")
    assert await app.workers.list() == [], "it leaves no worker behind"
    await app.close()


# What a run says about its job


async def test_progress_and_lines_are_stored_with_the_job(app: App):  # B8
    @app.task
    async def asynchronous(context: JobContext) -> None:
        context.set_progress(10)
        context.set_progress(70, "nearly")
        for number in range(3):
            context.log(f"line {number}")

    @app.task
    def plain(context: JobContext) -> None:
        context.log("from a thread")
        context.set_progress(100)
        raise ValueError

    first, second = await asynchronous.enqueue(), await plain.enqueue()
    await app.tick()
    job = await first.info()
    assert (job.progress, job.progress_message) == (70, "nearly")
    assert [line.line for line in await app.jobs.logs(first)] == ["line 0", "line 1", "line 2"]
    assert (await second.info()).progress == 100
    assert [line.line for line in await app.jobs.logs(second.id)] == ["from a thread"]


async def test_progress_is_seen_while_the_job_runs(app: App):
    go_on = asyncio.Event()

    @app.task
    async def run(context: JobContext) -> None:
        context.set_progress(50, "half-way")
        context.log("on it")
        await go_on.wait()
        context.log("done")

    handle = await run.enqueue()
    tick = asyncio.create_task(app.tick())
    job = await handle.info()
    async with contextlib.aclosing(_changes(app)) as changes:
        while job.progress is None:
            await anext(changes)
            job = await handle.info()
    assert (job.status, job.progress, job.progress_message) == (JobStatus.RUNNING, 50, "half-way")
    go_on.set()
    await tick
    assert [line.line for line in await app.jobs.logs(handle)] == ["on it", "done"]


async def _changes(app: App) -> AsyncGenerator[object, None]:
    async for signal in app._core.engine.signals(("*",)):
        yield signal


async def test_only_the_newest_thousand_lines_are_kept(app: App):  # B8
    @app.task
    async def run(context: JobContext) -> None:
        for number in range(1500):
            context.log(str(number))

    handle = await run.enqueue()
    await app.tick()
    assert [line.line for line in await app.jobs.logs(handle)] == [str(number) for number in range(500, 1500)]


async def test_progress_is_refused_where_the_engine_has_none():  # X1
    async with App(engine=Lesser()) as app:

        @app.task(max_attempts=1)
        async def run(context: JobContext) -> None:
            context.set_progress(1)

        handle = await run.enqueue()
        await app.tick()
        assert "Lesser does not offer progress" in ((await handle.info()).last_error or "")


# Completing in a transaction of the handler's own


class Ledger:
    """A file that holds jobs and, beside them, what their handlers wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    def rows(self) -> list[int]:
        connection = self.connect()
        try:
            return [row[0] for row in connection.execute("select number from ledger")]
        finally:
            connection.close()


@pytest.fixture
async def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "jobs.db")
    connection = ledger.connect()
    connection.execute("create table ledger (number)")
    connection.close()
    return ledger


@pytest.fixture
async def booking(ledger: Ledger, clock: ManualClock) -> AsyncIterator[App]:
    async with App(f"sqlite:///{ledger.path}", clock=clock) as app:
        yield app


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_job_is_done_if_and_only_if_its_transaction_commits(booking: App, ledger: Ledger, is_async):  # X3
    async def asynchronous(context: JobContext, number: int, end: str) -> str:
        connection = ledger.connect()
        connection.execute("begin immediate")
        connection.execute("insert into ledger values (?)", (number,))
        await context.complete(f"booked {number}", connection=connection)
        connection.execute(end)
        connection.close()
        return "not recorded"

    def plain(context: JobContext, number: int, end: str) -> str:
        connection = ledger.connect()
        connection.execute("begin immediate")
        connection.execute("insert into ledger values (?)", (number,))
        context.sync.complete(f"booked {number}", connection=connection)
        connection.execute(end)
        connection.close()
        return "not recorded"

    book = booking.task(name="book", max_attempts=3)(asynchronous if is_async else plain)
    done = await book.enqueue(1, "commit")
    report = await booking.tick()
    assert (report.completed, report.lost) == (1, 0)
    assert await done.result() == "booked 1"
    undone = await book.enqueue(2, "rollback")
    report = await booking.tick()
    assert (report.completed, report.retried) == (0, 1), "a transaction that did not commit is a failed attempt"
    assert "RolledBack" in ((await undone.info()).last_error or "")
    assert ledger.rows() == [1]


async def test_a_handler_may_go_on_after_it_has_completed_its_job(booking: App, ledger: Ledger):
    lost: list[bool] = []

    async def slowly(context: JobContext, call_next: CallNext) -> Any:
        await call_next()
        # The next heartbeat finds that the job is not held any more.
        lost.append(runner.cancel(token))
        await asyncio.sleep(0)
        return "to the end"

    runner = Runner(handlers=booking._core.handlers, engine=booking._core.engine, worker_id="me", middleware=[slowly])

    @booking.task
    async def book(context: JobContext) -> str | None:
        connection = ledger.connect()
        connection.execute("begin immediate")
        await context.complete("done", connection=connection)
        connection.execute("commit")
        connection.close()
        return None

    handle = await book.enqueue()
    (claim,) = (await booking._core.engine.claim(ClaimRequest(worker_id="me"))).claims
    token = claim.token
    assert await runner.run(claim) == SelfCompleted(Commit.COMMITTED, '"done"')
    assert lost == [False]
    assert await handle.result() == "done"


async def test_a_handler_that_fails_after_completing_is_judged_by_its_transaction(booking: App, ledger: Ledger):  # X3
    @booking.task
    async def book(context: JobContext, number: int, end: str) -> int:
        connection = ledger.connect()
        connection.execute("begin immediate")
        connection.execute("insert into ledger values (?)", (number,))
        await context.complete(number, connection=connection)
        connection.execute(end)
        connection.close()
        raise ValueError("afterwards")

    done, undone = await book.enqueue(1, "commit"), await book.enqueue(2, "rollback")
    report = await booking.tick()
    assert (report.lost, report.retried) == (1, 1)
    assert await done.result() == 1
    assert (await undone.info()).last_error == "ValueError: afterwards"
    assert ledger.rows() == [1]


async def test_a_lost_claim_cannot_complete_within_a_transaction(
    booking: App, ledger: Ledger, clock: ManualClock
):  # X3
    running, go_on = asyncio.Event(), asyncio.Event()
    told: list[BaseException] = []

    @booking.task
    async def book(context: JobContext) -> None:
        if context.attempt == 1 and not running.is_set():
            running.set()
            await go_on.wait()
            connection = ledger.connect()
            connection.execute("begin immediate")
            connection.execute("insert into ledger values (1)")
            try:
                await context.complete(connection=connection)
            except ClaimLost as error:
                told.append(error)
                connection.execute("rollback")
                raise
            finally:
                connection.close()

    handle = await book.enqueue()
    slow = asyncio.create_task(booking.tick())
    await running.wait()
    clock.advance(DEFAULT_LEASE + timedelta(seconds=1))
    assert (await booking.tick()).rescued == 1
    go_on.set()
    report = await slow
    assert [type(error) for error in told] == [ClaimLost]
    assert (report.completed, ledger.rows()) == (0, [])
    await booking.tick()
    assert (await handle.info()).status is JobStatus.COMPLETED


async def test_there_is_nothing_to_complete_when_a_handler_is_called_by_hand(ledger: Ledger):
    connection = ledger.connect()
    with pytest.raises(ClaimLost, match="called by hand"):
        await detached_context().complete(connection=connection)
    with pytest.raises(ClaimLost, match="called by hand"):
        await asyncio.to_thread(detached_context().sync.complete, connection=connection)
    connection.close()


@pytest.mark.parametrize("verb", ["elect", "rescue", "promote", "claim", "settle", "resign"])
@pytest.mark.parametrize("is_done_first", [True, False])
async def test_a_cancelled_tick_leaves_nothing_behind(
    app: App, monkeypatch: pytest.MonkeyPatch, verb: str, is_done_first: bool
):  # H7
    """Whatever it was waiting for: a claim or a term that was granted is given back."""

    @app.task
    async def work() -> None:
        pass

    await work.enqueue_many([()] * 20)
    engine: Any = app._core.engine
    original = getattr(engine, verb)
    reached = asyncio.Event()

    async def slow(*args: Any, **options: Any) -> Any:
        if is_done_first:
            answer = await original(*args, **options)
            reached.set()
            await asyncio.sleep(0.05)
            return answer
        reached.set()
        await asyncio.sleep(0.05)
        return await original(*args, **options)

    monkeypatch.setattr(engine, verb, slow)
    tick = asyncio.create_task(app.tick(limit=20))
    await reached.wait()
    tick.cancel()
    await asyncio.wait([tick])
    assert tick.cancelled()
    monkeypatch.undo()
    counts = dict(await engine.count(JobFilter(), by=GroupBy.STATUS))
    assert counts.keys() <= {"pending", "completed"}
    assert await engine.elect("another", lease=DEFAULT_LEASE) is not None


async def test_a_cancelled_tick_gives_back_jobs_whose_handlers_have_not_begun(app: App):  # H7
    @app.task
    async def cancel_first(number: int) -> None:
        if number == 0:
            tick.cancel()
        await asyncio.sleep(3600)

    await cancel_first.enqueue_many([(number,) for number in range(20)])
    tick = asyncio.create_task(app.tick(limit=20))
    await asyncio.wait([tick])
    assert tick.cancelled()
    assert dict(await app._core.engine.count(JobFilter(), by=GroupBy.STATUS)) == {"pending": 20}


async def test_a_cancelled_tick_starts_no_further_handlers(app: App, monkeypatch: pytest.MonkeyPatch):  # H7
    begun: list[int] = []

    @app.task
    async def work(number: int) -> None:
        begun.append(number)

    await work.enqueue_many([(number,) for number in range(20)])
    engine: Any = app._core.engine
    claim = engine.claim

    async def claim_as_the_tick_is_cancelled(request: ClaimRequest) -> Claims:
        claimed: Claims = await claim(request)
        tick.cancel()
        for _ in range(10):  # turns of the loop until the tick has noticed
            await asyncio.sleep(0)
        return claimed

    monkeypatch.setattr(engine, "claim", claim_as_the_tick_is_cancelled)
    tick = asyncio.create_task(app.tick(limit=20))
    await asyncio.wait([tick])
    assert tick.cancelled()
    assert begun == []
    jobs = (await engine.find(JobFilter())).items
    assert [(job.status, job.attempts) for job in jobs] == [(JobStatus.PENDING, 0)] * 20
