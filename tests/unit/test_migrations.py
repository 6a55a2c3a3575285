"""Which steps a store still needs, and which stores are refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.engine.migrations import Migration, load, plan
from onward.errors import SchemaChanged, SchemaTooNew

SHIPPED = tuple(Migration(number, f"step_{number}", f"CREATE TABLE t{number} (a)") for number in (1, 2, 3))
CHECKSUMS = {migration.number: migration.checksum for migration in SHIPPED}

_serial = itertools.count()


def test_a_fresh_store_needs_every_step_in_order():  # O9
    assert list(plan(SHIPPED, {}, store="jobs.db")) == list(SHIPPED)


@given(st.integers(0, 3))
def test_an_older_store_needs_what_came_since(newest):  # O9
    applied = {number: CHECKSUMS[number] for number in range(1, newest + 1)}
    assert list(plan(SHIPPED, applied, store="jobs.db")) == list(SHIPPED[newest:])


def test_a_store_that_is_up_to_date_needs_nothing():  # O9
    assert not plan(SHIPPED, CHECKSUMS, store="jobs.db")


def test_a_store_that_missed_a_step_gets_just_that_one():  # O9
    assert list(plan(SHIPPED, {1: CHECKSUMS[1], 3: CHECKSUMS[3]}, store="jobs.db")) == [SHIPPED[1]]


def test_a_store_made_by_a_newer_version_is_refused_with_what_to_do():  # O9
    with pytest.raises(SchemaTooNew, match=r"jobs\.db has schema 4, this version of Onward knows 3: upgrade Onward"):
        plan(SHIPPED, {**CHECKSUMS, 4: "?"}, store="jobs.db")


def test_a_step_that_is_not_the_one_shipped_is_refused_by_its_name():  # O9
    with pytest.raises(SchemaChanged, match=r"jobs\.db applied another migration 0002_step_2"):
        plan(SHIPPED, {**CHECKSUMS, 2: "somebody else's"}, store="jobs.db")


def test_a_checksum_changes_with_the_text_and_not_with_the_name():  # O9
    assert Migration(1, "a", "x").checksum == Migration(1, "b", "x").checksum
    assert Migration(1, "a", "x").checksum != Migration(1, "a", "x ").checksum


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A new importable package with the migrations that it is told to have."""

    def make(*names: str) -> str:
        name = f"shipped_{next(_serial)}"
        folder: Path = tmp_path / name / "migrations"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        for file in names:
            (folder / file).write_text(f"-- {file}", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return make


def test_steps_are_read_in_the_order_of_their_numbers(package):  # O9
    # Neither the order in which the files were made nor its reverse: a folder may list them by either.
    numbers = [*range(2, 31, 2), *range(1, 31, 2)]
    name = package(*(f"{number:04}_step.sql" for number in numbers), "README.md", "10_not_one.sql")
    assert load(name) == tuple(Migration(number, "step", f"-- {number:04}_step.sql") for number in sorted(numbers))


@pytest.mark.parametrize(
    "names",
    [
        ("0002_late.sql",),
        ("0001_first.sql", "0003_third.sql"),
        ("0001_first.sql", "0001_again.sql"),
    ],
)
def test_numbers_that_skip_or_repeat_are_refused(package, names):  # O9
    with pytest.raises(RuntimeError, match="not numbered 1 to"):
        load(package(*names))
