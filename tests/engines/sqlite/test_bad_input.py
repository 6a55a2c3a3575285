"""A store that is locked, read-only, damaged, full, in the wrong place or of the wrong age: each a clear error of ours.

Each error names the file and says what to do, nothing is left half-written, and the engine goes on by itself once the
cause is gone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.app import App
from onward.cli.errors import EXIT_STORE_UNREACHABLE
from onward.engines.sqlite import database
from onward.engines.sqlite.database import Database, file_system_of
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import (
    InvalidValue,
    OnwardError,
    SchemaChanged,
    SchemaTooNew,
    SchemaTooOld,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)
from tests.engines.sqlite.plain import REPOSITORY, add, new_job, on_writer, states

# Locked ---------------------------------------------------------------------------------------------------------------


async def test_a_lock_that_another_program_keeps_is_busy_with_a_remedy_and_passes(engine, bare, path):
    bare.execute("begin immediate")
    with pytest.raises(StoreBusy, match="end that program's transaction, or raise busy_timeout") as raised:
        await add(engine)
    assert str(path) in str(raised.value)
    assert await states(engine) == {}
    bare.execute("rollback")
    await add(engine)
    assert await states(engine) == {"pending": 1}


async def test_all_who_wait_for_a_lock_are_told_at_once_and_not_one_after_the_other(engine, bare, monkeypatch):
    waits: list[None] = []
    begin_immediate = engine._writer._begin_immediate

    def counted(connection: sqlite3.Connection) -> None:
        waits.append(None)
        begin_immediate(connection)

    monkeypatch.setattr(engine._writer, "_begin_immediate", counted)
    bare.execute("begin immediate")
    answers = await asyncio.gather(*[add(engine) for _ in range(20)], return_exceptions=True)
    bare.execute("rollback")
    assert {type(answer) for answer in answers} == {StoreBusy}
    assert len(waits) <= 2, "each of twenty callers has waited for the lock by itself"


async def test_a_busy_store_can_be_read(engine, bare):
    await add(engine)
    bare.execute("begin immediate")
    assert await states(engine) == {"pending": 1}
    bare.execute("rollback")


async def test_the_callers_own_connection_is_told_of_a_lock_in_the_same_words(engine, bare, path):
    other = sqlite3.connect(path, timeout=0.05, isolation_level=None)
    bare.execute("begin immediate")
    other.execute("begin")
    with pytest.raises(StoreBusy):
        await engine.enqueue([new_job()], connection=other)
    other.execute("rollback")
    bare.execute("rollback")
    other.close()
    assert await states(engine) == {}


# Not a place for a database -------------------------------------------------------------------------------------------


async def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreUnavailable, match=r"nowhere does not exist; make it first"):
        await SQLiteEngine(tmp_path / "nowhere" / "jobs.db").open()
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_is_no_database(tmp_path):
    (tmp_path / "jobs.db").mkdir()
    engine = SQLiteEngine(tmp_path / "jobs.db")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await engine.open()
    await engine.close()


async def test_an_sqlite_that_is_too_old_is_refused_before_anything_is_made(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.36.0")
    with pytest.raises(StoreUnavailable, match=r"has SQLite 3\.36\.0, Onward needs 3\.37\.0"):
        await SQLiteEngine(path).open()
    assert not path.exists()


MOUNTS = """\
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
31 22 0:26 / {folder} rw,relatime shared:9 master:3 - {kind} server:/export rw,vers=4.2
32 22 0:27 / /somewhere/else rw - tmpfs tmpfs rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    return tmp_path / "mountinfo"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the list of mounts is Linux's")
@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "lustre", "virtiofs", "vboxsf"]
)
@pytest.mark.parametrize("folder", ["share", "a share", "größe", os.fsdecode(b"not-utf-8-\xff")])
def test_a_network_file_system_is_refused_with_what_to_use_instead(tmp_path, mounts, kind, folder):
    place = tmp_path / folder / "deep"
    place.mkdir(parents=True)
    shown = os.fspath(tmp_path / folder).replace(" ", "\\040")
    mounts.write_bytes(os.fsencode(MOUNTS.format(folder=shown, kind=kind)))
    with pytest.raises(StoreUnavailable, match="local disk, or use postgresql://") as raised:
        Database(place / "jobs.db").check_location(mounts=mounts)
    assert f"({kind})" in str(raised.value)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the list of mounts is Linux's")
