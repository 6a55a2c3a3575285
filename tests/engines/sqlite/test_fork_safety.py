"""A program that forks: parent and child both go on, and neither loses what it was told was stored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onward.engines.sqlite.engine import SQLiteEngine
from tests.engines.sqlite.plain import EVERY, REPOSITORY

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

PREAMBLE = """
import asyncio, os, sys, threading
from onward.engine.values import ClaimRequest, GroupBy, JobFilter, Settlement
from onward.engines.sqlite.engine import SQLiteEngine
from onward.job import NewJob
from onward.lifecycle import Complete

path = sys.argv[1] if len(sys.argv) > 1 else None
loop = asyncio.new_event_loop()
run = loop.run_until_complete

def put(engine, kind):
    engine.enqueue_sync([NewJob(type=kind)])

def kinds(engine):
    return sorted(run(engine.count(JobFilter(), by=GroupBy.TYPE)))

class Gate:
    def __init__(self):
        self.reader, self.writer = os.pipe()
    def open(self):
        os.write(self.writer, b"!")
    def wait(self):
        os.read(self.reader, 1)

def succeed(pid):
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child failed: {status}"

def child(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
"""


def script(text: str, *arguments: object) -> None:
    """Run a program of its own; it fails by an assertion."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + text, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def kinds(path: Path) -> set[str]:
    """Read which jobs are there, in another process."""
    engine = SQLiteEngine(path)
    await engine.open()
    jobs = (await engine.find(EVERY)).items
    await engine.close()
    return {job.type for job in jobs}


async def test_parent_and_child_both_go_on_and_see_each_other(path):  # X3
    script(
        """
engine = SQLiteEngine(path)
run(engine.open())
put(engine, "before")
assert kinds(engine) == ["before"]
there, back = Gate(), Gate()

def work():
    put(engine, "of the child")
    there.open()
    back.wait()
    assert kinds(engine) == ["before", "of the child", "of the parent"]

pid = child(work)
there.wait()
put(engine, "of the parent")
assert kinds(engine) == ["before", "of the child", "of the parent"]
back.open()
succeed(pid)
run(engine.close())
""",
        path,
    )
    assert await kinds(path) == {"before", "of the child", "of the parent"}


async def test_what_a_child_stores_after_its_parent_has_closed_is_kept(path):  # X3
    """SQLite in the child believed itself locked, and the parent removed the log that the child wrote to."""
    script(
        """
engine = SQLiteEngine(path)
run(engine.open())
put(engine, "before")
kinds(engine)
there, back = Gate(), Gate()

def work():
    put(engine, "first")
    there.open()
    back.wait()
    put(engine, "second")

pid = child(work)
there.wait()
run(engine.close())
back.open()
succeed(pid)
""",
        path,
    )
    assert await kinds(path) == {"before", "first", "second"}


async def test_a_fork_while_requests_are_under_way_loses_none(path):  # X3
    script(
        """
engine = SQLiteEngine(path)
run(engine.open())
told = []
def keep_writing():
    for number in range(300):
        put(engine, f"thread {number}")
        told.append(number)
threads = [threading.Thread(target=keep_writing) for _ in range(3)]
for thread in threads:
    thread.start()
pids = []
while any(thread.is_alive() for thread in threads) and len(pids) < 8:
    number = len(pids)
    pids.append(child(lambda: put(engine, f"child {number}")))
for thread in threads:
    thread.join()
for pid in pids:
    succeed(pid)
counts = run(engine.count(JobFilter(), by=GroupBy.TYPE))
assert sum(counts.values()) == len(told) + len(pids) == 900 + len(pids), counts
assert len(pids) == 8
run(engine.close())
""",
        path,
    )


async def test_a_listener_goes_on_in_the_parent_and_another_begins_in_the_child(path):
    script(
        """
engine = SQLiteEngine(path)

async def heard(kind):
    async with asyncio.timeout(20):
        async for _ in engine.signals(["*"]):
            if kind in await engine.count(JobFilter(), by=GroupBy.TYPE):
                return

run(engine.open())
waiting = loop.create_task(heard("of the child"))
run(asyncio.sleep(0))
listens = Gate()

def work():
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(heard("of the parent"))
    loop.run_until_complete(asyncio.sleep(0))
    listens.open()
    put(engine, "of the child")
    loop.run_until_complete(waiting)

pid = child(work)
listens.wait()
put(engine, "of the parent")
run(waiting)
succeed(pid)
run(engine.close())
""",
        path,
    )


async def test_a_child_that_closes_leaves_the_parents_temporary_database_alone():
    script(
        """
engine = SQLiteEngine(path)
run(engine.open())
put(engine, "before")
folder = engine.database.path.parent

def work():
    put(engine, "of the child")
    asyncio.new_event_loop().run_until_complete(engine.close())

succeed(child(work))
assert kinds(engine) == ["before", "of the child"]
run(engine.close())
assert not folder.exists()
"""
    )


async def test_children_of_multiprocessing_can_use_the_engine_of_their_parent(path):
    script(
        """
import multiprocessing

engine = SQLiteEngine(path)

def put_numbered(number):
    put(engine, f"pool {number}")

run(engine.open())
put(engine, "parent")
with multiprocessing.get_context("fork").Pool(3) as pool:
    pool.map(put_numbered, range(9))
assert len(kinds(engine)) == 10
run(engine.close())
""",
        path,
    )
