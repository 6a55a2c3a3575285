"""Virtualenvs for the peers: each has its own, so that nobody's dependencies stand in another's way."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path


def virtualenv(folder: Path, name: str, *packages: str) -> Path:
    """Give the Python of a peer's virtualenv, made when it is first asked for, or asked for other packages."""
    home = folder / name
    python = home / "bin" / "python"
    ready = home / ".ready"
    if not ready.exists() or ready.read_text() != " ".join(packages):
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(install, check=True)
        ready.write_text(" ".join(packages))
    return python
