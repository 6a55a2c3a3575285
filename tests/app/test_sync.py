"""The sync API: complete, on one thread for each App, and refused where it would block an event loop."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from onward import (
    App,
    EventLoopRunning,
    InvalidValue,
    JobContext,
    JobFailed,
    JobStatus,
    StoreUnavailable,
    events,
    sync,
)
from onward.loop_thread import LoopThread
from onward.testing import detached_context
from tests.app.generate_sync import COMMAND, SOURCES, TARGET, Source, generated

LONG = 60
"""Seconds: no test takes so long, unless something hangs."""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.sync.close()


# Complete, and the same


def test_the_module_is_what_the_generator_writes():
    pytest.importorskip("ruff")
    assert TARGET.read_text(encoding="utf-8") == generated(), f"run: {COMMAND}"


def asynchronous(source: Source) -> type:
    kind: type = getattr(importlib.import_module(f"onward.{source.module}"), source.name)
    return kind


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_whatever_waits_has_a_sync_form_with_the_same_parameters(source: Source):
    inner, outer = asynchronous(source), getattr(sync, f"Sync{source.name}")
    assert inner.__doc__
    waits = {
        name: member
        for name, member in vars(inner).items()
        if not name.startswith("_") and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
    }
    assert waits
    for name, member in waits.items():
        made = getattr(outer, name)
        assert not inspect.iscoroutinefunction(made)
        assert made.__doc__
        ours, theirs = inspect.signature(made).parameters, inspect.signature(member).parameters
        assert list(ours) == list(theirs), name
        assert [each.default for each in ours.values()] == [each.default for each in theirs.values()], name


def test_no_public_class_that_waits_is_left_out():
    translated = {source.name for source in SOURCES}
    modules = ("app", "task", "handle", "context", "resources", "batches.resources")
    for module in modules:
        for name, kind in vars(importlib.import_module(f"onward.{module}")).items():
            if isinstance(kind, type) and kind.__module__ == f"onward.{module}" and not name.startswith("_"):
                waits = any(inspect.iscoroutinefunction(member) for member in vars(kind).values())
                assert not waits or name in translated, f"{name} has no sync form: add it to SOURCES"


def test_what_a_handle_shows_a_sync_handle_shows_too(app: App):
    @app.task(queue="mail")
    def send() -> None: ...

    handle = send.sync.enqueue()
    assert (handle.ref.queue, handle.ref.id, handle.is_new, handle.enqueue_status) == (
        "mail",
        handle.id,
        True,
        "inserted",
    )
    assert repr(handle) == f"<SyncJobHandle mail:{handle.id} inserted>"
    assert app.sync.jobs.get(handle).id == handle.id
    assert send.handle(handle.id).sync.info().id == handle.id


# Where it is refused


async def test_it_is_refused_where_an_event_loop_runs():  # X1
    async with App("sqlite://") as app:

        @app.task
        def send() -> None: ...

        handle = await send.enqueue()
        batch = app.batch("import").sync
        calls: list[tuple[Callable[[], object], str]] = [
            (send.sync.enqueue, "use `await task.enqueue"),
            (lambda: send.sync.enqueue_many([{}]), "await task.enqueue_many"),
            (lambda: app.sync.enqueue_many([send.job()]), "await app.enqueue_many"),
            (handle.sync.result, "await handle.result"),
            (handle.sync.watch, "async for … in handle.watch"),
            (app.sync.queues.list, "await app.queues.list"),
            (app.queues.sync.list, "await app.queues.list"),
            (app.sync.jobs.iterate, "async for … in app.jobs.iterate"),
            (app.sync.events, "async for … in app.events"),
            (app.sync.close, "await app.close"),
            (app.sync.__enter__, "async with app"),
            (lambda: batch.add([send.job()]), "await batch.add"),
            (app.sync.flow("nightly").start, "await flow.start"),
            (detached_context().sync.dependencies, "await context.dependencies"),
        ]
        for call, remedy in calls:
            with pytest.raises(EventLoopRunning, match=r"would block the event loop.*asyncio\.to_thread") as caught:
                call()
            assert remedy in str(caught.value)
        assert await app.jobs.count() == {"pending": 1}
        assert not app._core.loop.is_running


async def test_an_async_handler_that_enqueues_by_sync_fails_with_the_remedy():
    async with App("sqlite://") as app:

        @app.task(max_attempts=1)
        async def send() -> None:
            send.sync.enqueue()

        handle = await send.enqueue()
        await app.tick()
        with pytest.raises(JobFailed, match=r"EventLoopRunning.*await task\.enqueue") as caught:
            await handle.result(timeout=LONG)
        assert caught.value.error_type == "EventLoopRunning"


# How it runs


def test_enqueueing_starts_no_loop_thread(app: App):
    @app.task
    def send(to: str) -> None: ...

    send.sync.enqueue("a")
    send.sync.enqueue_many([("b",)])
    app.sync.enqueue_many([send.job("c")])
    app.sync.enqueue("billing.charge", {"order": 7}, queue="billing", delay=None)
    assert not app._core.loop.is_running
    assert app.sync.jobs.count() == {"pending": 4}
    assert app._core.loop.is_running


def test_a_result_is_waited_for(app: App):
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    handle, failing = double.sync.enqueue(21), fail.sync.enqueue()
    with pytest.raises(TimeoutError, match="has not ended"):
        handle.result(timeout=0.01)
    working = threading.Thread(target=app.sync.tick)
    working.start()
    assert handle.result(timeout=LONG) == 42
    working.join()
    assert handle.wait().status is JobStatus.COMPLETED
    assert app.sync.gather((handle, handle), timeout=LONG) == (42, 42)
    assert isinstance(app.sync.gather([failing], return_exceptions=True)[0], JobFailed)
    with pytest.raises(JobFailed, match="ValueError: no"):
        failing.result()


def test_many_threads_may_wait_at_once(app: App):
    @app.task
    def double(number: int) -> int:
        return 2 * number

    def call(number: int) -> int:
        app.sync.queues.configure(f"queue-{number}", weight=2)
        return double.sync.enqueue(number).result(timeout=LONG)

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(call, number) for number in range(8)]
        while app.sync.tick().completed or not all(each.done() for each in calls):
            pass
        assert [each.result() for each in calls] == [2 * number for number in range(8)]
    assert [thread.name for thread in threading.enumerate()].count("onward-sync") == 1


def test_a_plain_handler_may_use_all_of_it(app: App):
    @app.task
    def outer(context: JobContext) -> list[Any]:
        inner = double.sync.enqueue(4)
        return [inner.id, app.sync.jobs.count(type="double"), context.sync.dependencies()]

    @app.task
    def double(number: int) -> int:
        return 2 * number

    handle = outer.sync.enqueue()
    app.sync.tick()
    assert handle.result() == [handle_id(app, "double"), {"pending": 1}, []]


def handle_id(app: App, type: str) -> str:
    return app.sync.jobs.list(type=type).items[0].id


def test_what_is_iterated_over_comes_one_by_one(app: App):
    @app.task
    def double(number: int) -> int:
        return 2 * number

    stream = app.sync.events(types=[events.Completed])
    handles = double.sync.enqueue_many([(number,) for number in range(3)])
    assert [job.id for job in app.sync.jobs.iterate(newest_first=False)] == [handle.id for handle in handles]
    watching = handles[0].watch()
    assert next(watching).status is JobStatus.PENDING
    app.sync.tick()
    assert [job.status for job in watching][-1] is JobStatus.COMPLETED
    assert {next(stream).ref.id for _ in handles} == {handle.id for handle in handles}
    stream.close()


def test_an_iteration_that_is_left_early_ends_its_generator():
    thread, ended = LoopThread(), threading.Event()

    async def count() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            ended.set()

    generator = count()  # held here: the collector must not end it by itself
    for _ in thread.iterate(lambda: generator):
        break
    gc.collect()
    assert ended.wait(LONG)
    thread.close()


def test_batches_and_flows(app: App):
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    def total(context: JobContext) -> int:
        return sum(job.result for job in context.sync.dependencies())

    with app.sync.batch("import") as batch:
        batch.add([double.job(1), double.job(2)])
    assert app.sync.batches.get("import").info().total == 2
    flow = app.sync.flow("sums")
    last = flow.add(total.job(), after=[flow.add(double.job(3)), flow.add(double.job(4))])
    assert len(flow) == 3
    with pytest.raises(InvalidValue, match="no job before the flow has started"):
        flow.handle(last)
    flow.start()
    while app.sync.tick().completed:
        pass
    assert flow.handle(last).result(timeout=LONG) == 14
    assert flow.batch.wait(timeout=LONG).completed == 3
    assert batch.wait(timeout=LONG).is_finished


def test_a_batch_and_a_flow_join_a_transaction_of_the_caller(app: App, tmp_path: Path):  # X4
    @app.task
    def send(to: str) -> None: ...

    app.sync.open()
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)  # refuses other threads
    for end, expected in (("rollback", 0), ("commit", 4)):
        connection.execute("begin immediate")
        send.using(connection=connection).sync.enqueue("a")
        app.sync.batch("b").add([send.job("b")], connection=connection)
        flow = app.sync.flow("c")
        flow.add(send.job("c"))
        flow.start(connection=connection)
        app.sync.enqueue("send", {"to": "d"}, connection=connection)
        connection.execute(end)
        assert sum(app.sync.jobs.count().values()) == expected
    connection.close()


def test_a_call_that_cannot_even_begin_raises():
    thread = LoopThread()

    def wrong() -> Any:
        raise TypeError("no such argument")

    with pytest.raises(TypeError, match="no such argument"):
        thread.run(wrong)
    thread.close()


def test_the_callers_context_variables_are_seen():
    thread, number = LoopThread(), ContextVar("number", default=0)

    async def read() -> int:
        return number.get()

    number.set(7)
    assert thread.run(read) == 7
    thread.close()


# When it ends


def loop_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("onward-sync")


def test_closing_the_app_stops_the_thread_and_the_next_call_starts_another(tmp_path: Path):
    before = loop_threads()
    with App(f"sqlite:///{tmp_path}/jobs.db").sync as app:
        assert app.jobs.count() == {}
        assert loop_threads() == before + 1
    assert loop_threads() == before
    assert app.jobs.count() == {}
    assert loop_threads() == before + 1
    app.close()
    app.close()
    assert loop_threads() == before


async def test_closing_the_app_from_an_event_loop_stops_the_thread_too(tmp_path: Path):
    before = loop_threads()
    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        assert await asyncio.to_thread(app.sync.jobs.count) == {}
        assert loop_threads() == before + 1
    assert loop_threads() == before


async def test_a_call_under_way_fails_when_the_app_is_closed(app: App):
    @app.task
    def send() -> None: ...

    handle = await send.enqueue()
    waiting = asyncio.create_task(asyncio.to_thread(handle.sync.result))
    while not (watchers := list(app._core.results._watchers.values())) or not watchers[0]._waiting:
        await asyncio.sleep(0)
    await app.close()
    with pytest.raises(StoreUnavailable, match="closed while"):
        await asyncio.wait_for(waiting, LONG)


def test_a_call_that_had_not_begun_fails_when_the_thread_ends():
    thread, entered, go_on = LoopThread(), threading.Event(), threading.Event()

    async def block() -> None:
        entered.set()
        go_on.wait(LONG)

    async def never() -> None: ...

    with ThreadPoolExecutor(2) as pool:
        blocking = pool.submit(thread.run, block)
        entered.wait(LONG)
        closing = pool.submit(thread.close)
        while thread.is_running:
            pass
        late = thread._started()  # the next call starts another thread
        go_on.set()
        blocking.result(LONG)
        closing.result(LONG)
        thread.run(never)
        assert thread._running is late
        thread.close()
        assert late.submit(never) is None


def test_an_app_that_is_forgotten_ends_its_thread(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    app.sync.jobs.count()
    thread = app._core.loop._started().thread
    asyncio.run(app._core.engine.close())
    del app
    gc.collect()
    thread.join(LONG)
    assert not thread.is_alive()


PROGRAM = """
import os, signal, sys, threading
from onward import App

