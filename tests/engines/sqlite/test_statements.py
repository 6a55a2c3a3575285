"""Statements have names for their parameters, and are executed with numbers."""

from __future__ import annotations

import re
import sqlite3

import pytest

from onward.engines.sqlite.statements import SQL, Statement


def test_numbers_mean_what_the_names_did():
    statement = Statement("select :b, :a, :b || :c")
    named = {"a": 1, "b": "x", "c": "y", "unused": 7}
    connection = sqlite3.connect(":memory:")
    assert statement == "select :b, :a, :b || :c"
    assert connection.execute(statement.numbered, statement.values(named)).fetchone() == ("x", 1, "xy")
    connection.close()


@pytest.mark.parametrize("text", ["select 1", "select :only"])
def test_one_parameter_and_none_are_no_exceptions(text):
    statement = Statement(text)
    connection = sqlite3.connect(":memory:")
    assert connection.execute(statement.numbered, statement.values({"only": 1})).fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("name", sorted(SQL.names()))
def test_no_name_is_left(name):
    assert not re.search(r":[a-z]", getattr(SQL, name).numbered)