def test_the_nearest_mount_decides(tmp_path, mounts):
    for folder in ("share", "share/local", "shared"):
        (tmp_path / folder).mkdir()
    share = tmp_path / "share"
    mounts.write_text(
        f"22 1 252:1 / / rw - ext4 /dev/vda1 rw\n"
        f"31 22 0:26 / {share} rw - nfs4 server:/export rw\n"
        f"32 31 252:2 / {share}/local rw - xfs /dev/vdb1 rw\n"
    )
    assert file_system_of(share, mounts=mounts) == "nfs4"
    assert file_system_of(share / "local", mounts=mounts) == "xfs"
    assert file_system_of(tmp_path / "shared", mounts=mounts) == "ext4"
    (tmp_path / "link").symlink_to(share)
    assert file_system_of(tmp_path / "link", mounts=mounts) == "nfs4"


def test_where_mounts_cannot_be_told_nothing_is_refused(tmp_path):
    Database(tmp_path / "jobs.db").check_location(mounts=tmp_path / "there-is-none")


# Not to be written ----------------------------------------------------------------------------------------------------

AS_NOBODY = """
import asyncio, os, sys
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import OnwardError
from onward.job import NewJob

async def main():
    engine = SQLiteEngine(sys.argv[1])
    try:
        await engine.open()
        await engine.enqueue([NewJob(type="greet")])
    except OnwardError as error:
        print(type(error).__name__, error)
        print("permanent:", error.is_permanent)
    else:
        print("written")
    finally:
        await engine.close()

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
asyncio.run(main())
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that any user of the machine can get to, unlike those that pytest makes."""
    with tempfile.TemporaryDirectory(prefix="onward-public-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o700)


def output_as_nobody(path: Path) -> str:
    """Run the engine as a user without privileges (root may write to anything), and hear what it says."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, path], capture_output=True, text=True, timeout=60, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def made(path: Path) -> None:
    """Make a database with one job, and let go of it."""
    engine = SQLiteEngine(path)
    await engine.open()
    await add(engine)
    await engine.close()


def jobs_in(path: Path) -> int:
    """Count the jobs, with nothing but SQLite, after everything has been made accessible again."""
    path.parent.chmod(0o777)
    for file in path.parent.iterdir():
        file.chmod(0o666)
    connection = sqlite3.connect(path)
    try:
        (count,) = connection.execute("select count(*) from onward_job").fetchone()
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    finally:
        connection.close()
    return int(count)


@pytest.mark.parametrize("which", ["jobs.db", "jobs.db-*", "jobs.db*"])
async def test_a_file_that_may_not_be_written_is_read_only_with_a_remedy(public, which):
    path = public / "jobs.db"
    await made(path)
    for file in public.iterdir():
        file.chmod(0o666)
    for file in public.glob(which):
        file.chmod(0o444)
    output = output_as_nobody(path)
    assert output.startswith("StoreReadOnly"), output
    assert str(path) in output
    assert "check the permissions of the file and its folder" in output
    assert "permanent: True" in output, "a worker would try again for ever"
    assert jobs_in(path) == 1


async def test_an_empty_file_that_may_not_be_written_is_read_only(public):
    path = public / "jobs.db"
    path.touch(mode=0o444)
    output = output_as_nobody(path)
    assert output.startswith("StoreReadOnly"), output
    assert path.read_bytes() == b""


async def test_a_folder_that_may_not_be_written_is_read_only_with_a_remedy(public):
    path = public / "jobs.db"
    await made(path)
    for file in public.glob("jobs.db-*"):
        file.unlink()
    path.chmod(0o666)
    public.chmod(0o555)
    output = output_as_nobody(path)
    assert output.startswith("StoreReadOnly"), output
    assert "permanent: True" in output
    assert "check the permissions of the file and its folder" in output
    assert jobs_in(path) == 1


async def test_a_folder_that_may_not_even_be_entered_is_read_only_with_a_remedy(public):
    (public / "closed").mkdir(mode=0o000)
    output = output_as_nobody(public / "closed" / "below" / "jobs.db")
    assert output.startswith("StoreReadOnly"), output
    assert "permanent: True" in output
    assert "check the permissions of the file and its folder" in output


ON_READ_ONLY_MOUNT = """
mount -t tmpfs tmpfs "$1" && cp jobs.db "$1/jobs.db" && mount -o remount,ro "$1" || exit
echo mounted
exec "$2" -m onward.cli.main work program:app --url "sqlite:///$1/jobs.db"
"""


def test_a_worker_ends_at_once_on_a_read_only_mount(path, tmp_path):
    asyncio.run(made(path))
    place = tmp_path / "mounted"
    place.mkdir()
    (tmp_path / "program.py").write_text("from onward import App; app = App()")
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare, to mount without a trace")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ON_READ_ONLY_MOUNT, "sh", place, sys.executable],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    if "mounted" not in done.stdout:
        pytest.skip(f"cannot mount here: {done.stderr}")
    assert done.returncode == EXIT_STORE_UNREACHABLE, done.stderr
    assert "and how it is mounted" in done.stderr
    assert "trying again" not in done.stderr


async def test_a_file_that_may_be_written_is(public):
    """The tests above would prove nothing if nobody could not write at all."""
    path = public / "jobs.db"
    await made(path)
    for file in public.iterdir():
        file.chmod(0o666)
    assert output_as_nobody(path) == "written\n"
    assert jobs_in(path) == 2


# Damaged --------------------------------------------------------------------------------------------------------------


async def test_a_file_that_is_no_database_is_refused_and_left_alone(path):
    text = "dear diary, today I was mistaken for a database\n" * 100
    path.write_text(text)
    engine = SQLiteEngine(path)
    with pytest.raises(StoreCorrupt, match="not an SQLite database; give another path"):
        await engine.open()
    await engine.close()
    assert path.read_text() == text


async def test_an_empty_file_is_an_empty_database(path):
    path.touch()
    await made(path)
    assert jobs_in(path) == 1


async def test_a_damaged_database_is_corrupt_with_a_remedy(path):
    engine = SQLiteEngine(path)
    await engine.open()
    await add(engine, 500, payload='{"text": "' + "x" * 200 + '"}')
    await engine.close()
    with path.open("r+b") as file:
        pages = path.stat().st_size // 4096
        for page in range(2, pages):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)
    engine = SQLiteEngine(path)
    with pytest.raises(StoreCorrupt, match=r"damaged; restore a backup, or recover it with: sqlite3 FILE \.recover"):
        await engine.open()
        await add(engine)
    await engine.close()


# Full -----------------------------------------------------------------------------------------------------------------


async def test_a_full_store_says_so_keeps_nothing_of_the_job_and_goes_on_when_there_is_space(engine):
    await add(engine)

    def fill(transaction: object) -> None:
        connection: sqlite3.Connection = transaction.connection  # type: ignore[attr-defined]
        (pages,) = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages + 2}")

    await on_writer(engine, fill)
    big = [new_job(payload='{"text": "' + "x" * 3000 + '"}', idempotency_key=f"k{number}") for number in range(50)]
    with pytest.raises(StoreFull, match="free some space, nothing was written"):
        await engine.enqueue(big)
    assert await states(engine) == {"pending": 1}
    await on_writer(engine, lambda transaction: transaction.connection.execute("pragma max_page_count = 1000000"))
    assert all(answer.is_new for answer in await engine.enqueue(big))
    assert await states(engine) == {"pending": 51}


ON_A_SMALL_DISK = """
import asyncio, pathlib, sqlite3, sys
from onward.engines.sqlite.engine import SQLiteEngine
from onward.errors import StoreFull
from onward.engine.values import ClaimRequest, GroupBy, JobFilter, Settlement
from onward.job import NewJob
from onward.lifecycle import Complete

folder = pathlib.Path(sys.argv[1])
filler = folder / "filler"

async def main():
    engine = SQLiteEngine(folder / "jobs.db")
    await engine.open()
    filler.write_bytes(b"x" * 4_000_000)  # the log passes the size at which it is written back before the disk is full
    told, refused = 0, 0
    job = NewJob(type="greet", payload='{"text": "' + "x" * 20_000 + '"}')
    while refused < 5:
        answers = await asyncio.gather(*[engine.enqueue([job] * 2) for _ in range(4)], return_exceptions=True)
        for answer in answers:
            if isinstance(answer, StoreFull):
                refused += 1
                assert "free some space" in str(answer), answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                told += len(answer)
    print("told of", told)
    assert told > 0
    # What was told is there, and can still be worked on where that needs no space to speak of.
    assert sum((await engine.count(JobFilter(), by=GroupBy.STATUS)).values()) == told
    filler.unlink()
    told += len(await engine.enqueue([job]))
    (claim,) = (await engine.claim(ClaimRequest(worker_id="w"))).claims
    assert not await engine.settle([Settlement(claim, Complete())])
    assert await engine.count(JobFilter(), by=GroupBy.STATUS) == {"completed": 1, "pending": told - 1}
    await engine.close()
    connection = sqlite3.connect(folder / "jobs.db")
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert connection.execute("select count(*) from onward_job").fetchone() == (told,)
    print("went on")

asyncio.run(main())
"""


def can_mount() -> bool:
    """Whether a process here may have a file system of its own: root, or a user who may make namespaces."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here; the test above fills a store as well")
