"""The statements are files: each is used, says what it is for, and can be prepared as it stands."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from onward.engines.sqlite import engine, migrating
from onward.engines.sqlite.statements import SQL

PACKAGE = Path(engine.__file__).parent
FILES = sorted((PACKAGE / "sql").glob("*.sql"))


def used() -> Counter[str]:
    """Count where the code names a statement."""
    return Counter(
        node.attr
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "SQL"
    )


@pytest.fixture(scope="module")
def schema() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(migrating.script())
    return connection


def test_every_statement_is_used_and_none_is_missing():
    assert set(used()) == {path.stem for path in FILES} == SQL.names()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_statement_opens_by_saying_what_it_does(path):
    first, *others = path.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"-- \S.*", first)
    assert any(not line.startswith("--") for line in others)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_statement_can_be_prepared_as_it_stands(path, schema):
    text = path.read_text(encoding="utf-8")
    names = set(re.findall(r":([a-z_]+)", getattr(SQL, path.stem)))
    schema.execute(f"explain {getattr(SQL, path.stem)}", dict.fromkeys(names))
    assert "{" not in text, "nothing is ever put into a statement"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_indexes_that_a_statement_says_it_relies_on_are_those_it_uses(path, schema):
    header = " ".join(line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("--"))
    promised = re.search(r"Relies on: ([^.]*)", header)
    if promised is None:
        return
    names = set(re.findall(r":([a-z_]+)", getattr(SQL, path.stem)))
    plan = schema.execute(f"explain query plan {getattr(SQL, path.stem)}", dict.fromkeys(names)).fetchall()
    text = "\n".join(row[3] for row in plan)
    for index in re.findall(r"onward_\w+", promised[1]):
        assert f"INDEX {index}" in text, text


def test_a_heading_is_cut_off_and_nothing_else():
    assert SQL.leader == "select number, leader_id, until from onward_leader"


def test_a_statement_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_statement"):
        _ = SQL.no_such_statement
