"""How long another process's enqueue waits on SQLite while a handler holds Python's global interpreter lock (GIL).

    python -m bench.gil_wait [--hold SECONDS] [--seconds SECONDS]

A worker runs small jobs, and every now and then one that holds the GIL in one call into C. This process enqueues
meanwhile, and prints its longest waits: without a write process, with one that starts on demand, with one from the
start, and with ``executor="process"``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

_ENQUEUE_INTERVAL = 0.003
"""Seconds between two enqueues."""
_CASES = (
    ("hold_on_thread", "never"),
    ("hold_on_thread", "auto"),
    ("hold_on_thread", "always"),
    ("hold_in_process", "never"),
)
"""Tasks, and whether the worker has a write process."""


async def measure(task: str, write_process: str, hold: float, seconds: float) -> dict[str, Any]:
    """Enqueue beside a worker for some seconds; return the longest waits, and how many jobs held the GIL."""
    from bench import gil_tasks  # noqa: PLC0415 - it reads ONWARD_URL
    from onward import StoreBusy  # noqa: PLC0415

    holding, handles, waits, refused, next_hold = getattr(gil_tasks, task), [], [], 0, time.monotonic()
    async with gil_tasks.app as app:
        command = ("-m", "onward.cli.main", "work", "bench.gil_tasks:app", "--write-process", write_process)
        worker = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=subprocess.DEVNULL)
        try:
            while not await app.workers.list():  # noqa: ASYNC110 - another process starts
                await asyncio.sleep(0.05)
            end = time.monotonic() + seconds
            while (began := time.monotonic()) < end:
                try:
                    if began >= next_hold:
                        next_hold = began + 1.2 * hold
                        handles.append(await holding.enqueue(hold))
                    else:
                        await gil_tasks.quick.enqueue()
                except StoreBusy:
                    refused += 1
                waits.append(time.monotonic() - began)
                await asyncio.sleep(_ENQUEUE_INTERVAL)
            held = [(await handle.info()).status for handle in handles].count("completed")
        finally:
            worker.terminate()
            await worker.wait()
    longest = [round(wait, 3) for wait in sorted(waits)[-3:]]
    figures = {"hold": hold, "held": held, "enqueues": len(waits), "refused": refused, "longest_s": longest}
    return {"task": task, "write_process": write_process, **figures}


def main() -> None:
    """Measure each case with a file and a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hold", type=float, default=5.0, help="seconds for which a handler holds the GIL")
    parser.add_argument("--seconds", type=float, default=120.0, help="seconds to enqueue for, in each case")
    parser.add_argument("--case", nargs=2, metavar=("TASK", "POLICY"), help="only this one, on ONWARD_URL")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(asyncio.run(measure(*options.case, options.hold, options.seconds))))
        return
    for case in _CASES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "bench.gil_wait", "--case", *case]
            command += ["--hold", str(options.hold), "--seconds", str(options.seconds)]
            subprocess.run(command, check=True, env=os.environ | {"ONWARD_URL": f"sqlite:///{folder}/jobs.db"})


if __name__ == "__main__":
    main()
