"""The schema: made once however often and by however many, upgraded under workers that go on, never left half-made."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import pytest

from onward.clock import SystemClock
from onward.engine.migrations import Migration
from onward.engines.sqlite import migrations
from onward.engines.sqlite.database import Database
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.transaction import Transaction
from onward.errors import SchemaChanged, SchemaTooNew
from tests.engines.sqlite.plain import REPOSITORY, add, complete, on_writer, states, take
from tests.engines.sqlite.processes import processes, ready

SECOND = Migration(
    len(migrations.MIGRATIONS) + 1,
    "colour",
    """
    -- A column with a default, an index on it, and a trigger: what an ordinary later version would bring.
    alter table onward_job add column colour text not null default 'grey';
    create index onward_job_colour on onward_job (colour) where completed_at is null;
    create trigger onward_job_paint after insert on onward_job begin
      update onward_job set colour = 'green' where seq = new.seq;
    end;
    """,
)
BROKEN = Migration(
    len(migrations.MIGRATIONS) + 1,
    "broken",
    "create table halfway (a);\ninsert into halfway values (1);\nselect nonsense;\n",
)
LATER = (*migrations.MIGRATIONS, SECOND)


def schema_of(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """Everything that a schema is, but for where it lies in the file."""
    return connection.execute("select type, name, tbl_name, sql from sqlite_schema order by type, name").fetchall()


def migrate(connection: sqlite3.Connection, path: Path, shipped: tuple[Migration, ...] = migrations.MIGRATIONS) -> int:
    """Migrate on a connection of the test's own, as the writer would."""
    connection.execute("begin immediate")
    try:
        applied = migrations.migrate(Transaction(connection, SystemClock().micros()), Database(path), shipped)
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
    return len(applied)


async def test_migrating_again_does_nothing(engine, bare, path):  # O9
    before = schema_of(bare), bare.execute("select * from onward_migration").fetchall()
    assert migrate(bare, path) == 0
    await engine.open()
    assert (schema_of(bare), bare.execute("select * from onward_migration").fetchall()) == before


async def test_opening_what_is_up_to_date_waits_for_nobody(engine, bare, path):  # O9
    bare.execute("begin immediate")
    try:
        another = SQLiteEngine(path)
        await another.open()
        await another.close()
    finally:
        bare.execute("rollback")


@pytest.mark.parametrize("shipped", [migrations.MIGRATIONS, LATER], ids=["shipped", "with one more"])
def test_the_script_for_the_console_makes_the_same_schema(tmp_path, shipped):  # O9
    by_hand = sqlite3.connect(tmp_path / "by-hand.db")
    by_hand.executescript(migrations.script(shipped))
    ours = sqlite3.connect(tmp_path / "ours.db", isolation_level=None)
    migrate(ours, tmp_path / "ours.db", shipped)
    assert schema_of(by_hand) == schema_of(ours)
    recorded = "select number, name, checksum from onward_migration order by number"
    assert by_hand.execute(recorded).fetchall() == ours.execute(recorded).fetchall()
    assert migrations.applied(by_hand) == migrations.applied(ours)
    by_hand.close()
    ours.close()


async def test_a_schema_made_by_hand_is_worked_with_as_if_we_had_made_it(path):  # O9
    connection = sqlite3.connect(path)
    connection.executescript(migrations.script())
    connection.close()
    engine = SQLiteEngine(path)
    assert (await engine.check()).schema == len(migrations.MIGRATIONS)
    await engine.open()
    await add(engine)
    await complete(engine, *await take(engine))
    await engine.close()


