"""The names that users import, pinned: adding one is a promise, removing one breaks somebody's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import onward

PUBLIC = [
    "App",
    "Backoff",
    "BadPayload",
    "Cancel",
    "ClaimLost",
    "DoNotRetry",
    "InvalidJob",
    "Job",
    "JobContext",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "JobNotFound",
    "JobRef",
    "JobsRepository",
    "NewJob",
    "OnwardError",
    "Page",
    "PayloadTooLarge",
    "QueueInfo",
    "Rate",
    "Retention",
    "Snooze",
    "State",
    "StoreUnavailable",
    "Task",
    "Unsupported",
    "WorkerInfo",
    "harmonyk_status",
]
# What the extras install, and what only the command line needs.
NOT_AT_IMPORT = ["cronsim", "fastapi", "hiredis", "psycopg", "redis", "rich", "typer", "uvicorn"]


def test_the_public_names_are_these():
    assert onward.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_says_what_it_is_for(name):
    assert getattr(onward, name).__doc__


def test_the_types_are_shipped():
    assert (Path(onward.__file__).parent / "py.typed").is_file()


def test_importing_onward_imports_no_driver_and_no_engine():
    # In a process of its own: by now this one has imported everything. A driver that is not installed would fail there.
    script = "import sys, onward; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "onward.app" in loaded
    assert not [name for name in NOT_AT_IMPORT if name in loaded]
    assert not [name for name in loaded if name.startswith("onward.engines.") and name != "onward.engines.urls"]
