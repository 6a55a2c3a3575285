"""The suite looks at itself: nothing is left out in silence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from onward.engine.capabilities import Feature

FOLDER = Path(__file__).parent
SKIPS = frozenset({"skip", "skipif", "skipIf", "xfail", "importorskip", "SkipTest", "skipTest"})


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(FOLDER.rglob("*.py")):
        yield path.name, ast.parse(path.read_text(encoding="utf-8"))


def features_needed(tree: ast.Module) -> Iterator[str]:
    """Name the features that tests of a module say they need, by a decorator or for the whole module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "needs":
            for argument in node.args:
                assert isinstance(argument, ast.Attribute), "needs() takes members of Feature, written out"
                yield argument.attr


def test_every_feature_is_needed_by_a_test():  # X2
    needed = {feature for name, tree in trees() if name.startswith("test_") for feature in features_needed(tree)}
    assert needed == {feature.name for feature in Feature}


def test_nothing_is_skipped_but_by_needs():  # X2
    found = [
        (name, node.lineno)
        for name, tree in trees()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in SKIPS) or (isinstance(node, ast.Name) and node.id in SKIPS)
    ]
    assert [name for name, _ in found] == ["conftest.py"], found


def test_nothing_waits_by_sleeping():
    """Only giving way to other tasks, and looking again at a process boundary, may use asyncio's sleep."""
    found = [
        (name, node.lineno)
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert {name for name, _ in found} <= {"processes.py"}, found
