"""The command line on PostgreSQL, as somebody uses it who has just got a database."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from os import environ, getpid
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.cli.conftest import SHOP, Cli
from tests.servers.postgres import binaries, postgres_url

_numbers = count()


@pytest.fixture
def schema() -> Iterator[str]:
    """A schema that is not there yet."""
    name = f"cli_{getpid()}_{next(_numbers)}"
    yield name
    with psycopg.connect(postgres_url()) as connection:
        connection.execute(f"drop schema if exists {name} cascade")


@pytest.fixture
def here(cli: Cli, workdir: Path, schema: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command on that schema, with the shop's tasks."""
    monkeypatch.setenv("ONWARD_URL", f"{postgres_url()}&schema={schema}")
    (workdir / "shop.py").write_text(SHOP.replace('App("sqlite:///jobs.db")', "App()"))
    monkeypatch.setenv("ONWARD_APP", "shop:app")
    return cli


def exists(schema: str) -> bool:
    with psycopg.connect(postgres_url()) as connection:
        return connection.execute("select from pg_namespace where nspname = %s", [schema]).fetchone() is not None


@pytest.mark.parametrize(
    "words", ["jobs list", "queues list", "queues pause mail", "workers list", "top --once", "dead list"]
)
def test_to_look_where_nothing_is_makes_nothing_and_says_what_would(here: Cli, schema: str, words: str):  # O9
    here(*words.split()).failed("schema", "onward migrate")
    assert not exists(schema)


def test_the_doctor_says_what_is_missing_and_makes_nothing(here: Cli, schema: str):
    said = here("doctor")
    assert said.code == 1
    assert "onward migrate" in said.out
    assert f"schema={schema}" in said.out
    here("migrate", "--check").failed("not up to date", f"schema={schema}")
    assert not exists(schema)


def test_from_nothing_to_a_job_that_is_done(here: Cli, spawn: Callable[..., subprocess.Popen[str]]):  # X1
    assert here("migrate", "--json").ok().json["changed"] is True
    assert here("migrate", "--json").ok().json["changed"] is False
    here("enqueue", "send_mail", "to=ann", "--delay", "1h").ok()
    worker = spawn("work", **{name: environ[name] for name in ("ONWARD_URL", "ONWARD_APP")})
    assert here("enqueue", "send_mail", "to=bob", "--wait", "--timeout", "60s").ok().out == '"1 to bob"\n'
    here("enqueue", "doomed", "--wait", "--timeout", "60s").failed("never")
    (known,) = here("workers", "list", "--json").ok().json["workers"]
    assert known["queues"] == ["*"]
    assert "mail" in here("top", "--once").ok().out
    facts = here("doctor", "--json").json
    (problem,) = [each for each in facts["findings"] if each["level"] == "problem"]
    assert "fsync is off" in problem["message"]  # X3, on a server for tests
    assert facts["store"]["server"].startswith("PostgreSQL 1")
    assert (facts["store"]["workers"], facts["store"]["waiting"], facts["store"]["dead"]) == (1, 1, 1)
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)
    assert worker.returncode == 0
    assert {job["status"] for job in here("jobs", "list", "--json").ok().json["jobs"]} == {
        "scheduled", "completed", "dead_letter",
    }  # fmt: skip
    assert {queue["name"] for queue in here("queues", "list", "--json").ok().json["queues"]} == {"default", "mail"}
    here("queues", "pause", "mail").ok()
    here("dead", "replay", "--all", "--yes").ok()
    assert here("tick", "--json").ok().json["buried"] == 1


@pytest.mark.parametrize(
    ("wrong", "cause", "remedy"),
    [
        ("dbname=no_such_database", "there is no such database", "createdb -h {host} no_such_database"),
        ("user=nobody_knows", "it does not know this user", "createuser -h {host} nobody_knows"),
        ("host=/nowhere", "is it running", "start PostgreSQL"),
    ],
)
@pytest.mark.parametrize("words", ["jobs list", "doctor"])
def test_who_cannot_connect_is_told_the_remedy_that_fits(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, wrong: str, cause: str, remedy: str, words: str
):
    known = conninfo_to_dict(postgres_url())
    asked = {name: quote(str(value), safe="") for name, value in (known | conninfo_to_dict(wrong)).items()}
    address = "&".join(f"{name}={value}" for name, value in asked.items())
    monkeypatch.setenv("ONWARD_URL", f"postgresql:///?{address}")
    said = cli(*words.split())
    assert said.code == 3
    shown = said.out + said.err
    assert cause in shown
    assert remedy.format(host=known["host"]) in shown
    assert ("start PostgreSQL" in shown) is ("start PostgreSQL" in remedy)


def test_the_doctor_finds_a_role_that_may_only_read(here: Cli, schema: str, monkeypatch: pytest.MonkeyPatch):
    here("migrate").ok()
    with psycopg.connect(postgres_url()) as connection:
        connection.execute(f"create role reader_{schema} login superuser")
        connection.execute(f"alter role reader_{schema} set default_transaction_read_only = on")
    monkeypatch.delenv("ONWARD_APP")
    reader = postgres_url().replace("user=postgres", f"user=reader_{schema}")
    monkeypatch.setenv("ONWARD_URL", f"{reader}&schema={schema}")
    said = here("doctor")
    with psycopg.connect(postgres_url()) as connection:
        connection.execute(f"drop role reader_{schema}")
    assert said.code == 1
    assert "no job can be added or run" in said.out
    assert f"alter role reader_{schema} in database postgres set default_transaction_read_only = off" in said.out


def test_the_sql_can_be_piped_into_psql(here: Cli, schema: str):  # O9
    psql = [str(binaries() / "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", postgres_url()]
    for _ in range(2):
        subprocess.run(psql, input=here("migrate", "--sql").ok().out, text=True, check=True)
        here("migrate", "--check").ok()
    here("enqueue", "send_mail", "to=ann").ok()
    assert here("tick").ok().out == "1 job run, 1 completed\n"


@pytest.mark.parametrize("name", ["public", "information_schema", "pg_catalog"])
def test_a_schema_that_cannot_be_ours_is_refused_by_its_name(cli: Cli, name: str):
    url = f"{postgres_url()}&schema={name}"
    for words in (("migrate",), ("migrate", "--sql"), ("migrate", "--check"), ("jobs", "list"), ("doctor",)):
        cli(*words, "--url", url).usage_error(f"schema = '{name}'")


def test_a_schema_that_holds_something_else_is_refused_with_the_remedy(here: Cli, schema: str):
    with psycopg.connect(postgres_url()) as connection:
        connection.execute(f"create schema {schema}")
        connection.execute(f"create table {schema}.orders (id int)")
    for words in ("migrate", "migrate --check", "jobs list"):
        here(*words.split()).usage_error(f"schema = '{schema}'", "not Onward's", "?schema=onward")
    assert "?schema=onward" in "".join(here("doctor").out.split())
