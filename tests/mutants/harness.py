"""Plants a bug in a copy of the tree and sees whether the tests find it.

A mutant is a few exact replacements and the tests that should notice. It is *killed* when those tests fail, or do not
end; it *survives* when they pass, and then the suite has a hole. Tests that cannot even be collected prove nothing:
that, and a text that is not found exactly once, is a mistake in the mutant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
SOURCES: Final = REPOSITORY / "src" / "onward"
ENGINES: Final = ("postgres", "bullmq", "pgboss", "pgmq")
"""All but SQLite. Most bugs are planted in the words, the seam and SQLite: tests of other engines need not be run."""
TIMEOUT: Final = 120.0
"""Seconds for the tests of one mutant: no more than a guard against those that never end."""


@dataclass(frozen=True)
class Edit:
    """One replacement in a file below ``src/onward``; the old text must be there exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A planted bug."""

    name: str
    """What is wrong, in a few words."""
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    """Files and tests of them, as pytest names them."""
    only: str = ""
    """Of those, only the ones whose names have this word."""
    in_ci: bool = False
    engine: str = "sqlite"
    """Whose bug it is."""


class Verdict(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"
    """Its tests did not run at all."""


@dataclass(frozen=True)
class Judgement:
    """A verdict, and by which test or why."""

    verdict: Verdict
    by: str
    output: str


def planted(mutant: Mutant, sources: Path) -> None:
    """Plant the bug in a tree."""
    for edit in mutant.edits:
        path = sources / edit.file
        text = path.read_text(encoding="utf-8")
        found = text.count(edit.old)
        if found != 1:
            message = f"{mutant.name}: the text to replace is {found} times in {edit.file}, not once: {edit.old!r}"
            raise LookupError(message)
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Copy what is needed to run the tests."""
    with tempfile.TemporaryDirectory(prefix="onward-mutant-") as name:
        tree = Path(name)
        for folder in ("src", "tests"):  # with what Python has compiled: only what is changed is compiled again
            shutil.copytree(REPOSITORY / folder, tree / folder)
        shutil.copy(REPOSITORY / "pyproject.toml", tree)
        yield tree


def judge(mutant: Mutant) -> Judgement:
    """Plant one bug and run its tests."""
    with copied_tree() as tree:
        planted(mutant, tree / "src" / "onward")
        return run(tree, mutant.tests, only=mutant.only, engines=[mutant.engine])


def run(
    tree: Path,
    tests: Sequence[str],
    *,
    only: str = "",
    engines: Collection[str] = (),
    processes: int = 0,
    timeout: float = TIMEOUT,
) -> Judgement:
    """Run tests of a tree, on that tree's own code, until the first fails; of engines, SQLite's and the given ones'."""
    words = [*([only] if only else []), *(f"not {engine}" for engine in ENGINES if engine not in engines)]
    environment = {**os.environ, "PYTHONPATH": os.fspath(tree / "src"), "CI": "true"}
    imported = _imported(tree, environment)
    if not imported.startswith(os.fspath(tree)):
        return Judgement(Verdict.BROKEN, "the copy cannot be imported", imported)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
    try:
        done = subprocess.run(
            [
                *command,
                "-k",
                " and ".join(words),
                "--numprocesses",
                str(processes),
                "--timeout",
                "40",
                *tests,
            ],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Judgement(Verdict.KILLED, "it never ended", str(error.stdout))
    output = done.stdout + done.stderr
    failed = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode == pytest.ExitCode.OK:
        return Judgement(Verdict.SURVIVED, "", output)
    if done.returncode == pytest.ExitCode.TESTS_FAILED and any("::" in name for name in failed):
        return Judgement(Verdict.KILLED, failed[0], output)
    if "+++++ Timeout +++++" in output:
        return Judgement(Verdict.KILLED, "a test never ended", output)
    return Judgement(Verdict.BROKEN, f"pytest ended with {done.returncode}", output)


def _imported(tree: Path, environment: dict[str, str]) -> str:
    """Say where the code comes from that is tested: a bug planted in a copy that nobody imports is found by nobody."""
    done = subprocess.run(
        [sys.executable, "-c", "import onward; print(onward.__file__)"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
