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

RULES = (
    ["Counting"]
    + [f"O{number}" for number in range(1, 12)]
    + ["H1", "H2", "H3", "H4", "H5", "H6", "H9"]
    + ["B3", "B4", "B7"]
    + ["X1", "X2", "X3", "X4", "X5", "X6"]
    + ["D1", "D2", "D3", "D5", "D6"]
)


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


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_named_by_a_test(rule):
    assert rule in named()
