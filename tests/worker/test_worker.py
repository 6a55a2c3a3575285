"""The worker as a whole, on a real store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from onward import WorkerOptions
from onward.app import App
from onward.context import JobContext
from onward.engine.values import ClaimRequest, QueueChange
from onward.errors import InvalidValue, StoreUnavailable
from onward.job import NewJob
from onward.lifecycle import JobStatus
from onward.worker import running_worker
from tests.worker.conftest import FaultyEngine
from tests.worker.harness import eventually

POLL = timedelta(milliseconds=50)


async def states(app: App) -> dict[str, int]:
    return dict(await app.jobs.count())


async def all_in(app: App, state: JobStatus, count: int) -> bool:
    return await states(app) == {state: count}


async def test_jobs_are_run_and_their_results_kept(app: App):
    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.task
    def triple(number: int) -> int:
        return number * 3

    handles = [await double.enqueue(number=n) for n in range(20)] + [await triple.enqueue(number=n) for n in range(20)]
    async with app.worker():
        results = [await handle.result(timeout=20) for handle in handles]
    assert results == [n * 2 for n in range(20)] + [n * 3 for n in range(20)]


async def test_a_worker_that_is_told_which_tasks_to_run_leaves_the_others_to_others(app: App):
    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    @app.task(queue="video")
    async def render() -> None: ...

    left, done = await render.enqueue(), await send.enqueue()
    async with app.worker(tasks=["send"]) as worker:
        assert await done.result(timeout=20) == "sent"
    assert worker.options.patterns == ("mail",)
    job = await app.jobs.get(left.ref)
    assert job is not None
    assert job.status is JobStatus.PENDING


async def test_tasks_that_share_a_queue_cannot_be_told_apart_by_a_worker(app: App):
    @app.task(queue="mail/{org_id}")
    async def send() -> None: ...

    @app.task(queue="mail/bulk")
    async def spam() -> None: ...

    @app.task(queue="video")
    async def render() -> None: ...

    with pytest.raises(InvalidValue, match="must name 'spam' too, whose jobs are in 'mail/bulk'"):
        app.worker(tasks=["send"])
    with pytest.raises(InvalidValue, match="must name 'send' too"):
        app.worker(tasks=["render"], queues=["*"])
    with pytest.raises(InvalidValue, match="did you mean 'render'"):
        app.worker(tasks=["rendr"])
    assert set(app.worker(tasks=["send", "spam"]).options.patterns) == {"mail/*", "mail/bulk"}


async def test_a_worker_registers_itself_and_leaves_when_it_stops(app: App):  # O5
    @app.task
    async def work() -> None: ...

    async with app.worker(queues=["mail/*", "default"], concurrency=7) as worker:
        await eventually(lambda: _listed(app))
        (info,) = await app._core.engine.workers()
        assert info.id == worker.worker_id
        assert re.fullmatch(rf"{re.escape(socket.gethostname())}-{os.getpid()}-[0-9a-f]{{8}}", info.id)
        assert info.hostname == socket.gethostname()
        assert info.pool_size == 7
        assert info.queues == ("mail/*", "default")
        assert info.types == ("onward.operation", work.name)
        assert info.version
        assert info.started_at is not None
        assert info.last_heartbeat is not None
    assert await app._core.engine.workers() == []


async def _listed(app: App) -> bool:
    return bool(await app._core.engine.workers())


async def test_each_run_of_a_worker_has_a_name_of_its_own(app: App):  # O5
    worker = app.worker()
    names = set()
    for _ in range(3):
        async with worker:
            names.add(worker.worker_id)
    assert len(names) == 3


async def test_the_leader_is_known_as_such(app: App):  # O5, O6
    async with app.worker() as worker:
        await eventually(lambda: worker.is_leader)
        (info,) = await app._core.engine.workers()
        assert info.is_leader
        assert info.leader_until is not None


async def test_urgent_jobs_run_first_then_those_that_have_waited_longer(app: App):  # O3
    order: list[str] = []

    @app.task
    async def note(name: str) -> None:
        order.append(name)

    await note.enqueue(name="first")
    await note.enqueue(name="second")
    await note.using(priority=5).enqueue(name="urgent")
    await note.using(priority=9).enqueue(name="most urgent")
    async with app.worker(concurrency=1):
        await eventually(lambda: len(order) == 4)
    assert order == ["most urgent", "urgent", "first", "second"]


async def test_a_job_without_a_handler_is_put_back_until_a_worker_has_the_task(app: App):  # O8
    (handle,) = await app.enqueue_many([NewJob(type="late")])
    async with app.worker():
        await eventually(lambda: all_in(app, JobStatus.SCHEDULED, 1))
    ran = []

    @app.task
    async def late() -> None:
        ran.append(1)

    async with app.worker():
        await eventually(lambda: all_in(app, JobStatus.COMPLETED, 1))
    job = await app.jobs.get(handle)
    assert (ran, job.attempts) == ([1], 1)


async def test_a_job_without_a_handler_fails_at_once_if_the_worker_says_so(app: App):  # O8
    (handle,) = await app.enqueue_many([NewJob(type="nobody-knows")])
    async with app.worker(unknown_tasks="fail"):
        await eventually(lambda: all_in(app, JobStatus.FAILED, 1))
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert "NoHandler" in (job.last_error or "")


async def test_a_thread_that_cannot_be_started_costs_no_attempt(app: App, monkeypatch: pytest.MonkeyPatch):  # X3, O8
    failures, start = [1, 2, 3], threading.Thread.start

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name.startswith("onward-thread") and failures:
            failures.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)

    @app.task(max_attempts=1)
    def plain() -> None: ...

    handle = await plain.enqueue()
    async with app.worker():
        await eventually(lambda: all_in(app, JobStatus.COMPLETED, 1))
    assert not failures
    job = await app.jobs.get(handle)
    assert (job.attempts, job.crashes, job.errors) == (1, 0, ())


async def test_a_job_that_fails_is_retried_and_in_the_end_buried(app: App):  # O8
    runs = []

    @app.task(max_attempts=3, backoff=None)
    async def fail(context: JobContext) -> None:
        runs.append(context.attempt)
        raise RuntimeError("never again")

    handle = await fail.using(max_attempts=2).enqueue()
    async with app.worker(poll=POLL):
        await eventually(lambda: all_in(app, JobStatus.DEAD_LETTER, 1))
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert runs == [1, 2]
    assert job.attempts == 2
    assert [error.attempt for error in job.errors] == [1, 2]


async def test_one_long_job_does_not_keep_quick_ones_waiting(app: App):
    release = asyncio.Event()
    done: list[int] = []

    @app.task
    async def work(number: int) -> None:
        if number == 0:
            await release.wait()
        done.append(number)

    await work.enqueue_many([{"number": n} for n in range(100)])
    async with app.worker(concurrency=5), app.worker(concurrency=5):
        await eventually(lambda: len(done) == 99)
        assert 0 not in done
        release.set()


async def test_an_outcome_is_stored_while_its_neighbours_still_run(app: App):
    release = asyncio.Event()

    @app.task
    async def work(number: int) -> None:
        if number:
            await release.wait()

    handles = await work.enqueue_many([{"number": n} for n in range(10)])
    async with app.worker():
        await handles[0].result(timeout=20)
        assert (await states(app))[JobStatus.RUNNING] == 9
        release.set()


async def test_no_more_is_held_than_can_run(app: App):
    release = asyncio.Event()
    running = 0

    @app.task
    async def work(number: int) -> None:
        nonlocal running
        running += 1
        await release.wait()

    await work.enqueue_many([{"number": n} for n in range(50)])
    async with app.worker(concurrency=3, poll=POLL), app.worker(concurrency=2, poll=POLL):
        await eventually(lambda: running == 5)
        assert await states(app) == {JobStatus.RUNNING: 5, JobStatus.PENDING: 45}
        release.set()


async def test_each_share_of_the_queues_has_a_concurrency_of_its_own(app: App):
    release = asyncio.Event()
    running: dict[str, int] = {"video": 0, "mail/a": 0, "mail/b": 0}

    @app.task
    async def work(context: JobContext) -> None:
        running[context.queue] += 1
        await release.wait()

    for queue in running:
        for _ in range(10):
            await work.using(queue=queue).enqueue()
    async with app.worker(queues={"video": 1, "mail/*": 4}, poll=POLL):
        await eventually(lambda: sum(running.values()) == 5)
        assert running["video"] == 1
        assert running["mail/a"] + running["mail/b"] == 4
        assert running["mail/a"] > 0 < running["mail/b"]
        release.set()


async def test_queues_that_nobody_asked_for_are_left_alone(app: App):
    @app.task
    async def work() -> None: ...

    mine = await work.using(queue="mine").enqueue()
    await work.using(queue="theirs").enqueue()
    async with app.worker(queues=["mine"], poll=POLL):
        await mine.result(timeout=20)
        assert (await states(app))[JobStatus.PENDING] == 1


async def test_new_work_is_seen_without_waiting_for_the_poll(app: App):
    @app.task
    async def work() -> None: ...

    async with app.worker(poll=timedelta(hours=1)):
        for _ in range(3):
            handle = await work.enqueue()
            await handle.result(timeout=20)


async def test_a_delayed_job_is_promoted_by_the_leader(app: App):
    @app.task
    async def work() -> str:
        return "done"

    handle = await work.using(delay=timedelta(milliseconds=300)).enqueue()
    async with app.worker(poll=timedelta(hours=1)):
        assert await handle.result(timeout=20) == "done"


async def test_a_store_that_goes_away_loses_no_outcome_and_is_taken_up_again(app: App, store: FaultyEngine):  # X3
    release = asyncio.Event()
    runs = 0

    @app.task
    async def work() -> str:
        nonlocal runs
        runs += 1
        await release.wait()
        return "done"

    first = await work.enqueue()
    async with app.worker(poll=POLL):
        await eventually(lambda: runs == 1)
        store.is_unavailable = True
        release.set()
        tries = len(store.exchanges)
        await eventually(lambda: len(store.exchanges) >= tries + 2)
        store.is_unavailable = False
        assert await first.result(timeout=20) == "done"
        assert runs == 1
        second = await work.enqueue()
        assert await second.result(timeout=20) == "done"


async def test_a_worker_gives_up_on_a_store_that_stays_away(app: App, store: FaultyEngine):
    worker = app.worker(give_up_after=timedelta(milliseconds=300), poll=POLL)
    with pytest.raises(StoreUnavailable, match="has not answered"):
        async with worker:
            store.is_unavailable = True
            await eventually(lambda: worker._background_task is not None and worker._background_task.done())
    store.is_unavailable = False


async def test_an_error_other_than_an_absent_store_does_not_end_the_worker(app: App, store: FaultyEngine):
    @app.task
    async def work() -> None: ...

    store.failing_exchanges = 3
    handle = await work.enqueue()
    async with app.worker(poll=POLL):
        await handle.result(timeout=20)
    assert store.failing_exchanges == 0


async def test_a_limited_queue_is_never_claimed_for_slots_that_are_not_free(app: App, store: FaultyEngine):  # P6
    began: list[str] = []

    @app.task
    async def quick(context: JobContext) -> None:
        began.append(context.queue)

    await app._core.engine.configure("slow", QueueChange(global_concurrency=1))
    await quick.enqueue_many([{} for _ in range(500)])
    await quick.using(queue="slow").enqueue_many([{} for _ in range(20)])
    async with app.worker(concurrency=10, poll=POLL):
        await eventually(lambda: len(began) == 520)
        await eventually(lambda: all_in(app, JobStatus.COMPLETED, 520))
    started_later = [one for exchange in store.exchanges for one in exchange.starts]
    assert all(one.ref.queue != "slow" for one in started_later)
    assert all(exchange.request.slots <= 10 for exchange in store.exchanges if exchange.request is not None)


async def test_completing_within_a_transaction_of_the_handlers_own_is_settled_once(app: App, tmp_path: Path):  # X3
    @app.task
    async def work(context: JobContext) -> None:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        with contextlib.closing(connection), connection:
            connection.execute("begin immediate")
            await context.complete({"made": 1}, connection=connection)

    handle = await work.enqueue()
    async with app.worker(poll=POLL) as worker:
        await handle.result(timeout=20)
        await eventually(lambda: worker.tally.get("complete") == 1)
    assert worker.tally == {"complete": 1}
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert job.result == {"made": 1}


async def test_a_worker_retires_when_it_has_done_its_share(app: App):
    @app.task
    async def work() -> None: ...

    await work.enqueue_many([{} for _ in range(3000)])
    worker = app.worker(max_jobs=50, concurrency=10)
    async with asyncio.timeout(20):
        await worker.run()
    done = (await states(app))[JobStatus.COMPLETED]
    assert 50 <= done < 3000
    assert await states(app) == {JobStatus.COMPLETED: done, JobStatus.PENDING: 3000 - done}


async def test_a_worker_retires_when_it_has_grown_too_large(app: App, monkeypatch: pytest.MonkeyPatch):
    held = iter([10 * 1024 * 1024])
    monkeypatch.setattr(running_worker, "resident_memory", lambda: next(held, 2**40))
    async with asyncio.timeout(20):
        await app.worker(max_memory=11).run()


async def test_a_memory_limit_below_what_a_worker_needs_is_refused(app: App):
    with pytest.raises(InvalidValue, match="max_memory = 1: must be more than the"):
        await app.worker(max_memory=1).run()


async def test_a_worker_cannot_run_twice_at_once(app: App):
    async with app.worker() as worker:
        with pytest.raises(RuntimeError, match="running already"):
            await worker.run()


async def test_a_worker_works_beside_an_application(app: App):  # X1: an ASGI lifespan
    @app.task
    async def work() -> str:
        return "done"

    @contextlib.asynccontextmanager
    async def lifespan():
        async with app, app.worker():
            yield

    async with lifespan():
        assert await (await work.enqueue()).result(timeout=20) == "done"


async def test_plain_functions_run_beside_the_loop(app: App):
    threads: set[int] = set()
    barrier = threading.Barrier(5)

    @app.task
    def work() -> None:
        threads.add(threading.get_ident())
        barrier.wait(20)  # only five at once get past

    handles = await work.enqueue_many([{} for _ in range(5)])
    async with app.worker(concurrency=5):
        for handle in handles:
            await handle.result(timeout=20)
    assert threading.get_ident() not in threads
    assert len(threads) == 5


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("queues", {"queues": "mail"}),
        ("queues", {"queues": []}),
        ("queues", {"queues": ["No Such Name"]}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"queues": {"mail": 0}}),
        ("lease", {"lease": timedelta(0)}),
        ("poll", {"poll": timedelta(seconds=-1)}),
        ("grace", {"grace": timedelta(seconds=-1)}),
        ("max_jobs", {"max_jobs": 0}),
        ("process_slots", {"process_slots": 0}),
        ("write_process", {"write_process": "sometimes"}),
    ],
)
async def test_settings_that_cannot_work_are_refused_by_name(app: App, field: str, options: WorkerOptions):
    with pytest.raises(InvalidValue) as refusal:
        app.worker(**options)
    assert refusal.value.field == field


async def test_what_another_worker_holds_is_not_taken(app: App):  # O3
    ran: list[str] = []

    @app.task
    async def work(context: JobContext) -> None:
        ran.append(context.id)

    await work.enqueue_many([{} for _ in range(10)])
    theirs = await app._core.engine.claim(ClaimRequest(worker_id="another", slots=4))
    async with app.worker(poll=POLL):
        await eventually(lambda: len(ran) == 6)
    assert await states(app) == {JobStatus.COMPLETED: 6, JobStatus.RUNNING: 4}
    assert not {claim.ref.id for claim in theirs.claims} & set(ran)
