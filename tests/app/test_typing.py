"""Type checkers hold callers to a task's signature, and to the words that options take."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.node import node_packages, node_program

EXAMPLES = Path(__file__).with_name("typed.txt")
ROOT = EXAMPLES.parents[2]


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    typed = tmp_path / "typed.py"
    shutil.copy(EXAMPLES, typed)
    return typed


def expected_errors(typed: Path) -> dict[int, str]:
    """The lines that must be errors, with mypy's code."""
    lines = enumerate(typed.read_text(encoding="utf-8").splitlines(), start=1)
    marked = {number: found[1] for number, line in lines if (found := re.search(r"# error: ([a-z-]+)$", line))}
    assert marked, "the examples are gone"
    return marked


def test_mypy_takes_the_right_calls_and_refuses_the_wrong_ones(typed: Path):
    api = pytest.importorskip("mypy.api")
    settings = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(typed.parent),
        "--follow-imports",
        "silent",
    ]
    output, crash, _ = api.run([*settings, str(typed)])
    assert not crash
    found = {int(line): code for line, code in re.findall(r"typed\.py:(\d+): error: .*\[([a-z-]+)\]", output)}
    assert found == expected_errors(typed), output


def test_pyright_takes_the_right_calls_and_refuses_the_wrong_ones(typed: Path):
    program = node_packages("pyright@1").folder / "node_modules" / "pyright" / "index.js"
    settings = {"extraPaths": [str(ROOT / "src")], "include": ["typed.py"], "typeCheckingMode": "standard"}
    (typed.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        str(node_program()),
        str(program),
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        str(typed.parent),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [one for one in json.loads(ran.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    assert {one["range"]["start"]["line"] + 1 for one in found} == expected_errors(typed).keys(), ran.stdout
