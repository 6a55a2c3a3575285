"""The public surface is small, and importing it is cheap."""

from __future__ import annotations

import subprocess
import sys

import onward
import onward.testing

NAMES = (
    "App Backoff BadPayload CallNext Cancel ClaimLost DoNotRetry InvalidJob Job JobContext JobFailed JobFilter "
    "JobHandle JobNotFound JobRef JobsRepository Middleware NewJob OnwardError Page PayloadTooLarge QueueInfo Rate "
    "Retention Snooze State StoreUnavailable Task Unsupported WorkerInfo harmonyk_status"
)


def test_these_are_the_public_names():
    assert " ".join(onward.__all__) == NAMES
    assert sorted(onward.__all__) == onward.__all__
    assert onward.testing.__all__ == ["ManualClock", "assert_enqueued", "drain", "enqueued", "inline"]
    for name in (*onward.__all__, *onward.testing.__all__):
        assert hasattr(onward, name) or hasattr(onward.testing, name)


def test_importing_onward_loads_no_driver_and_no_worker():
    heavy = ("sqlite3", "psycopg", "redis", "pydantic", "multiprocessing", "typer", "rich", "importlib.metadata")
    script = (
        "import sys, onward\n"
        "app = onward.App.__init__\n"
        f"print(*[name for name in {heavy!r} if name in sys.modules])\n"
        "print(*[name for name in sys.modules if name.startswith(('onward.worker', 'onward.engines.sqlite'))])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [], ran.stdout


def test_every_public_name_says_what_it_is():
    for name in onward.__all__:
        if callable(thing := getattr(onward, name)) and isinstance(thing, type):
            assert thing.__doc__, name
