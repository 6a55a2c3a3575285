"""Who uses the command line, as audit records and pauses name them."""

from __future__ import annotations

import getpass
import socket


def actor() -> str:
    """Return ``cli:user@host``, at most 255 characters."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run as a number without a name
        user = "unknown"
    return f"cli:{user}@{socket.gethostname()}"[:255]
