"""Stopping: in good order, within the grace, at no cost to the jobs that did not get to their end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from onward.app import App
from onward.context import JobContext
from onward.engine.values import Exchange, Exchanged
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import StoreCorrupt, StoreMisconfigured, StoreUnavailable
from onward.lifecycle import JobStatus
from onward.worker.deadline import Deadline
from tests.worker.conftest import FaultyEngine
from tests.worker.harness import eventually

POLL = timedelta(milliseconds=50)


async def test_what_runs_is_waited_for(app: App):
    began, proceed = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        began.set()
        await proceed.wait()
        return "done"

    handle = await work.enqueue()
    async with app.worker() as worker:
        await asyncio.wait_for(began.wait(), 20)
        worker.stop()
        await asyncio.sleep(0)
        proceed.set()
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.result) == (JobStatus.COMPLETED, "done")


async def test_nothing_is_claimed_once_it_stops(app: App):
    began, proceed = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(number: int) -> None:
        began.set()
        await proceed.wait()

    await work.enqueue(number=0)
    async with app.worker(poll=POLL) as worker:
        await asyncio.wait_for(began.wait(), 20)
        worker.stop()
        await work.enqueue_many([{"number": n} for n in range(1, 20)])
        proceed.set()
    assert dict(await app.jobs.count()) == {JobStatus.COMPLETED: 1, JobStatus.PENDING: 19}


async def test_what_outlasts_the_grace_is_given_back_with_its_attempt(app: App):  # Counting
    stopped = asyncio.Event()
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    handle = await work.enqueue()
    async with app.worker(grace=timedelta(0)):
        await asyncio.wait_for(began.wait(), 20)
    assert stopped.is_set()
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (JobStatus.PENDING, 0, False)


async def test_a_handler_that_swallows_its_cancellation_does_not_outlast_the_grace(
    app: App, monkeypatch: pytest.MonkeyPatch
):  # Counting
    began, let_go = asyncio.Event(), asyncio.Event()
    waits: list[float] = []

    class RecordedDeadline(Deadline):
        def timeout(self, seconds: float) -> asyncio.Timeout:
            waits.append(seconds)
            return super().timeout(seconds)

    monkeypatch.setattr("onward.worker.running_worker.Deadline", RecordedDeadline)

    @app.task
    async def stubborn() -> None:
        began.set()
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    handle = await stubborn.enqueue()
    async with app.worker(grace=timedelta(seconds=5)) as worker:
        await asyncio.wait_for(began.wait(), 20)
        for_handlers = len(waits)
        worker.stop()
    unstoppable, job = worker.unstoppable, await app._core.engine.get(handle.ref)
    let_go.set()
    await eventually(lambda: not slot_tasks())
    waited_for_end, waited_for_cancelled = waits[for_handlers : for_handlers + 2]
    assert waited_for_cancelled > 0
    assert waited_for_end + waited_for_cancelled == pytest.approx(5)
    assert unstoppable == 1
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (JobStatus.PENDING, 0, False)


async def test_a_plain_function_that_outlasts_the_grace_is_given_back_too(app: App):  # Counting
    began, proceed = threading.Event(), threading.Event()

    @app.task
    def work() -> None:
        began.set()
        proceed.wait(20)

    handle = await work.enqueue()
    async with app.worker(grace=timedelta(0)):
        await eventually(began.is_set)
    proceed.set()
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (JobStatus.PENDING, 0, False)


async def test_leases_are_kept_while_the_worker_stops(app: App, store: FaultyEngine):
    began, proceed = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await proceed.wait()

    handle = await work.enqueue()
    async with app.worker(lease=timedelta(seconds=1)) as worker:
        await asyncio.wait_for(began.wait(), 20)
        worker.stop()
        heartbeats = len(store.heartbeats)
        await eventually(lambda: len(store.heartbeats) > heartbeats + 5)
        assert [one.ref for one in store.heartbeats[-1][1]] == [handle.ref]
        proceed.set()
    assert dict(await app.jobs.count()) == {JobStatus.COMPLETED: 1}


async def test_a_worker_that_is_cancelled_gives_back_what_it_holds(app: App):
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    await work.enqueue()
    running = asyncio.create_task(app.worker().run())
    await asyncio.wait_for(began.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert dict(await app.jobs.count()) == {JobStatus.PENDING: 1}
    assert await app._core.engine.workers() == []


async def test_a_worker_whose_block_is_cancelled_does_not_wait_for_the_grace(app: App):
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    async def beside() -> None:
        async with app.worker(grace=timedelta(hours=1)):
            await asyncio.Event().wait()

    await work.enqueue()
    running = asyncio.create_task(beside())
    await asyncio.wait_for(began.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert dict(await app.jobs.count()) == {JobStatus.PENDING: 1}
    assert await app._core.engine.workers() == []


async def test_a_worker_that_is_cancelled_while_it_stops_waits_no_longer(app: App):
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    await work.enqueue()
    worker = app.worker(grace=timedelta(hours=1))
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(began.wait(), 20)
    worker.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert dict(await app.jobs.count()) == {JobStatus.PENDING: 1}


async def test_a_worker_that_is_cancelled_before_its_block_begins_is_gone(app: App, store: FaultyEngine):
    opening = asyncio.Event()

    async def slow_to_open() -> None:
        opening.set()
        await asyncio.Event().wait()

    async def beside() -> None:
        async with app.worker():
            raise AssertionError("it has not begun")

    store.open = slow_to_open  # type: ignore[attr-defined]
    running = asyncio.create_task(beside())
    await asyncio.wait_for(opening.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    # The app's fixture looks for what is left.


async def cancelled_twice(running: asyncio.Task[None]) -> None:
    running.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)


async def test_a_second_cancellation_does_not_wait_for_the_store(app: App, store: FaultyEngine, monkeypatch):
    monkeypatch.setattr("onward.worker.running_worker._FLUSH_TIMEOUT", 3600)
    asked = asyncio.Event()

    async def never_answers(_: object) -> Exchanged:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    store.exchange = never_answers  # type: ignore[assignment,method-assign]
    running = asyncio.create_task(app.worker().run())
    await asyncio.wait_for(asked.wait(), 20)
    await cancelled_twice(running)


async def test_a_second_cancellation_does_not_wait_for_handlers_that_clean_up(app: App, monkeypatch):  # Counting
    monkeypatch.setattr("onward.worker.running_worker._FLUSH_TIMEOUT", 3600)
    began, clean = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await clean.wait()

    handle = await work.enqueue()
    worker = app.worker(grace=timedelta(hours=5))
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(began.wait(), 20)
    await cancelled_twice(running)
    assert worker.unstoppable == 1
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (JobStatus.PENDING, 0, False)
    clean.set()
    await eventually(lambda: not slot_tasks())


def slot_tasks() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "onward-slot"]


async def test_what_has_ended_is_stored_though_the_rest_of_its_notes_is_not(app: App, store: FaultyEngine):  # X3
    reporting = asyncio.Event()

    async def slow_to_note(*_: object, **__: object) -> bool:
        reporting.set()
        await asyncio.Event().wait()
        return True

    @app.task
    async def work(context: JobContext) -> str:
        context.log("almost")
        return "done"

    store.report = slow_to_note  # type: ignore[attr-defined]
    handle = await work.enqueue()
    async with app.worker(grace=timedelta(0)):
        await asyncio.wait_for(reporting.wait(), 20)
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.result) == (JobStatus.COMPLETED, "done")


def test_a_loop_that_ends_under_a_worker_loses_no_outcome(tmp_path: Path):  # X3
    async def main() -> None:
        store = FaultyEngine(SQLiteEngine(tmp_path / "jobs.db"))
        app = App(engine=store)
        exchange, ended = store.exchange, asyncio.Event()

        async def slow_to_settle(sent: Exchange) -> Exchanged:
            if sent.settlements:
                ended.set()
                await asyncio.sleep(3600)
            return await exchange(sent)

        @app.task
        async def work() -> None: ...

        store.exchange = slow_to_settle  # type: ignore[assignment,method-assign]
        await app.open()
        await work.enqueue()
        tasks.append(asyncio.create_task(app.work()))
        await asyncio.wait_for(ended.wait(), 20)

    async def states() -> dict[str, int]:
        async with App(f"sqlite:///{tmp_path}/jobs.db") as app:
            return dict(await app.jobs.count())

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())  # cancels whatever still runs, the round trip as well
    assert asyncio.run(states()) == {JobStatus.COMPLETED: 1}


async def test_stopping_while_the_store_is_away_ends_all_the_same(app: App, store: FaultyEngine, monkeypatch):
    monkeypatch.setattr("onward.worker.running_worker._FLUSH_TIMEOUT", 0.2)
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()

    await work.enqueue()
    async with asyncio.timeout(20):
        async with app.worker(grace=timedelta(seconds=0.1)):
            store.is_unavailable = True
    store.is_unavailable = False


async def test_stopping_is_heard_from_any_thread(app: App):
    async with asyncio.timeout(20), app.worker() as worker:
        threading.Thread(target=worker.stop).start()
        await eventually(lambda: worker._background_task is not None and worker._background_task.done())


async def test_a_worker_told_to_stop_before_it_ran_does_not_work(app: App):
    @app.task
    async def work() -> None: ...

    await work.enqueue()
    worker = app.worker()
    worker.stop()
    async with asyncio.timeout(20):
        await worker.run()
    assert dict(await app.jobs.count()) == {JobStatus.PENDING: 1}


def test_a_worker_may_run_again_on_another_loop(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work() -> str:
        return "done"

    worker = app.worker()

    async def once() -> str:
        async with app, worker:
            return await (await work.enqueue()).result(timeout=20)

    assert [asyncio.run(once()), asyncio.run(once())] == ["done", "done"]


async def test_a_worker_told_to_stop_before_the_store_could_be_opened_stops(app: App, store: FaultyEngine):
    tried = asyncio.Event()

    async def unreachable() -> None:
        tried.set()
        raise StoreUnavailable("not yet")

    store.open = unreachable  # type: ignore[attr-defined]
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(tried.wait(), 20)
    worker.stop()
    async with asyncio.timeout(20):
        await running


async def test_one_failure_at_the_end_does_not_keep_a_worker_on_the_list(app: App, store: FaultyEngine):  # X3
    async def fails(term: object) -> None:
        raise MemoryError

    store.resign = fails  # type: ignore[attr-defined]
    worker = app.worker()
    async with worker:
        await eventually(lambda: worker._running is not None and worker._running.leader.term is not None)
    assert await app._core.engine.workers() == []


PERMANENT = [StoreCorrupt("damaged"), StoreMisconfigured("evicts jobs")]


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: type(error).__name__)
async def test_a_worker_does_not_wait_for_a_store_that_only_a_person_can_mend(app: App, store: FaultyEngine, error):
    async def refuse() -> None:
        raise error

    store.open = refuse  # type: ignore[attr-defined]
    async with asyncio.timeout(20):
        with pytest.raises(type(error), match=str(error)):
            await app.worker().run()


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: type(error).__name__)
async def test_a_worker_ends_when_only_a_person_can_mend_its_store(app: App, store: FaultyEngine, error):
    async def refuse(exchange: object) -> None:
        raise error

    store.exchange = refuse  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(20):
        with pytest.raises(type(error), match=str(error)):
            await app.worker().run()


async def test_a_worker_waits_for_a_store_that_is_not_there_yet(app: App, store: FaultyEngine):
    failures = 2

    async def slow_to_come() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("not yet")

    @app.task
    async def work() -> str:
        return "done"

    store.open = slow_to_come  # type: ignore[attr-defined]
    handle = await work.enqueue()
    async with app.worker():  # does not wait for it
        assert failures
        assert await handle.result(timeout=20) == "done"
