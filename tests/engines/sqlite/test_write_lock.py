"""Writers of several processes take turns: nobody is starved, and who dies does not hold up the others."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from onward.engines.sqlite import writer
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.write_lock import WriteLock
from onward.errors import StoreBusy, StoreUnavailable
from tests.engines.sqlite.plain import add, new_job, on_writer, states
from tests.engines.sqlite.processes import DEADLINE, processes, ready

ROUNDS = 200
WRITTEN = 200


async def test_who_has_just_written_does_not_go_before_one_that_waits(engine, path):
    """However quick it is: the one that waits has the turn, and keeps it until it may write."""
    busy, patient = WriteLock(path), WriteLock(path)
    busy.open()
    patient.open()
    order: list[str] = []
    waits = threading.Event()

    def write() -> None:
        with patient.held(before_wait=waits.set):
            order.append("patient")

    for _ in range(ROUNDS):
        order.clear()
        waits.clear()
        assert busy.try_acquire()
        writing = threading.Thread(target=write)
        writing.start()
        assert await asyncio.to_thread(waits.wait, DEADLINE)
        busy.release()
        if busy.try_acquire():
            order.append("busy")
            busy.release()
        writing.join()
        assert order[0] == "patient"
    busy.close()
    patient.close()


def write_many(pipe: Connection, path: Path) -> None:
    """Write one job after the other, as fast as it goes."""
    engine = SQLiteEngine(path)
    asyncio.run(engine.open())
    ready(pipe)
    for _ in range(WRITTEN):
        engine.enqueue_sync([new_job()])
    pipe.send("written")
    asyncio.run(engine.close())


@pytest.mark.parametrize("count", [2, 3])
async def test_processes_that_write_without_a_pause_all_get_through(engine, path, count):
    with processes(write_many, path, count=count) as writers:
        for writer in writers:
            writer.send("begin")
        assert [writer.receive() for writer in writers] == ["written"] * count
    assert await states(engine) == {"pending": count * WRITTEN}


def hold(pipe: Connection, path: Path) -> None:
    """Take the write lock and keep it."""
    write_lock = WriteLock(path)
    write_lock.open()
    ready(pipe)
    with write_lock.held():
        pipe.send("in")
        pipe.recv()


async def test_a_killed_process_lets_the_next_one_through(engine, path):
    with processes(hold, path, count=1) as (holder,):
        holder.send("begin")
        assert holder.receive() == "in"
        patient = opened(path)
        waiting = asyncio.create_task(add(patient))
        holder.kill()
        await waiting
        await patient.close()
    assert await states(engine) == {"pending": 1}


def opened(path: Path) -> SQLiteEngine:
    """Open an engine with all the patience there is, without a turn: the schema is there already."""
    engine = SQLiteEngine(path, busy_timeout=60)
    engine._writer.open()
    engine._reader.open()
    return engine


async def test_a_turn_that_does_not_come_is_busy_and_the_engine_goes_on_when_it_does(engine, path):
    with processes(hold, path, count=1) as (holder,):
        holder.send("begin")
        assert holder.receive() == "in"
        answers = await asyncio.gather(*[add(engine) for _ in range(5)], return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreBusy}
        assert "continue or kill it" in str(answers[0])
        assert f"another process ({holder.pid}) has held" in str(answers[0])
        assert 'executor="process"' in str(answers[0])
        holder.send("out")
        await add(engine)
    assert await states(engine) == {"pending": 1}, "what was refused must not be done after all"


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"1: -> FLOCK  ADVISORY  WRITE 77 fe:00:{inode} 0 EOF\n",
        b"1: FLOCK  ADVISORY  WRITE 0 fe:00:{inode} 0 EOF\n",
        b"1: POSIX  ADVISORY  WRITE 77 fe:00:{inode} 0 EOF\n",
        b"1: FLOCK  ADVISORY  WRITE 77 fe:00:1{inode} 0 EOF\n",
    ],
)
def test_a_holder_that_the_system_does_not_name_is_not_guessed(path, tmp_path, content):
    write_lock = WriteLock(path)
    write_lock.open()
    locks = tmp_path / "locks"
    if content is not None:
        inode = str(path.with_name("jobs.db-write").stat().st_ino).encode()
        locks.write_bytes(content.replace(b"{inode}", inode))
    assert write_lock.holder(locks=locks) is None
    write_lock.close()


async def test_a_transaction_that_keeps_others_from_writing_is_logged_with_the_remedy(engine, monkeypatch, caplog):
    await on_writer(engine, lambda transaction: None)
    assert not caplog.records
    monkeypatch.setattr(writer, "_LONG_HOLD_SECONDS", -1.0)
    await engine._reader.run(lambda transaction: None)
    assert not caplog.records, "who reads keeps nobody from writing"
    await on_writer(engine, lambda transaction: None)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("onward.sqlite", "WARNING")
    assert 'executor="process"' in record.getMessage()


async def test_a_wait_for_another_program_is_no_hold_of_ours(path, monkeypatch):
    engine = SQLiteEngine(path, busy_timeout=60)
    await engine.open()
    restarted = threading.Event()
    monkeypatch.setattr(engine._writer._write_lock, "restart_hold", restarted.set)
    bare = sqlite3.connect(path, isolation_level=None)
    bare.execute("begin immediate")
    adding = asyncio.create_task(add(engine, 2))
    assert await asyncio.to_thread(restarted.wait, 60)
    bare.execute("rollback")
    await adding
    bare.close()
    await engine.close()


async def test_a_held_turn_keeps_nobody_from_reading(engine, path):
    await add(engine)
    with processes(hold, path, count=1) as (holder,):
        holder.send("begin")
        assert holder.receive() == "in"
        assert await states(engine) == {"pending": 1}


@pytest.mark.parametrize("requests", [0, 3])
async def test_closing_does_not_wait_for_a_process_that_keeps_the_lock(engine, path, requests):
    await add(engine)
    with processes(hold, path, count=1) as (holder,):
        holder.send("begin")
        assert holder.receive() == "in"
        waiting = [asyncio.create_task(add(engine)) for _ in range(requests)]
        for _ in range(3):
            await asyncio.sleep(0)
        closing = threading.Thread(target=engine._writer.close)  # it would hold up the loop
        closing.start()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(answer) for answer in answers} <= {StoreBusy, StoreUnavailable}
        await asyncio.to_thread(closing.join, 30)
        assert not closing.is_alive()
        holder.send("out")
    again = SQLiteEngine(path)
    await again.open()
    assert await states(again) == {"pending": 1}
    await again.close()


def test_two_write_locks_never_let_two_through(path):
    """Within a process too: each writer has lock files open of its own."""
    inside, most, held = 0, 0, 0
    guard = threading.Lock()

    def lock_repeatedly() -> None:
        nonlocal inside, most, held
        write_lock = WriteLock(path)
        write_lock.open()
        for _ in range(200):
            with write_lock.held():
                with guard:
                    inside += 1
                    most = max(most, inside)
                os.sched_yield()
                with guard:
                    inside -= 1
                    held += 1
        write_lock.close()

    threads = [threading.Thread(target=lock_repeatedly) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, held) == (1, 800)
