"""Onward beside its embedded peer, huey on SQLite: the same no-op jobs, the same stop-watch, taking turns.

    python -m bench.peers [--jobs 20000] [--rounds 5] [--folder FOLDER]

Huey gets a virtualenv of its own in the folder (BENCH_DIR, else one under the system's temporary folder), made when it
is first needed. The last line printed is one JSON object; ``ratio`` is Onward's rate in terms of huey's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.virtualenvs import virtualenv
from onward.bench import product, stopwatch
from onward.bench.account import is_accounted_for
from onward.bench.apart import apart
from onward.bench.ground import ground_of
from onward.bench.handlers import Handler
from onward.bench.pace import Pace, take_turns
from onward.bench.report import Report

HUEY = "huey==3.5.4"
SIDE = Path(__file__).with_name("huey_side.py")


def huey(python: Path, folder: Path, jobs: int) -> Pace:
    """Measure huey once."""

    def run(what: str) -> str:
        command = [str(python), str(SIDE), what, stopwatch.__file__, str(folder / "huey.db"), str(jobs)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    for file in folder.glob("huey.db*"):
        file.unlink()
    run("fill")
    found = json.loads(run("drain").splitlines()[-1])
    if not found["once"]:
        sys.exit("huey did not run each job once: there is nothing to compare")
    return Pace(found["jobs"], found["seconds"], found["cpu_seconds"])


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, help="for Onward; huey gets a quarter of them")
    parser.add_argument("--rounds", type=int, default=5)
    default = os.environ.get("BENCH_DIR") or str(Path(tempfile.gettempdir()) / "onward-peers")
    parser.add_argument("--folder", type=Path, default=Path(default), help="where it takes place")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    python = virtualenv(given.folder, "huey", HUEY)
    verified = True
    with ground_of(f"sqlite:///{given.folder.absolute()}/jobs.db") as ground:

        def onward() -> Pace:
            nonlocal verified
            url = ground.fresh()
            apart(product.fill, url, Handler.ASYNC, given.jobs)
            drained = apart(product.drain, url, given.jobs, 100)
            verified &= len(drained.ran) == given.jobs and is_accounted_for(url, drained.ran)
            ground.remove(url)
            return drained.pace

        sides = {"onward": onward, "huey": lambda: huey(python, given.folder, given.jobs // 4)}
        paces = take_turns(given.rounds, sides, lambda line: print(line, file=sys.stderr))
    report = Report(
        engine=ground.engine,
        scenario="peers",
        jobs=given.jobs,
        onward=paces.rate("onward"),
        raw=paces.rate("huey"),
        unit="jobs/s",
        verified=verified,
        against=f"{HUEY.replace('==', ' ')} on SQLite, one thread, results off, {given.jobs // 4} jobs",
        rounds=given.rounds,
        more={"cpu_us": paces.cpu_per_job("onward") * 1e6, "huey_cpu_us": paces.cpu_per_job("huey") * 1e6},
    )
    print(json.dumps(report.flat()))


if __name__ == "__main__":
    main()
