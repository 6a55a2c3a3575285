"""The database file is removed, moved or replaced under a running engine: nothing is acknowledged into the void."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onward.engines.sqlite.database import Database
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import StoreUnavailable
from tests.engines.sqlite.plain import REPOSITORY, add, new_job, states


@pytest.mark.parametrize("way", ["removed", "moved", "replaced"])
@pytest.mark.parametrize("callers", [1, 5])
async def test_no_job_is_acknowledged_into_a_file_that_is_gone(engine, path, tmp_path, way, callers):  # X3
    for _ in range(30):
        await add(engine)  # the caller's own thread writes too, once writes have proved quick
    if way == "replaced":
        other = SQLiteEngine(tmp_path / "other.db")
        await other.open()
        await other.close()
        (tmp_path / "other.db").replace(path)
    elif way == "moved":
        shutil.move(path, tmp_path / "elsewhere.db")
    else:
        path.unlink()
    answers = await asyncio.gather(*(add(engine) for _ in range(callers)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * callers
    assert "removed or replaced while it was in use" in str(answers[0])
    if way != "replaced":
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await states(engine)
        assert not path.exists(), "an empty database must not take its place"
        with pytest.raises(StoreUnavailable, match="put the file back"):
            engine.enqueue_sync([new_job()])


async def test_a_file_that_is_put_back_is_used_again(engine, path, tmp_path):  # X3
    await add(engine)
    shutil.move(path, tmp_path / "elsewhere.db")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await add(engine)
    with pytest.raises(StoreUnavailable):
        await states(engine)
    shutil.move(tmp_path / "elsewhere.db", path)
    await add(engine)
    assert (await states(engine))["pending"] >= 2


async def test_what_a_shared_commit_has_written_is_not_written_twice(engine, monkeypatch):  # X3
    await add(engine)

    def fail(_: float) -> None:
        raise MemoryError

    monkeypatch.setattr(engine._writer, "_record_commit", fail)
    answers = await asyncio.gather(*(add(engine) for _ in range(10)), return_exceptions=True)
    monkeypatch.undo()
    assert all(isinstance(answer, list) for answer in answers)
    assert await states(engine) == {"pending": 11}


async def test_a_lock_that_the_system_refuses_leaves_no_caller_unanswered(engine, monkeypatch):  # X3
    for _ in range(30):
        await add(engine)

    def refuse() -> bool:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(engine._writer._write_lock, "try_acquire", refuse)
    async with asyncio.timeout(20):
        await asyncio.gather(*(add(engine) for _ in range(5)))
        await asyncio.to_thread(engine.enqueue_sync, [new_job()])
    assert await states(engine) == {"pending": 36}


async def test_lock_files_have_the_mode_of_the_database(tmp_path):
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o660)
    engine = SQLiteEngine(path)
    await engine.open()
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    await engine.close()
    assert modes["jobs.db-turn"] == modes["jobs.db-write"] == 0o660


async def test_lock_files_of_a_new_database_are_for_its_owner_only(path):  # X6
    before = os.umask(0)
    try:
        engine = SQLiteEngine(path)
        await engine.open()
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        await engine.close()
    finally:
        os.umask(before)
    assert {modes["jobs.db"], modes["jobs.db-turn"], modes["jobs.db-write"]} == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_lock_files_belong_to_the_owner_of_the_database(path):
    """Or a command that root runs once would keep the database's own user from writing."""
    path.touch(mode=0o600)
    os.chown(path, 65534, 65534)
    engine = SQLiteEngine(path)
    await engine.open()
    owners = {(file.stat().st_uid, file.stat().st_gid) for file in path.parent.iterdir()}
    await engine.close()
    assert owners == {(65534, 65534)}


def test_a_temporary_database_that_is_never_closed_goes_with_the_program(tmp_path):
    script = "from onward.engines.sqlite.database import Database; print(Database(None).path.parent)"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "src")}
    shown = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert Path(shown.stdout.strip()).parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_temporary_database_goes_with_its_object():
    database = Database(None)
    folder = database.path.parent
    assert folder.exists()
    del database
    assert not folder.exists()


async def test_a_caller_that_writes_by_itself_is_not_acknowledged_either(engine, path):  # X3
    await add(engine)
    path.unlink()
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        engine.enqueue_sync([new_job()])  # on this thread: the connection is open, and nobody is in the way
