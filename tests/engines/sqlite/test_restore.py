"""A file that was restored from a backup: what was claimed before is never taken for what is claimed since."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

from onward.clock import ManualClock, moment_of
from onward.cron import Interval
from onward.engine.restore import RESTORED
from onward.engine.values import ClaimRequest, Exchange, Settlement
from onward.engines.sqlite.engine import SQLiteEngine
from onward.job import NewJob
from onward.lifecycle import Complete
from onward.schedule import Schedule
from tests.engines.sqlite.plain import add, complete, take


def copy(source: Path, target: Path) -> None:
    """Copy a database as SQLite's own backup does; a target that is in use gets the content of the source."""
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    old.close()
    new.close()


async def test_an_outcome_never_reaches_a_job_that_has_the_number_of_a_lost_one(
    engine: SQLiteEngine, path: Path, tmp_path: Path
):  # X3
    await add(engine)
    copy(path, tmp_path / "backup.db")
    (old,) = await take(engine)
    copy(tmp_path / "backup.db", path)
    (new,) = await take(engine)
    assert (new.ref, new.token[0]) == (old.ref, old.token[0])
    assert new.token != old.token
    assert await engine.settle([Settlement(old, Complete('"stale"'))]) == {old.token}
    assert not await engine.report(old, progress=50, message=None, lines=["stale"])
    assert not await engine.settle([Settlement(new, Complete('"its own"'))])


async def test_jobs_of_a_new_file_in_the_place_of_the_old_have_tokens_of_their_own(
    engine: SQLiteEngine, tmp_path: Path, clock: ManualClock
):  # X3
    other = SQLiteEngine(tmp_path / "other.db", clock=clock)
    await other.open()
    await add(engine)
    await add(other)
    (old,), (new,) = await take(engine), await take(other)
    assert new.token[0] == old.token[0]
    assert await other.settle([Settlement(old, Complete('"stale"'))]) == {old.token}
    assert not await other.settle([Settlement(new, Complete())])
    await other.close()


async def opened(path: Path, clock: ManualClock) -> SQLiteEngine:
    engine = SQLiteEngine(path, clock=clock)
    await engine.open()
    return engine


async def test_a_copy_gives_no_job_until_it_is_confirmed(
    engine: SQLiteEngine, path: Path, tmp_path: Path, clock: ManualClock
):  # X3
    await add(engine, 2)
    assert len(await take(engine)) == 1
    copy(path, tmp_path / "copy.db")
    other = await opened(tmp_path / "copy.db", clock)
    request = ClaimRequest(worker_id="w", queues=("*",), slots=10)
    assert (await other.claim(request)).claims == ()
    held = (await other.exchange(Exchange(request=request))).claimed
    assert (held.claims, held.retry_after) == ((), 1.0)
    assert [*(await other.check()).problems] == [RESTORED]
    assert (await engine.check()).problems == ()
    doctor = await opened(tmp_path / "copy.db", clock)
    await doctor.confirm_restore()
    await doctor.close()
    assert len((await other.exchange(Exchange(request=request))).claimed.claims) == 1
    assert (await other.check()).problems == ()
    await other.close()


async def test_a_copy_with_schedules_alone_is_held(
    engine: SQLiteEngine, path: Path, tmp_path: Path, clock: ManualClock
):  # X3
    trigger = Interval(timedelta(hours=1))
    await engine.save_schedule(
        Schedule(name="digest", job=NewJob(type="digest"), trigger=trigger, next_at=moment_of(clock.micros()))
    )
    assert await take(engine) == ()
    copy(path, tmp_path / "copy.db")
    other = await opened(tmp_path / "copy.db", clock)
    assert await take(other) == ()
    assert [*(await other.check()).problems] == [RESTORED]
    await other.close()


async def test_a_file_that_was_replaced_while_it_was_closed_is_held(
    engine: SQLiteEngine, path: Path, tmp_path: Path, clock: ManualClock
):  # X3
    other = await opened(tmp_path / "other.db", clock)
    await add(other)
    assert len(await take(other)) == 1
    await other.close()
    await add(engine)
    assert len(await take(engine)) == 1
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"other.db{suffix}").unlink(missing_ok=True)
    copy(path, tmp_path / "other.db")
    await other.open()
    await add(other)
    assert await take(other) == ()
    await other.close()


async def test_a_copy_without_jobs_needs_no_confirmation(
    engine: SQLiteEngine, path: Path, tmp_path: Path, clock: ManualClock
):  # X3
    await add(engine)
    (claim,) = await take(engine)
    await complete(engine, claim)
    copy(path, tmp_path / "copy.db")
    other = await opened(tmp_path / "copy.db", clock)
    assert await take(other) == ()
    await add(other)
    assert len(await take(other)) == 1
    await other.close()
