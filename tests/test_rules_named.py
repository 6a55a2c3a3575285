"""Every rule that this version must keep is named by a test that proves it.

A test names its rules in a comment on its first line: ``def test_…():  # O3``. That it fails when the rule is broken is
for the mutants to show (``make mutants``).
"""

from __future__ import annotations

import functools
import re
import tokenize
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"
DOCUMENTED = re.findall(r"^- \*\*(\w+)\*\*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
NOT_BUILT_YET = {"P2", "P3", "P4", "P5", "P7", "P8", "P10", "G4", "G5", "G6", "G7", "G8", "D4", "F1", "F2"}
"""Rules of the applications and the fault reports, which this version does not have; D4: not measured yet."""
RULE = re.compile(r"\b(?:Counting|[OHBPGXASDF]\d{1,2})\b")


@functools.cache
def named() -> frozenset[str]:
    """The words in the comments behind the tests."""
    words: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        with path.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type == tokenize.COMMENT and re.match(r"\s*(?:async )?def test_|\s*\)", token.line):
                    words.update(re.findall(r"\w+", token.string))
    return frozenset(words)


@pytest.mark.parametrize("rule", [rule for rule in DOCUMENTED if rule not in NOT_BUILT_YET])
def test_a_rule_is_named_by_a_test(rule):
    assert rule in named()


def test_every_rule_that_a_test_names_is_documented():
    assert {word for word in named() if RULE.fullmatch(word)} <= set(DOCUMENTED)


def test_no_rule_is_documented_twice():
    assert len(DOCUMENTED) == len(set(DOCUMENTED))
