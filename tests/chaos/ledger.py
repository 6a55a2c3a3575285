"""What handlers did, written by themselves where no store knows of it: one JSON line for each run, flushed to the disk.

A line is there before its handler returns, so an outcome in the store without a line is an outcome that nobody had.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from onward import JobContext

FILE = "ledger.jsonl"


def record(context: JobContext, by: str, number: int) -> dict[str, object]:
    """Write down that ``by`` ran this job; the answer is for the handler to return, so that the store has it, too."""
    run = {"job": context.id, "type": context.type, "by": by, "number": number, "pid": os.getpid()}
    ledger = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, f"{json.dumps(run)}\n".encode())
        os.fsync(ledger)
    finally:
        os.close(ledger)
    return run


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the runs of each job, in the order in which they were written."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    path = folder / FILE
    for line in path.read_text().splitlines() if path.exists() else ():
        run = json.loads(line)
        runs[run["job"]].append(run)
    return runs
