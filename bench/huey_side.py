"""Huey on SQLite, measured by Onward's own stop-watch. Runs in a virtualenv of its own: see peers.py.

    python huey_side.py fill  STOPWATCH.PY DATABASE JOBS
    python huey_side.py drain STOPWATCH.PY DATABASE JOBS     prints one JSON object

As huey comes, but for results, which are off (it then has less to do than Onward, which stores them), and for its log.
It takes a job out of the store before it runs, so one that is killed with its worker is gone.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import threading
from types import ModuleType

from huey import SqliteHuey


def load(path: str) -> ModuleType:
    """Load Onward's stop-watch, without the rest of Onward."""
    spec = importlib.util.spec_from_file_location("stopwatch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Enqueue jobs, or run them."""
    what, stopwatch, database, number = sys.argv[1:]
    jobs = int(number)
    done = threading.Event()
    watch = load(stopwatch).Stopwatch(jobs, done.set)
    huey = SqliteHuey("bench", filename=database, results=False)

    @huey.task()
    def noop(n: int) -> int:
        watch.start(n)
        return n

    if what == "fill":
        for n in range(jobs):
            noop(n=n)
        return
    logging.disable(logging.CRITICAL)
    consumer = huey.create_consumer(workers=1, worker_type="thread", periodic=False)
    consumer.start()
    done.wait(600)
    consumer.stop(graceful=True)
    once = sorted(watch.started) == list(range(jobs)) and huey.pending_count() == 0
    found = {"jobs": jobs - 1, "seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds, "once": once}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