def test_a_full_disk_loses_nothing_that_was_told_and_is_gone_on_from_by_itself(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=12m none {disk} && exec "$0" -c "$1" {disk}'
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, sys.executable, ON_A_SMALL_DISK],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "went on" in done.stdout


# Of another age -------------------------------------------------------------------------------------------------------


async def refused(path: Path, kind: type[OnwardError], words: str) -> None:
    """See that both opening and checking say the same."""
    for verb in ("open", "check"):
        engine = SQLiteEngine(path)
        with pytest.raises(kind, match=words):
            await getattr(engine, verb)()
        await engine.close()


async def test_a_schema_that_is_newer_than_the_code_is_refused(engine, bare, path):  # O9
    await add(engine)
    bare.execute("insert into onward_migration values (99, 'from_the_future', 'abc', 0)")
    before = bare.execute("select * from sqlite_schema").fetchall()
    await refused(path, SchemaTooNew, "has schema 99, this version of Onward knows .*: upgrade Onward here")
    assert bare.execute("select * from sqlite_schema").fetchall() == before


async def test_a_schema_that_was_edited_is_refused(engine, bare, path):  # O9
    bare.execute("update onward_migration set checksum = 'abc' where number = 1")
    await refused(path, SchemaChanged, "applied another migration 0001_initial")


