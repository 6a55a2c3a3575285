"""The command line on PGMQ: installed when it is asked for, and never by itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from os import getpid
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.cli.conftest import Cli
from tests.servers.pgmq import drop_database
from tests.servers.postgres import postgres_url

_numbers = count()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> Iterator[str]:
    """A database without a PGMQ, which commands find."""
    name = f"cli_pgmq_{getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"create database {name}")
    url = make_conninfo(postgres_url(), dbname=name)
    at = conninfo_to_dict(url)
    monkeypatch.setenv("ONWARD_URL", f"pgmq+postgresql:///{name}?host={at['host']}&user={at['user']}")
    yield url
    drop_database(url)


def has_pgmq(url: str) -> bool:
    with psycopg.connect(url) as connection:
        ((found,),) = connection.execute("select to_regclass('pgmq.meta') is not null").fetchall()
    return bool(found)


def test_pgmq_is_installed_when_it_is_asked_for_and_only_then(cli: Cli, bare: str):  # X1
    cli("migrate").failed("no PGMQ", "onward migrate --pgmq")
    assert not has_pgmq(bare)
    said = cli("migrate", "--pgmq")
    assert said.code == 0, said.err
    assert "installed as plain SQL" in said.err
    assert has_pgmq(bare)
    assert "left as it is" in cli("migrate", "--pgmq").err


def test_what_is_not_on_pgmq_cannot_be_given_one(cli: Cli, workdir: Path):  # X1
    cli("migrate", "--pgmq", "--url", "sqlite:///jobs.db").failed("pgmq+postgresql://", code=2)
    cli("migrate", "--pgmq", "--check", "--url", "sqlite:///jobs.db").failed("--pgmq", code=2)