def test_a_script_that_fails_half_way_leaves_nothing(tmp_path):  # O9
    by_hand = sqlite3.connect(tmp_path / "by-hand.db", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        by_hand.executescript(migrations.script((*migrations.MIGRATIONS, BROKEN)))
    by_hand.execute("rollback")
    assert schema_of(by_hand) == []
    by_hand.close()


@pytest.mark.parametrize("migration", [*migrations.MIGRATIONS, SECOND], ids=lambda migration: migration.name)
def test_cutting_a_migration_into_statements_loses_nothing(migration):  # O9
    statements = migrations.split(migration.sql)
    assert all(sqlite3.complete_statement(statement) for statement in statements)
    assert "".join("".join(statements).split()) == "".join(migration.sql.split())


def open_and_report(pipe: Connection, path: Path) -> None:
    """Open the engine at the same moment as others, and say which schema there is."""
    import asyncio  # noqa: PLC0415 - in the other process

    async def act() -> None:
        engine = SQLiteEngine(path)
        await engine.open()
        pipe.send((await engine.check()).schema)
        await add(engine)
        await engine.close()
        pipe.send("done")

    ready(pipe)
    asyncio.run(act())


async def test_ten_processes_at_once_make_one_schema(path):  # O9
    with processes(open_and_report, path, count=10) as ten:
        for process in ten:
            process.send("begin")
        assert [process.receive() for process in ten] == [len(migrations.MIGRATIONS)] * 10
        assert [process.receive() for process in ten] == ["done"] * 10
    connection = sqlite3.connect(path)
    assert connection.execute("select number from onward_migration").fetchall() == [
        (step.number,) for step in migrations.MIGRATIONS
    ]
    assert connection.execute("select count(*) from onward_job").fetchone() == (10,)
    connection.close()


async def test_an_upgrade_loses_no_job_and_older_engines_go_on(engine, bare, path):  # O9
    """The engine of the version before has its statements prepared and a job in hand when the schema changes."""
    await add(engine, 3)
    (held,) = await take(engine)
    before = await on_writer(
        engine, lambda t: t.connection.execute("select seq, id, payload from onward_job").fetchall()
    )

    assert migrate(bare, path, LATER) == 1

    after = bare.execute("select seq, id, payload from onward_job").fetchall()
    assert after == before
    assert {colour for (colour,) in bare.execute("select colour from onward_job")} == {"grey"}
    await complete(engine, held)
    await add(engine)
    assert bare.execute("select count(*) from onward_job where colour = 'green'").fetchone() == (1,)
    await complete(engine, *await take(engine, slots=10))
    assert await states(engine) == {"completed": 4}
    assert bare.execute("pragma integrity_check").fetchone() == ("ok",)
    newcomer = SQLiteEngine(path)
    with pytest.raises(SchemaTooNew):
        await newcomer.open()
    await newcomer.close()
    assert migrate(bare, path, LATER) == 0


OF_DEVELOPMENT = tuple(
    Migration(
        step.number, step.name, re.sub(r"\bstatus\b", "state", step.sql.replace("onward_throttle", "onward_hold"))
    )
    for step in migrations.MIGRATIONS
)
"""The schema as a development version had it, before its tables and columns had the names of today."""
NO_UPGRADE = (
    r"jobs\.db applied another migration 0001_initial than this version ships: it was made by a development version.*"
    r"To make a new one, move jobs\.db\* away or give another path, and run: onward migrate"
)


@pytest.fixture
def of_development(path: Path) -> Path:
    """A store that a development version has made and used."""
    connection = Database(path).connect()
    migrate(connection, path, OF_DEVELOPMENT)
    connection.execute(
        "insert into onward_job (id, queue, type, state, priority, payload, max_attempts, claim_no, created_at,"
        " ready_at, updated_at) values ('1', 'default', 'greet', 'pending', 0, '{}', 5, 0, 0, 0, 0)"
    )
    connection.close()
    return path


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.glob(f"{path.name}*") if file.stat().st_size}


@pytest.mark.parametrize("verb", ["open", "check"])
async def test_a_store_of_a_development_version_is_refused_before_anything_is_written(of_development, verb):  # O9
    before = files_of(of_development)
    engine = SQLiteEngine(of_development, events="all")
    with pytest.raises(SchemaChanged, match=NO_UPGRADE):
        await getattr(engine, verb)()
    await engine.close()
    assert files_of(of_development) == before


@pytest.mark.parametrize("command", ["work", "migrate"])
def test_the_command_line_says_how_to_replace_a_store_of_a_development_version(of_development, command):  # O9
    before = files_of(of_development)
    url = f"sqlite:///{of_development}"
    (of_development.parent / "shop.py").write_text(f"from onward import App\napp = App({url!r})\n")
    done = subprocess.run(
        [sys.executable, "-m", "onward.cli", command, "--app", "shop:app", "--url", url],
        cwd=of_development.parent,
        env=os.environ | {"PYTHONPATH": f"{REPOSITORY / 'src'}:{of_development.parent}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(NO_UPGRADE, done.stderr)
    assert "Traceback" not in done.stderr
    assert files_of(of_development) == before


async def test_an_upgrade_that_fails_half_way_leaves_the_schema_as_it_was(engine, bare, path):  # O9
    await add(engine)
    before = schema_of(bare)
    with pytest.raises(sqlite3.OperationalError, match="nonsense"):
        migrate(bare, path, (*migrations.MIGRATIONS, BROKEN))
    assert schema_of(bare) == before
    assert migrations.applied(bare).keys() == {step.number for step in migrations.MIGRATIONS}
    await complete(engine, *await take(engine))


def stop_half_way(pipe: Connection, path: Path) -> None:
    """Apply a migration, and wait to be killed before it is committed."""
    connection = Database(path).connect()
    ready(pipe)
    connection.execute("begin immediate")
    migrations.migrate(Transaction(connection, 0), Database(path), LATER)
    pipe.send("half-way")
    pipe.recv()


@pytest.mark.parametrize("made", [False, True], ids=["of nothing", "of the schema before"])
async def test_a_process_killed_half_way_leaves_the_schema_as_it_was(path, made):  # O9
    connection = sqlite3.connect(path, isolation_level=None)
    if made:
        migrate(connection, path)
    before = schema_of(connection)
    with processes(stop_half_way, path, count=1) as (process,):
        process.send("begin")
        assert process.receive() == "half-way"
        process.kill()
    assert schema_of(connection) == before
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    assert migrate(connection, path, LATER) == (1 if made else len(LATER))
    connection.close()


class _BusyAtFirst:
    """A connection whose first change of the journal mode meets another one's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.refusals = 3

    def execute(self, sql: str) -> sqlite3.Cursor:
        if "journal_mode" in sql and self.refusals:
            self.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return self._connection.execute(sql)


def test_connections_that_open_a_new_file_at_once_do_not_refuse_each_other(tmp_path: Path):  # O9
    database = Database(tmp_path / "jobs.db", synchronous="full", busy_timeout=60.0)
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as plain:
        busy = _BusyAtFirst(plain)
        database.configure(cast("sqlite3.Connection", busy))
        assert (busy.refusals, plain.execute("pragma journal_mode").fetchone()[0]) == (0, "wal")
