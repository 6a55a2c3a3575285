"""A write process: a handler that holds the global interpreter lock stops no other process's writes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from onward.batches.values import NewBatch
from onward.clock import ManualClock
from onward.engine.values import ClaimRequest, Exchange, GroupBy, QueueChange, Settlement, WorkerInfo
from onward.engines.sqlite import fork_safety, write_process, writer
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.transaction import Transaction
from onward.engines.sqlite.write_process import WriteProcess, can_start
from onward.errors import InvalidValue, StoreBusy, StoreUnavailable
from onward.job import JobRef
from onward.lifecycle import Complete, Failure, Retry, Snooze
from onward.worker_options import WriteProcessPolicy
from tests.engines.sqlite import gil
from tests.engines.sqlite.plain import EVERY, add, complete, new_job, states, take
from tests.engines.sqlite.processes import DEADLINE, Process
from tests.engines.sqlite.test_fork_safety import script
from tests.worker.harness import eventually

pytestmark = pytest.mark.skipif(not can_start(), reason="sockets cannot be passed to another process here")


@asynccontextmanager
async def isolated(path: Path, **settings: Any) -> AsyncIterator[tuple[SQLiteEngine, WriteProcess]]:
    """Open an engine that has a write process."""
    engine = SQLiteEngine(path, **settings)
    await engine.open()
    try:
        await engine.isolate_writes(on_demand=False)
        assert engine._writer.write_process is not None
        yield engine, engine._writer.write_process
    finally:
        await engine.close()


def has_write_process(engine: SQLiteEngine) -> bool:
    process = engine._writer.write_process
    return process is not None and (process.is_ready or process.pid is not None)


@pytest.fixture
async def engine(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SQLiteEngine]:
    """An engine with a write process, whose own connection must not be used."""

    def refuse(*_: object) -> bool:
        raise AssertionError("this process writes by itself")

    async with isolated(path) as (engine, _):
        monkeypatch.setattr(engine._writer, "_execute_and_commit", refuse)
        monkeypatch.setattr(engine._writer, "_write_single_statement", refuse)
        yield engine


@asynccontextmanager
async def worker_process(path: Path, gate: Path, policy: WriteProcessPolicy) -> AsyncIterator[Process]:
    """Run the worker of :mod:`tests.engines.sqlite.gil` in a process of its own."""
    worker = Process(gil.work, path, gate, policy)
    try:
        assert await asyncio.to_thread(worker.receive) == "ready"
        yield worker
    finally:
        worker.end()


async def has_completed(engine: SQLiteEngine, ref: JobRef) -> bool:
    job = await engine.get(ref)
    return job is not None and job.status == "completed"


async def test_a_handler_that_holds_the_gil_does_not_stop_writes_of_other_processes(  # X3
    path: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    producer = SQLiteEngine(path, busy_timeout=DEADLINE)
    await producer.open()
    async with worker_process(path, gate, "always") as worker:
        (quick,) = await add(producer, type="quick")
        await eventually(lambda: has_completed(producer, quick), timeout=DEADLINE)
        (hold,) = await add(producer, type="hold")
        assert await asyncio.to_thread(worker.receive) == "started"
        assert await asyncio.to_thread(worker.receive) == "holding"
        for _ in range(20):
            await add(producer, type="quick")
        await producer.enqueue([new_job(type="quick", idempotency_key="several statements")])
        gil.open_gate(gate)
        assert await asyncio.to_thread(worker.receive) == "released"
        await eventually(lambda: has_completed(producer, hold), timeout=DEADLINE)
        worker.send("stop")
        assert await asyncio.to_thread(worker.receive) is False  # it has settled nothing by itself
    await producer.close()


async def test_without_a_write_process_it_does(path: Path, tmp_path: Path) -> None:
    # What the test above rests on: the GIL is held, and the lock of an open transaction with it.
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    producer, impatient = SQLiteEngine(path, busy_timeout=DEADLINE), SQLiteEngine(path, busy_timeout=0.5)
    await producer.open()
    await impatient.open()
    async with worker_process(path, gate, "never") as worker:
        await add(producer, type="hold")
        assert await asyncio.to_thread(worker.receive) == "started"
        await add(producer, type="quick")  # whose outcome is being stored when the GIL is taken
        assert await asyncio.to_thread(worker.receive) == "holding"
        with pytest.raises(StoreBusy, match="--write-process always"):
            await add(impatient, type="quick")
        gil.open_gate(gate)
        assert await asyncio.to_thread(worker.receive) == "released"
    await impatient.close()
    await producer.close()


async def test_a_write_process_starts_once_the_lock_was_held_for_too_long(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = SQLiteEngine(path)
    await engine.open()
    await engine.isolate_writes(on_demand=True)
    await add(engine, 2)
    assert not has_write_process(engine)
    monkeypatch.setattr(writer, "_LONG_HOLD_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING, "onward.sqlite"):
        await add(engine, 2)
    assert "a separate process writes for this worker from now on" in caplog.text
    process = engine._writer.write_process
    assert isinstance(process, WriteProcess)
    await eventually(lambda: process.is_ready, timeout=DEADLINE)
    commits = engine._writer._commits
    await add(engine, 2)
    assert engine._writer._commits == commits
    assert await states(engine) == {"pending": 6}
    await engine.close()


async def test_a_lock_held_for_too_long_starts_nothing_in_a_process_without_handlers(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = SQLiteEngine(path)
    await engine.open()
    monkeypatch.setattr(writer, "_LONG_HOLD_SECONDS", 0.0)
    await add(engine, 2)
    assert not has_write_process(engine)
    assert 'executor="process"' in caplog.text
    await engine.close()


async def test_a_clock_that_another_process_cannot_read_keeps_writes_here(path: Path) -> None:
    engine = SQLiteEngine(path, clock=ManualClock())
    await engine.open()
    await engine.isolate_writes(on_demand=False)
    assert not has_write_process(engine)
    await engine.close()


async def test_a_job_runs_through_a_write_process(engine: SQLiteEngine) -> None:
    await add(engine, 5, payload='{"n": 1}')
    first, second, third, fourth = await take(engine, slots=4)
    assert first.payload == '{"n": 1}'
    settlements = (
        Settlement(first, Complete('"done"')),
        Settlement(second, Retry(delay=timedelta(seconds=1), failure=Failure("E", "no", None))),
        Settlement(third, Snooze(timedelta(seconds=1))),
    )
    exchange = Exchange(settlements=settlements, request=ClaimRequest(worker_id="worker-1", slots=1))
    answer = await engine.exchange(exchange)
    assert not answer.lost
    assert len(answer.claimed.claims) == 1
    assert (await engine.exchange(exchange)).lost == {first.token, second.token, third.token}
    info = WorkerInfo(id="worker-1", hostname="h", pool_size=1, version="1", queues=("*",), types=())
    held = [fourth, *answer.claimed.claims]
    assert not (await asyncio.to_thread(engine.heartbeat_sync, info, held)).lost
    assert (await engine.heartbeat(info, [first])).lost == {first.token}
    await complete(engine, *held)
    assert await states(engine) == {"completed": 3, "scheduled": 2}


async def test_an_outcome_through_a_write_process_frees_its_queue(engine: SQLiteEngine) -> None:
    await engine.configure("default", QueueChange(global_concurrency=1))
    await add(engine, 2)
    (claim,) = await take(engine, slots=2)
    assert not await take(engine)
    request = ClaimRequest(worker_id="worker-1", slots=1)
    answer = await engine.exchange(Exchange(settlements=(Settlement(claim, Complete()),), request=request))
    assert len(answer.claimed.claims) == 1


async def test_loops_and_threads_write_at_once(engine: SQLiteEngine) -> None:
    def on_thread() -> None:
        asyncio.run(on_loop())
        engine.enqueue_sync([new_job()])

    async def on_loop() -> None:
        await asyncio.gather(*(engine.enqueue([new_job()]) for _ in range(50)))

    await asyncio.gather(on_loop(), *(asyncio.to_thread(on_thread) for _ in range(4)))
    assert await states(engine) == {"pending": 5 * 50 + 4}


async def test_a_message_may_be_larger_than_a_socket_takes(engine: SQLiteEngine) -> None:
    payloads = [f'"{letter * 3_000_000}"' for letter in "ab"]
    await asyncio.gather(*(engine.enqueue([new_job(payload=payload)]) for payload in payloads))
    engine.enqueue_sync([new_job(payload=payloads[0])])
    exchange = Exchange(request=ClaimRequest(worker_id="worker-1", slots=3))
    claims = (await engine.exchange(exchange)).claimed.claims
    assert sorted(claim.payload for claim in claims) == sorted([*payloads, payloads[0]])


async def test_errors_come_back_as_they_were_raised(engine: SQLiteEngine, path: Path) -> None:
    await engine.save_batch(NewBatch(name="b", sealed=True))
    with pytest.raises(InvalidValue, match="has finished") as raised:
        await engine.save_batch(NewBatch(name="b"), [new_job(batch="b")])
    assert (raised.value.field, raised.value.value) == ("batch", "b")


async def test_another_programs_lock_is_reported_as_busy(path: Path) -> None:
    async with isolated(path, busy_timeout=0.2) as (engine, _):
        bare = sqlite3.connect(path, isolation_level=None)
        bare.execute("begin immediate")
        with pytest.raises(StoreBusy):
            await add(engine)
        bare.execute("rollback")
        await add(engine)
        bare.close()


async def test_work_that_cannot_be_read_is_answered(engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gil, "unknown_elsewhere", unknown_elsewhere, raising=False)
    monkeypatch.setattr(unknown_elsewhere, "__module__", gil.__name__)
    with pytest.raises(AttributeError, match="unknown_elsewhere"):
        await engine._writer.run(unknown_elsewhere)
    await add(engine)


def unknown_elsewhere(_: Transaction) -> None: ...


async def test_what_makes_work_ready_wakes_this_process(path: Path) -> None:
    async with isolated(path) as (engine, process):
        woken: list[None] = []
        process._on_wake = lambda: woken.append(None)
        await add(engine)
        assert woken
        woken.clear()
        await take(engine)
        assert not woken


async def test_another_write_process_takes_the_place_of_one_that_was_killed(path: Path) -> None:
    async with isolated(path) as (engine, process):
        refs = await add(engine)
        killed = process.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)

        async def is_replaced() -> bool:
            try:
                refs.extend(await add(engine))
            except StoreUnavailable:
                return False
            return process.is_ready and process.pid != killed

        await eventually(is_replaced, timeout=DEADLINE)
        await add(engine)
        engine.enqueue_sync([new_job()])
        assert (await engine.count(EVERY, by=GroupBy.STATUS))["pending"] >= len(refs) + 2


async def test_requests_under_way_fail_with_the_write_process(path: Path) -> None:
    async with isolated(path, busy_timeout=DEADLINE) as (engine, process):
        await add(engine)
        engine.enqueue_sync([new_job()])
        (channel,) = process._loop_channels.values()
        assert len(process._free_channels) == 1
        bare = sqlite3.connect(path, isolation_level=None)
        bare.execute("begin immediate")
        waiting = asyncio.gather(
            add(engine), asyncio.to_thread(engine.enqueue_sync, [new_job()]), return_exceptions=True
        )
        # Neither can be answered while the lock is held.
        await eventually(lambda: channel.has_requests and not process._free_channels, timeout=DEADLINE)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        bare.execute("rollback")
        assert [type(failure) for failure in await waiting] == [StoreUnavailable, StoreUnavailable]
        bare.close()


async def test_closing_waits_for_what_was_asked(path: Path) -> None:
    async with isolated(path, busy_timeout=DEADLINE) as (engine, process):
        await add(engine)
        engine.enqueue_sync([new_job()])
        (channel,) = process._loop_channels.values()
        bare = sqlite3.connect(path, isolation_level=None)
        bare.execute("begin immediate")
        waiting = asyncio.gather(add(engine), asyncio.to_thread(engine.enqueue_sync, [new_job()]))
        await eventually(lambda: channel.has_requests and not process._free_channels, timeout=DEADLINE)
        closing = asyncio.create_task(engine.close())
        await eventually(lambda: not process.is_ready, timeout=DEADLINE)
        bare.execute("rollback")
        await waiting
        await closing
        assert bare.execute("select count(*) from onward_job").fetchone() == (4,)
        bare.close()


async def test_this_process_writes_if_no_write_process_can_be_started(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    with monkeypatch.context() as patched:
        patched.setattr(write_process, "_RESTART_DELAY", 0.01)
        patched.setattr(subprocess, "Popen", refuse)
        async with isolated(path) as (engine, process):
            assert not process.is_ready
            await add(engine)
            assert "no more processes" in caplog.text
            patched.undo()
            await eventually(lambda: process.is_ready, timeout=DEADLINE)
            await add(engine)
            assert await states(engine) == {"pending": 2}


async def test_signals_for_the_whole_group_leave_it_to_the_worker(path: Path) -> None:
    async with isolated(path) as (engine, process):
        assert process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process.pid, number)
        pid = process.pid
        await add(engine, 2)
        assert process.pid == pid
        assert process.is_ready


def hold_write_process(pipe: Connection, path: Path) -> None:
    async def run() -> None:
        async with isolated(path) as (engine, process):
            await add(engine)
            pipe.send(process.pid)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(run())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of another process cannot be read here")
async def test_it_ends_with_the_process_that_it_writes_for(path: Path) -> None:
    owner = Process(hold_write_process, path)
    pid = await asyncio.to_thread(owner.receive)
    assert is_running(pid)
    owner.kill()
    await eventually(lambda: not is_running(pid), timeout=DEADLINE)
    owner.end()


def is_running(pid: int) -> bool:
    """Say whether a process runs; one that has ended may still have an entry."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


