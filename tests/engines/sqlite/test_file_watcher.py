"""A change is told of, whoever made it; and where nothing changes, nobody is woken."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from onward.engines.sqlite import file_watcher
from onward.engines.sqlite.engine import SQLiteEngine
from tests.engines.sqlite.plain import add, new_job, states
from tests.engines.sqlite.processes import processes, ready

DEADLINE = 10
"""Seconds until a signal that must come is given up; never reached where it does."""


@asynccontextmanager
async def listening(engine: SQLiteEngine) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Listen for signals, from after the one that a watcher begins with."""
    watcher_starts = engine._watcher._thread is None
    notified = asyncio.Event()

    async def listen() -> None:
        async for _ in engine.signals(["*"]):
            notified.set()

    async def receive() -> None:
        async with asyncio.timeout(DEADLINE):
            await notified.wait()
        notified.clear()

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    if watcher_starts:
        await receive()
    try:
        yield receive
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(params=["told by the kernel", "polling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernel's notices, and on a machine without."""
    if request.param == "polling":
        monkeypatch.setattr(file_watcher, "_watch_with_inotify", lambda path: -1)
    return str(request.param)


def enqueue_on_request(pipe: Connection, path: Path) -> None:
    """Enqueue a job at each word."""
    engine = SQLiteEngine(path)
    asyncio.run(engine.open())
    ready(pipe)
    while pipe.recv() == "enqueue":
        engine.enqueue_sync([new_job()])
        pipe.send("done")
    asyncio.run(engine.close())


async def test_every_change_of_another_process_is_told(way, engine, path):
    """Each one, and not most: the kernel tells of a write before the commit can be seen."""
    with processes(enqueue_on_request, path, count=1) as (other,):
        other.send("begin")
        async with listening(engine) as receive:
            for number in range(1, 41):
                other.send("enqueue")
                while (await states(engine)).get("pending", 0) < number:
                    await receive()
                assert other.receive() == "done"


async def test_every_change_at_a_console_is_told(way, engine, bare):
    bare.execute("create table note (text)")
    async with listening(engine) as receive:
        for number in range(40):
            written = asyncio.create_task(asyncio.to_thread(note, engine.database.path, f"note {number}"))
            while bare.execute("select count(*) from note").fetchone()[0] <= number:
                await receive()
            await written


def note(path: Path, *texts: str, synchronous: str = "full") -> None:
    """Write rows, each for itself, as a program would that knows nothing of us."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma wal_autocheckpoint = 0")
    connection.execute(f"pragma synchronous = {synchronous}")
    for text in texts:
        connection.execute("insert into note values (?)", (text,))
    connection.close()


async def test_our_own_commit_is_told_without_looking(engine, monkeypatch):
    """The writer says so itself: no watcher has to find out."""
    monkeypatch.setattr(engine._watcher, "_start", lambda: None)
    notified = asyncio.Event()

    async def listen() -> None:
        async for _ in engine.signals(["*"]):
            notified.set()

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await add(engine)
    async with asyncio.timeout(DEADLINE):
        await notified.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_makes_no_work_ready_is_not_told_by_the_writer(engine, monkeypatch):
    notified: list[None] = []
    monkeypatch.setattr(engine._writer, "on_wake", lambda: notified.append(None))
    await engine.deregister("nobody")
    assert notified == []
    await add(engine)
    assert notified == [None]


async def test_a_quiet_store_wakes_nobody(engine, monkeypatch):
    """The watcher looks a few times after the last write, and then waits without end."""
    if file_watcher._watch_with_inotify(str(engine.database.wal)) < 0:
        pytest.skip("this machine's kernel does not tell")
    waits: list[float | None] = []
    endless = threading.Event()
    wait = file_watcher._wait

    def counted(stop: int, inotify: int, timeout: float | None) -> file_watcher._WakeReason:
        waits.append(timeout)
        if timeout is None:
            endless.set()
        return wait(stop, inotify, timeout)

    monkeypatch.setattr(file_watcher, "_wait", counted)
    async with listening(engine):
        assert await asyncio.to_thread(endless.wait, DEADLINE)
        assert len(waits) <= 2 * len(file_watcher._RECHECK_DELAYS) + 5
        assert waits[-1] is None
        before = len(waits)
        await states(engine)
        await engine.queues()
        assert len(waits) == before, "looking changes nothing and must wake nobody"


async def test_a_busy_writer_does_not_keep_everyone_awake(engine, bare):
    """A thousand changes are told as a few bursts."""
    notifications = 0
    bare.execute("create table note (text)")

    async def listen() -> None:
        nonlocal notifications
        async for _ in engine.signals(["*"]):
            notifications += 1

    task = asyncio.create_task(listen())
    await asyncio.to_thread(note, engine.database.path, *["x"] * 1000, synchronous="off")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert 0 < notifications < 800


async def test_several_listeners_are_all_told_and_those_that_left_are_forgotten(engine):
    async with listening(engine) as first:
        async with listening(engine) as second:
            await add(engine)
            await first()
            await second()
        await add(engine)
        await first()
        assert len(engine._watcher._listeners) == 1
    assert engine._watcher._listeners == {}


async def test_a_listener_whose_loop_has_closed_is_forgotten(engine):
    def come_and_go() -> None:
        async def listen() -> None:
            signals = engine.signals(["*"])
            asyncio.ensure_future(anext(signals))  # noqa: RUF006
            await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(listen())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    await asyncio.to_thread(come_and_go)
    async with listening(engine) as receive:
        await add(engine)
        await receive()
        assert len(engine._watcher._listeners) == 1


async def test_closing_ends_the_watcher(path):
    engine = SQLiteEngine(path)
    await engine.open()
    async with listening(engine):
        thread = engine._watcher._thread
        assert thread is not None
        await engine.close()
        assert not thread.is_alive()