app = App(f"sqlite:///{sys.argv[1]}/jobs.db")

@app.task
def send() -> None: ...

handle = send.sync.enqueue()
"""


def run(program: str, folder: Path) -> str:
    command = [sys.executable, "-X", "dev", "-c", PROGRAM + program, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_program_that_does_not_close_its_app_ends(tmp_path: Path):
    assert run("print(app.sync.jobs.count())\n", tmp_path) == "{'pending': 1}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_parent_and_child_of_a_fork_both_go_on(tmp_path: Path):
    program = """
print(app.sync.jobs.count(), flush=True)
if (child := os.fork()) == 0:
    send.sync.enqueue()
    print(app.sync.jobs.count(), flush=True)
    app.sync.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(app.sync.jobs.count())
app.sync.close()
"""
    assert run(program, tmp_path).split("\n")[:3] == ["{'pending': 1}", "{'pending': 2}", "{'pending': 2}"]


def test_an_interrupt_stops_the_wait_and_the_call(tmp_path: Path):
    program = """
def interrupt():
    while not any(watcher._waiting for watcher in list(app._core.results._watchers.values())):
        pass
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    handle.result()
except KeyboardInterrupt:
    print("interrupted", any(watcher._waiting for watcher in list(app._core.results._watchers.values())))
app.sync.close()
"""
    assert run(program, tmp_path) == "interrupted False\n"