async def test_a_database_without_our_tables_is_too_old_to_check(path):  # O9
    sqlite3.connect(path).close()
    engine = SQLiteEngine(path)
    with pytest.raises(SchemaTooOld, match="run onward migrate"):
        await engine.check()
    await engine.close()


# The caller's connection ----------------------------------------------------------------------------------------------


async def test_a_connection_to_another_file_is_refused_and_nothing_is_written_anywhere(engine, tmp_path):  # X4
    stranger = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(InvalidValue, match=r"must be a connection to .*jobs\.db") as raised:
        await engine.enqueue([new_job()], connection=stranger)
    assert raised.value.field == "connection"
    assert not stranger.in_transaction
    assert stranger.execute("select * from sqlite_schema").fetchall() == []
    stranger.close()
    assert await states(engine) == {}


async def test_a_connection_to_a_copy_of_the_file_is_refused(engine, tmp_path, bare):  # X4
    bare.execute("vacuum into ?", (str(tmp_path / "copy.db"),))
    copy = sqlite3.connect(tmp_path / "copy.db")
    with pytest.raises(InvalidValue, match="where the jobs are kept"):
        await engine.enqueue([new_job()], connection=copy)
    assert copy.execute("select count(*) from onward_job").fetchone() == (0,)
    copy.close()


