"""A Python that has Django 6: this one, or one of its own in a virtualenv, made when it is first asked for."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEEDED = ("django>=6", "msgspec", "cronsim", "typer", "rich", "psycopg[binary]")
HOME = Path(sys.prefix) / "django6"
NEWEST = ("3.14", "3.13", "3.12")
"""What Django 6 runs on."""


def _python_for_django_6() -> str | None:
    """Find a Python that is new enough."""
    if sys.version_info >= (3, 12):
        return sys.executable
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in NEWEST:
        found = [*map(str, sorted(kept.glob(f"{version}.*/bin/python"))), shutil.which(f"python{version}")]
        for python in filter(None, found):
            tried = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False)
            if tried.returncode == 0:
                return python
    return None


@pytest.fixture(scope="session")
def django_6() -> str:
    """Give a Python with Django 6 in it."""
    python = _python_for_django_6()
    if python is None:
        pytest.skip("Django 6 needs Python 3.12 or later: install one, or run the tests with it")
    ready = HOME / ".ready"
    HOME.mkdir(exist_ok=True)
    with (HOME.parent / ".django6.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != " ".join(NEEDED):
            subprocess.run([python, "-m", "venv", "--clear", HOME], check=True)
            pip = [str(HOME / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *NEEDED], check=True)
            ready.write_text(" ".join(NEEDED))
    return str(HOME / "bin" / "python")
