"""Batches, and a person at a console: whatever is done by hand is counted, told of, and in nobody's way."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from onward.batches.values import BatchInfo, NewBatch
from onward.engines.sqlite.engine import SQLiteEngine
from onward.lifecycle import JobStatus
from tests.engines.sqlite.plain import add, complete, new_job, take


@pytest.fixture
def console(engine: SQLiteEngine, path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


async def info(engine: SQLiteEngine) -> BatchInfo:
    (found,) = (await engine.batches()).items
    return found


async def test_a_job_that_was_put_in_by_hand_is_in_nobodys_way(engine: SQLiteEngine, console: sqlite3.Connection):
    await engine.save_batch(NewBatch(name="b", sealed=True), [new_job(batch="b")])
    await add(engine)
    console.execute("update onward_job set batch = 'b'")
    await complete(engine, *await take(engine, slots=2))
    found = await info(engine)
    assert (found.total, found.completed, found.progress, found.is_finished) == (1, 2, 100, True)


async def test_a_job_that_was_ended_by_hand_is_told_to_those_that_wait_for_it(
    engine: SQLiteEngine, console: sqlite3.Connection
):
    jobs = [new_job(batch="b"), new_job(batch="b", after=(0,)), new_job(batch="b", after=(1,))]
    first, second, third = [one.ref for one in await engine.save_batch(NewBatch(name="b", sealed=True), jobs)]
    ended = "update onward_job set status = 'completed', completed_at = updated_at, ready_at = null where id = ?"
    console.execute(ended, [first.id])
    console.execute("delete from onward_job where id = ?", [third.id])
    term = await engine.elect("leader", lease=timedelta(seconds=30))
    assert term is not None
    await engine.promote(term)
    job = await engine.get(second)
    assert job is not None
    assert job.status is JobStatus.PENDING
    found = await info(engine)
    assert (found.total, found.completed, found.cancelled) == (3, 1, 1)