async def test_a_connection_by_another_way_to_the_same_file_is_taken(engine, path, tmp_path):  # X4
    (tmp_path / "link.db").symlink_to(path)
    friend = sqlite3.connect(tmp_path / "link.db")
    with friend:
        await engine.enqueue([new_job()], connection=friend)
    friend.close()
    assert await states(engine) == {"pending": 1}


@pytest.mark.parametrize("stranger", ["jobs.db", 7, object()])
async def test_what_is_no_sqlite_connection_is_refused(engine, stranger):  # X4
    with pytest.raises(InvalidValue, match=r"must be a connection of sqlite3.* to the same database file"):
        await engine.enqueue([new_job()], connection=stranger)
    with pytest.raises(InvalidValue):
        engine.enqueue_sync([new_job()], connection=stranger)


async def test_what_fails_within_the_callers_transaction_leaves_nothing_there_and_the_caller_goes_on(
    engine, path
):  # X4
    caller = sqlite3.connect(path)
    caller.execute("create table note (text)")
    caller.execute("insert into note values ('mine')")
    with pytest.raises(sqlite3.IntegrityError):
        engine.enqueue_sync([new_job(), new_job(max_attempts=0)], connection=caller)
    assert caller.in_transaction
    assert caller.execute("select count(*) from onward_job").fetchone() == (0,)
    engine.enqueue_sync([new_job()], connection=caller)
    caller.commit()
    assert caller.execute("select text from note").fetchall() == [("mine",)]
    caller.close()
    assert await states(engine) == {"pending": 1}


async def test_a_connection_to_memory_is_refused(engine):  # X4
    memory = sqlite3.connect(":memory:")
    with pytest.raises(InvalidValue, match=":memory:"):
        await engine.enqueue([new_job()], connection=memory)
    memory.close()


async def test_a_connection_to_a_file_without_our_tables_is_told_to_migrate_first(path):  # X4
    caller = sqlite3.connect(path)
    caller.execute("create table note (text)")
    engine = SQLiteEngine(path)
    with pytest.raises(SchemaTooOld, match="open the app first, or run onward migrate"):
        engine.enqueue_sync([new_job()], connection=caller)
    caller.close()
    await engine.close()


def test_an_unknown_way_to_be_durable_is_refused():
    with pytest.raises(InvalidValue, match="must be 'full' or 'normal'"):
        SQLiteEngine("jobs.db", synchronous="off")  # type: ignore[arg-type]


def test_an_error_that_is_no_fault_of_the_store_is_not_hidden(path):
    """A mistake in our own SQL must look like one."""
    with pytest.raises(sqlite3.OperationalError, match="syntax error"), database.translated(Database(path)):
        sqlite3.connect(":memory:").execute("select from")


async def test_a_new_database_is_for_its_owner_only_and_the_mode_of_an_old_one_is_kept(tmp_path: Path):  # X6
    before = os.umask(0)
    try:
        for name, mode in (("new.db", 0o600), ("old.db", 0o640)):
            path = tmp_path / name
            if name == "old.db":
                path.touch(mode=mode)
            async with App(f"sqlite:///{path}") as app:
                await app.jobs.count()
                beside = [path, path.with_name(f"{name}-wal"), path.with_name(f"{name}-shm")]
                assert [each.stat().st_mode & 0o777 for each in beside] == [mode] * 3
    finally:
        os.umask(before)
