"""Who a worker is: a name that no other worker has, has had, or will have (O5)."""

from __future__ import annotations

import os
import secrets
import socket
from importlib.metadata import PackageNotFoundError, version


def new_worker_id() -> str:
    """Make a name: ``hostname-pid-random``. A restarted worker is another one, even with the same process number."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def onward_version() -> str:
    """Say which version of Onward this is."""
    try:
        return version("onward")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0+unknown"
