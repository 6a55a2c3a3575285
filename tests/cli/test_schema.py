from __future__ import annotations

import sqlite3
from pathlib import Path

from onward.engines.sqlite.migrations import MIGRATIONS
from tests.cli.conftest import Cli

URL = ("--url", "sqlite:///fresh.db")
NEWEST = len(MIGRATIONS)


def test_a_store_is_brought_up_to_date_once(cli: Cli):  # O9
    assert cli("migrate", "--json", *URL).ok().json == {"schema": NEWEST, "changed": True}
    assert cli("migrate", "--json", *URL).ok().json == {"schema": NEWEST, "changed": False}
    assert "up to date" in cli("migrate", *URL).ok().out


def test_a_check_changes_nothing(cli: Cli, workdir: Path):  # O9
    cli("migrate", "--check", *URL).failed("not up to date", "onward migrate")
    assert not (workdir / "fresh.db").exists()
    cli("migrate", *URL).ok()
    assert cli("migrate", "--check", *URL).ok().out.endswith(f"schema {NEWEST}, up to date\n")


def test_the_sql_applied_by_hand_is_the_schema(cli: Cli, workdir: Path):  # O9
    script = cli("migrate", "--sql", *URL).ok().out
    assert not (workdir / "fresh.db").exists()
    with sqlite3.connect(workdir / "fresh.db") as connection:
        connection.executescript(script)
    connection.close()
    cli("migrate", "--check", *URL).ok()
    cli("enqueue", "anything", *URL).ok()


def test_a_newer_schema_is_refused(cli: Cli, workdir: Path):  # O9
    cli("migrate", *URL).ok()
    with sqlite3.connect(workdir / "fresh.db") as connection:
        connection.execute("insert into onward_migration values (99, 'from_the_future', 'x', 0)")
    connection.close()
    for words in (("migrate",), ("migrate", "--check"), ("jobs", "list")):
        cli(*words, *URL).failed("has schema 99", "upgrade Onward")


def test_sql_and_check_do_not_go_together(cli: Cli):
    cli("migrate", "--sql", "--check", *URL).usage_error("do not go together")


def test_an_engine_with_a_schema_of_its_own_has_no_sql(cli: Cli, workdir: Path):
    (workdir / "foreign.py").write_text(
        "from onward import App\n"
        "from onward.engine.capabilities import NATIVE, Capabilities, Feature\n"
        "class Foreign:\n"
        "    native = dict.fromkeys(Feature, NATIVE)\n"
        "    capabilities = Capabilities(engine='Foreign', features=native, status_aliases={})\n"
        "    def describe(self): return {'engine': 'Foreign'}\n"
        "    def schema_script(self): return None\n"
        "    async def close(self): pass\n"
        "app = App(engine=Foreign())\n"
    )
    cli("migrate", "--sql", "--app", "foreign").failed("a schema of its own")