async def test_it_ends_when_the_engine_is_closed(path: Path) -> None:
    async with isolated(path) as (engine, process):
        await add(engine)
        pid = process.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_writes_by_itself(path: Path) -> None:
    script(
        """
engine = SQLiteEngine(path)
run(engine.open())
run(engine.isolate_writes(on_demand=False))
commits = engine._writer._commits
put(engine, "before")
process = engine._writer.write_process
def in_child():
    assert not process.is_ready
    put(engine, "child")
    assert engine._writer._commits == commits + 1
succeed(child(in_child))
assert process.is_ready
put(engine, "after")
assert engine._writer._commits == commits
assert kinds(engine) == ["after", "before", "child"], kinds(engine)
run(engine.close())
""",
        path,
    )


async def test_a_long_hold_that_is_noticed_while_a_fork_waits_ends(path: Path, monkeypatch: pytest.MonkeyPatch):
    # The fork holds the lock of the registrations, and waits for the writer's connection.
    monkeypatch.setattr(WriteProcess, "start_in_background", lambda *_, **__: None)
    engine = SQLiteEngine(path)
    await engine.open()
    await engine.isolate_writes(on_demand=True)
    noticing = threading.Thread(target=engine._on_long_hold, args=(2.0,), daemon=True)
    with fork_safety._lock:
        noticing.start()
        await asyncio.to_thread(noticing.join, 30)
        assert not noticing.is_alive()
    await engine.close()


async def test_a_write_process_that_does_not_answer_is_killed(path: Path, monkeypatch: pytest.MonkeyPatch):
    async with isolated(path, busy_timeout=0.1) as (engine, process):
        stopped = process.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(write_process, "_RESPONSE_TIMEOUT", 0.2)
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(engine.enqueue_sync, [new_job()])
        monkeypatch.setattr(write_process, "_RESPONSE_TIMEOUT", 60.0)
        await eventually(lambda: process.pid not in {None, stopped}, timeout=60)
        assert len(await engine.enqueue([new_job()])) == 1
