"""Onward beside its peers on PostgreSQL, pgqueuer and Graphile Worker: the same no-op jobs, one server, taking turns.

    python -m bench.postgres_peers [--jobs 50000] [--rounds 5] [--url postgresql://] [--folder FOLDER]

pgqueuer gets a virtualenv of its own in the folder (BENCH_DIR, else one under the system's temporary folder); Node and
Graphile Worker come from the registries into .venv. Without a URL a server is started for the purpose. The last two
lines printed are JSON objects: ``drain`` and ``bulk``; ``of_…`` is Onward's rate in terms of that peer's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

from onward.bench import scenarios, stopwatch
from onward.bench.environment_postgres import PostgresEnvironment
from onward.bench.handlers import Handler
from onward.bench.isolated import run_isolated
from onward.bench.report import Report
from onward.bench.statistics import Measurement, Measurements, run_interleaved
from onward.bench.verification import is_verified
from tests.servers.node import node_packages

PGQUEUER = "pgqueuer[asyncpg]==1.6.0"
GRAPHILE = "graphile-worker@0.18"
HERE = Path(__file__).parent
PEERS = ("pgqueuer", "graphile")


def virtualenv(folder: Path) -> Path:
    """Give the Python of pgqueuer's virtualenv."""
    home = folder / "pgqueuer"
    python = home / "bin" / "python"
    if not (home / ".ready").exists():
        venv.create(home, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PGQUEUER, "uvloop"]
        subprocess.run(command, check=True)
        (home / ".ready").touch()
    return python


def sides_of(folder: Path) -> dict[str, Callable[[str, str, int], str]]:
    """Give for each peer a way to have it prepare, fill or drain a database."""
    python, packages = virtualenv(folder), node_packages(GRAPHILE, "pg")

    def pgqueuer(what: str, url: str, jobs: int) -> str:
        command = [str(python), str(HERE / "pgqueuer_side.py"), what, stopwatch.__file__, url, str(jobs)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def graphile(what: str, url: str, jobs: int) -> str:
        process = packages.start(HERE / "graphile_side.cjs", what, url, str(jobs), stdout=subprocess.PIPE)
        said, _ = process.communicate()
        if process.returncode:
            sys.exit(f"Graphile Worker could not {what}")
        return said

    return {"pgqueuer": pgqueuer, "graphile": graphile}


def pace_of(name: str, said: str) -> Measurement:
    """Read what a peer found."""
    found = json.loads(said.splitlines()[-1])
    if not found["once"]:
        sys.exit(f"{name} did not run each job once: there is nothing to compare")
    return Measurement(found["jobs"], found["seconds"], found["cpu_seconds"])


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", help="of a server that databases may be made on")
    default = os.environ.get("BENCH_DIR") or str(Path(tempfile.gettempdir()) / "onward-peers")
    parser.add_argument("--folder", type=Path, default=Path(default), help="where virtualenvs are kept")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    sides, jobs, verified = sides_of(given.folder), given.jobs, True
    bulks: dict[str, list[Measurement]] = {name: [] for name in ("onward", *PEERS)}
    with PostgresEnvironment(given.url) as environment:

        def onward() -> Measurement:
            nonlocal verified
            url = environment.fresh()
            run_isolated(scenarios.fill, url, Handler.ASYNC, 0)
            bulks["onward"].append(run_isolated(scenarios.enqueue_many, url, jobs, 1_000))
            drained = run_isolated(scenarios.drain, url, jobs, 100)
            verified &= len(drained.ran) == jobs and is_verified(url, drained.ran)
            environment.remove(url)
            return drained.measurement

        def peer(name: str) -> Callable[[], Measurement]:
            def measure() -> Measurement:
                url = environment.fresh()
                sides[name]("prepare", url, jobs)
                bulks[name].append(pace_of(name, sides[name]("bulk", url, jobs)))
                measurement = pace_of(name, sides[name]("drain", url, jobs))
                environment.remove(url)
                return measurement

            return measure

        turns = {"onward": onward, **{name: peer(name) for name in PEERS}}
        drains = run_interleaved(given.rounds, turns, lambda line: print(line, file=sys.stderr))
    for scenario, paces in (("drain", drains), ("bulk", Measurements(bulks))):
        best = max(PEERS, key=paces.rate)
        more: dict[str, float] = {}
        for name in PEERS:
            more |= {name: paces.rate(name), f"of_{name}": paces.rate("onward") / paces.rate(name)}
        report = Report(
            engine=environment.engine,
            scenario=f"peers-{scenario}",
            jobs=jobs,
            onward=paces.rate("onward"),
            raw=paces.rate(best),
            unit="jobs/s",
            verified=verified,
            against=f"{best}, the faster of {PGQUEUER} and {GRAPHILE}",
            rounds=given.rounds,
            more=more | {f"{name}_cpu_us": paces.cpu_per_job(name) * 1e6 for name in ("onward", *PEERS)},
        )
        print(json.dumps(report.flat()))


if __name__ == "__main__":
    main()
