"""Type checkers hold callers to a task's signature."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("typed.txt")
ROOT = EXAMPLES.parents[2]


def test_mypy_takes_the_right_calls_and_refuses_the_wrong_ones(tmp_path: Path):
    api = pytest.importorskip("mypy.api")
    typed = tmp_path / "typed.py"
    shutil.copy(EXAMPLES, typed)
    settings = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(tmp_path),
        "--follow-imports",
        "silent",
    ]
    output, trouble, _ = api.run([*settings, str(typed)])
    assert not trouble
    said = {(int(line), code) for line, code in re.findall(r"typed\.py:(\d+): error: .*\[([a-z-]+)\]", output)}
    expected = set()
    for number, line in enumerate(typed.read_text(encoding="utf-8").splitlines(), start=1):
        if found := re.search(r"# error: ([a-z-]+)$", line):
            expected.add((number, found[1]))
    assert expected, "the examples are gone"
    assert said == expected, output
