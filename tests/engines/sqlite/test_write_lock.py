"""Writers of several processes take turns: nobody is starved, and who dies does not hold up the others."""

from __future__ import annotations

import asyncio
import os
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.write_lock import WriteLock
from onward.errors import StoreBusy, StoreUnavailable
from tests.engines.sqlite.plain import add, new_job, states
from tests.engines.sqlite.processes import processes, ready

LEAST_SHARE = 0.3


def write_until_stopped(pipe: Connection, path: Path) -> None:
    """Write one job after the other, as fast as it goes, until told to end."""
    engine = SQLiteEngine(path)
    asyncio.run(engine.open())
    kind = f"by-{os.getpid()}"
    engine.enqueue_sync([new_job(type=kind)])
    pipe.send("ready")
    pipe.recv()
    while not pipe.poll():
        engine.enqueue_sync([new_job(type=kind)])
    pipe.recv()
    pipe.send(kind)
    asyncio.run(engine.close())


@pytest.mark.parametrize("count", [2, 3])
async def test_processes_that_write_without_a_pause_get_fair_shares(engine, bare, path, count):
    """Shares are counted among the jobs written while all were writing."""
    with processes(write_until_stopped, path, count=count) as writers:
        for writer in writers:
            writer.send("begin")
        (behind,) = bare.execute("select max(seq) from onward_job").fetchone()
        while bare.execute("select max(seq) from onward_job").fetchone()[0] < behind + 600:
            await asyncio.sleep(0.05)
        (last,) = bare.execute("select max(seq) from onward_job").fetchone()
        for writer in writers:
            writer.send("end")
        kinds = {writer.receive() for writer in writers}
    span = bare.execute(
        "select min(first), max(first) from (select min(seq) as first from onward_job where seq > ? group by type)",
        (behind,),
    ).fetchone()
    rows = bare.execute(
        "select type, count(*) from onward_job where seq > ? and seq <= ? group by type", (span[1], last)
    ).fetchall()
    shares = dict(rows)
    assert shares.keys() == kinds
    assert min(shares.values()) >= LEAST_SHARE * 2 / count * sum(shares.values()), shares


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
        holder.send("out")
        await add(engine)
    assert await states(engine) == {"pending": 1}, "what was refused must not be done after all"


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
