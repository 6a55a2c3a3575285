"""How much memory this process holds."""

from __future__ import annotations

import importlib
import os
import sys


def resident_memory() -> int:
    """Count the bytes in memory now; where the system does not tell, the most there have been."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - once every few seconds, no object needed
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        if sys.platform == "win32":  # which does not tell: a worker there does not retire for its size
            return 0
        resource = importlib.import_module("resource")
        peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return peak if sys.platform == "darwin" else peak * 1024
