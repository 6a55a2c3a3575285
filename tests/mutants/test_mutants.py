"""A few mutants in every run of the tests, and all of them looked at: each must still fit the code it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.harness import REPOSITORY, SOURCES, Edit, Mutant, Verdict, judge, planted
from tests.mutants.mutants import MUTANTS

IN_CI = [mutant for mutant in MUTANTS if mutant.in_ci]


def test_there_are_enough_and_each_has_a_name_of_its_own():
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert 4 <= len(IN_CI) <= 8


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_text_that_is_there_exactly_once_and_asks_tests_that_exist(mutant: Mutant):
    for edit in mutant.edits:
        assert (SOURCES / edit.file).read_text(encoding="utf-8").count(edit.old) == 1, edit
        assert edit.old != edit.new
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (REPOSITORY / path).exists(), test
        assert not name or f"def {name}(" in (REPOSITORY / path).read_text(encoding="utf-8"), test


@pytest.mark.parametrize("mutant", IN_CI, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant):
    judgement = judge(mutant)
    assert judgement.verdict is Verdict.KILLED, judgement.output


def test_a_tree_without_a_bug_survives():
    """Or every mutant would be killed by a harness that does not work."""
    harmless = Edit("backoff.py", "A century: beyond it", "A hundred years: beyond it")
    judgement = judge(Mutant("harmless", (harmless,), ("tests/unit/test_backoff.py",)))
    assert judgement.verdict is Verdict.SURVIVED, judgement.output


def test_tests_that_do_not_run_kill_nothing():
    broken = Edit("backoff.py", "from __future__ import annotations", "this is not Python")
    judgement = judge(Mutant("broken", (broken,), ("tests/unit/test_backoff.py",)))
    assert judgement.verdict is Verdict.BROKEN
    missing = judge(Mutant("missing", (), ("tests/unit/test_backoff.py",), only="no_such_test"))
    assert missing.verdict is Verdict.BROKEN


def test_a_text_that_is_not_there_is_a_mistake(tmp_path: Path):
    (tmp_path / "backoff.py").write_text("once and once\n")
    for old in ("twice", "once"):
        with pytest.raises(LookupError, match="not once"):
            planted(Mutant("wrong", (Edit("backoff.py", old, "x"),), ()), tmp_path)
