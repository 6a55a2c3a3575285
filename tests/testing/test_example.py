"""The example in the documentation of onward.testing is a test that passes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import onward.testing


def test_the_example_in_the_documentation_passes(tmp_path: Path):
    assert onward.testing.__doc__ is not None
    example = textwrap.dedent(onward.testing.__doc__.partition("::\n")[2])
    (tmp_path / "test_example.py").write_text(example, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout
