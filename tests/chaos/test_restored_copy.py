"""A copy of a store, made by the means that users have, gives no job until someone confirms it; then it works (X3)."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from onward import NewJob
from onward.engine.restore import RESTORED
from tests.chaos import ledger
from tests.chaos.fleet import Fleet, database, fleet_at
from tests.servers.postgres import binaries
from tests.worker.harness import eventually

PROGRAM = """
from onward import App, JobContext
from tests.chaos.ledger import record

app = App(lease=2)

@app.task
async def work(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "work", number)
"""

Copy = Callable[[Path], AbstractAsyncContextManager[tuple[str, str, Callable[[], None]]]]


@asynccontextmanager
async def file(folder: Path) -> AsyncIterator[tuple[str, str, Callable[[], None]]]:
    """A file and its write-ahead log, copied to another folder while nobody writes."""
    (folder / "elsewhere").mkdir()

    def copy() -> None:
        for each in folder.glob("jobs.db*"):
            shutil.copy(each, folder / "elsewhere" / each.name)

    yield f"sqlite:///{folder}/jobs.db", f"sqlite:///{folder}/elsewhere/jobs.db", copy


@asynccontextmanager
async def dump(folder: Path) -> AsyncIterator[tuple[str, str, Callable[[], None]]]:
    """A database, dumped and restored into another one of the same server."""

    def copy() -> None:
        dumped = subprocess.run([str(binaries() / "pg_dump"), "-d", source], capture_output=True, check=True)
        psql = [str(binaries() / "psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", target]
        subprocess.run(psql, input=dumped.stdout, check=True, stdout=subprocess.DEVNULL)

    async with database() as source, database() as target:
        yield source, target, copy


@pytest.mark.parametrize("stores", [file, dump], ids=["sqlite", "postgres"])
async def test_a_copy_is_held_until_it_is_confirmed_and_then_works(tmp_path: Path, stores: Copy):  # X3
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with stores(tmp_path) as (url, copied_url, copy):
        async with fleet_at(url, here) as original:
            original.write("program", PROGRAM)
            ran = await enqueue(original, 5)
            worker = original.work("program:app")
            await original.ended(ran)
            await original.stop(worker)
            waiting = await enqueue(original, 5)
        copy()
        async with fleet_at(copied_url, there) as fleet:
            await check_copy(fleet, ran, waiting)
        async with fleet_at(url, here) as original:
            worker = original.work("program:app")
            await original.ended(waiting)
            assert RESTORED not in original.log()
            await original.stop(worker)
            await original.verify(dict.fromkeys(ran | waiting, "work"))


async def enqueue(fleet: Fleet, jobs: int) -> set[str]:
    new = [NewJob(type="work", payload=f'{{"number": {number}}}') for number in range(jobs)]
    return {handle.id for handle in await fleet.app.enqueue_many(new)}


async def check_copy(fleet: Fleet, ran: set[str], waiting: set[str]) -> None:
    """The copy keeps its jobs and takes new ones; no handler starts before somebody says so."""
    fleet.write("program", PROGRAM)
    worker = fleet.work("program:app")
    await fleet.serves("work")
    await eventually(lambda: RESTORED in fleet.log(), timeout=60)
    added = await enqueue(fleet, 3)
    (finding,) = [
        each
        for each in (await fleet.command_json("doctor", code=1))["findings"]
        if each["level"] == "problem" and RESTORED in each["message"]
    ]
    assert "doctor --confirm-restore" in finding["message"]
    assert {job.status.value for id_, job in (await fleet.jobs()).items() if id_ not in ran} == {"pending"}
    # A worker that starts now, and one-shot work, are held as well.
    assert (await fleet.command_json("tick", "--app", "program:app"))["claimed"] == 0
    await asyncio.sleep(1.5)  # longer than a held worker waits before it asks again
    assert ledger.read(fleet.folder) == {}
    # The server of the tests has another problem: it does not flush.
    assert RESTORED not in await fleet.command("doctor", "--confirm-restore", code=None)
    await fleet.ended(waiting | added)
    await fleet.stop(worker)
    runs = ledger.read(fleet.folder)
    assert set(runs) == waiting | added
    assert {len(each) for each in runs.values()} == {1}
    assert set(await fleet.jobs()) == ran | waiting | added
