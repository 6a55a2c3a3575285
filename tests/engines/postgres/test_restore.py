"""A store that was really dumped and restored, worked on by roles that may do no more than they must (issue 23, A1)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onward.engine.checked import CheckedEngine
from onward.engine.restore import RESTORED
from onward.engine.values import ClaimRequest
from onward.engines.postgres.engine import PostgresEngine
from onward.lifecycle import JobStatus
from tests.conformance.driver import LEASE, new_job, worker_info
from tests.servers.postgres import binaries, postgres_url

OWNER, WORKER = "restore_owner", "restore_worker"


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Make databases whose owner is an ordinary role, which may not read the number of the cluster."""
    url = postgres_url()
    made: list[str] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for role in (OWNER, WORKER):
            if not connection.execute("select 1 from pg_roles where rolname = %s", [role]).fetchall():
                connection.execute(f"create role {role} login")

    def make(name: str, template: str = "template0") -> str:
        name = f"{name}_{tmp_path.name}".replace("-", "_")[:60].lower()
        execute(url, f'create database "{name}" owner {OWNER} template "{template}"')
        made.append(name)
        there = make_conninfo(url, dbname=name)
        execute(there, "revoke execute on function pg_control_system() from public")
        return there

    yield make
    for name in made:
        execute(url, f'drop database "{name}" with (force)')


def as_role(url: str, role: str) -> str:
    return make_conninfo(url, user=role)


def copy_by_dump(source: str, target: str, folder: Path) -> None:
    """Dump with the real pg_dump, and restore with the real pg_restore."""
    dump = folder / "dump"
    for program, *options in (
        ("pg_dump", "--format=custom", f"--file={dump}", "--schema=onward", "--dbname", source),
        ("pg_restore", "--exit-on-error", "--dbname", target, str(dump)),
    ):
        subprocess.run([str(binaries() / program), *options], check=True, capture_output=True)


def doctor(url: str, *options: str) -> str:
    """Run ``onward doctor`` as a person does."""
    known = conninfo_to_dict(url)
    address = f"postgresql:///{known['dbname']}?host={quote(str(known['host']), safe='')}&user={known['user']}"
    command = [sys.executable, "-m", "onward.cli", "doctor", *options]
    return subprocess.run(
        command, env=os.environ | {"ONWARD_URL": address, "COLUMNS": "300"}, capture_output=True, text=True, check=False
    ).stdout


async def opened(url: str) -> CheckedEngine:
    engine = CheckedEngine(PostgresEngine(url))
    await engine.open()
    return engine


async def claims(engine: CheckedEngine) -> int:
    """Claim as a worker does that has registered and stands for election."""
    await engine.heartbeat(worker_info("w"), [])
    if (term := await engine.elect("w", lease=LEASE)) is not None:
        await engine.resign(term)
    return len((await engine.claim(ClaimRequest(worker_id="w", slots=10, lease=LEASE))).claims)


async def a_store(url: str, jobs: int) -> None:
    """Make a store as its owner, and let another role work."""
    owner = await opened(as_role(url, OWNER))
    await owner.enqueue([new_job()] * jobs)
    await owner.close()
    execute(as_role(url, OWNER), f"select onward.allow_worker('{WORKER}')")


@pytest.mark.parametrize("way", ["pg_dump", "template"])
@pytest.mark.parametrize("confirmed_by", [OWNER, WORKER])
async def test_a_restored_copy_is_held_until_it_is_confirmed_also_for_ordinary_roles(
    database: Callable[..., str], tmp_path: Path, way: str, confirmed_by: str
):  # X3
    source = database("source")
    await a_store(source, 2)
    if way == "pg_dump":
        copy = database("copy")
        copy_by_dump(source, copy, tmp_path)
    else:
        copy = database("copy", str(conninfo_to_dict(source)["dbname"]))
    there = await opened(as_role(copy, WORKER))
    assert await claims(there) == 0
    assert RESTORED in (await there.check()).problems
    assert "restored or copied" in doctor(as_role(copy, confirmed_by))
    assert "restored or copied" not in doctor(as_role(copy, confirmed_by), "--confirm-restore")
    assert RESTORED not in (await there.check()).problems
    assert await claims(there) == 2
    here = await opened(as_role(source, WORKER))
    assert RESTORED not in (await here.check()).problems
    assert await claims(here) == 2
    for engine in (there, here):
        await engine.close()


async def test_a_restored_copy_without_jobs_is_worked_on_at_once_by_an_ordinary_role(
    database: Callable[..., str], tmp_path: Path
):  # X3
    source, copy = database("source"), database("copy")
    await a_store(source, 0)
    copy_by_dump(source, copy, tmp_path)
    there = await opened(as_role(copy, WORKER))
    assert await claims(there) == 0
    (added,) = await there.enqueue([new_job()])
    assert await claims(there) == 1
    job = await there.get(added.ref)
    assert job is not None
    assert job.status is JobStatus.RUNNING
    await there.close()


@pytest.mark.parametrize("change", ["grant", "revoke"])
async def test_a_right_that_comes_or_goes_does_not_hold_the_store(database: Callable[..., str], change: str):  # X3
    source = database("source")
    if change == "revoke":
        execute(source, f"grant execute on function pg_control_system() to {OWNER}")
    await a_store(source, 1)
    if change == "grant":
        execute(source, f"grant execute on function pg_control_system() to {OWNER}")
    else:
        execute(source, f"revoke execute on function pg_control_system() from {OWNER}")
    homes = set()
    for role in (OWNER, WORKER):
        with psycopg.connect(as_role(source, role)) as connection:
            homes |= set(connection.execute("select onward.current_home()").fetchall())
    assert len(homes) == 1, "all roles get the same answer"
    engine = await opened(as_role(source, WORKER))
    assert RESTORED not in (await engine.check()).problems
    assert await claims(engine) == 1
    await engine.close()
