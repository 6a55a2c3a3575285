"""The queues that Onward is measured beside: where each keeps its jobs, what it is installed from, how it is tuned.

Each has a virtualenv of its own, or a folder of npm's, made when it is first needed. What it does is in a script of
this folder, which has Onward's stop-watch in its handlers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.virtualenvs import virtualenv
from onward.bench import stopwatch
from onward.bench.statistics import Measurement
from tests.servers.node import NodePackages, node_packages

HERE = Path(__file__).parent


class Store(StrEnum):
    """Where jobs are kept."""

    SQLITE = "SQLite"
    POSTGRES = "PostgreSQL"
    REDIS = "Redis"


STEPS = {Store.SQLITE: ("fill",), Store.POSTGRES: ("prepare", "fill"), Store.REDIS: ("fill",)}
"""What is done with an empty store before it is drained."""


@dataclass(frozen=True)
class Peer:
    """A queue on a store."""

    name: str
    store: Store
    script: str
    packages: tuple[str, ...]
    """The first is the queue itself."""
    how: str = ""
    """How it is tuned."""
    mode: str = ""
    """What the script calls it, where it knows several; of Node's, in which manner it is to work."""
    share: int = 1
    """It gets the jobs divided by this: a slow one need not run for minutes to show it."""
    instead: tuple[str, ...] = ()
    """See :func:`~tests.servers.node.node_packages`."""

    @property
    def is_node(self) -> bool:
        """Whether it runs on Node."""
        return self.script.endswith(".cjs")

    def install(self, folder: Path) -> str:
        """Install it below a folder, where it is not, and say of which version it is."""
        if self.is_node:
            return self._from_npm().versions[self.packages[0].rpartition("@")[0]]
        self._python(folder)
        return self.packages[0].rpartition("==")[2]

    def _from_npm(self) -> NodePackages:
        return node_packages(*self.packages, instead=self.instead)

    def _python(self, folder: Path) -> Path:
        name = "-".join(part.partition("[")[0].partition("==")[0] for part in (self.store.lower(), self.packages[0]))
        return virtualenv(folder, name, *self.packages)

    def do(self, folder: Path, step: str, url: str, jobs: int) -> dict[str, Any]:
        """Have it do something on what is there, and give what it said last."""
        script, arguments = HERE / self.script, [self.mode] if self.mode else []
        if self.is_node:
            process = self._from_npm().start(script, step, url, str(jobs), *arguments, stdout=subprocess.PIPE)
        else:
            command = [str(self._python(folder)), str(script), *arguments, step, stopwatch.__file__, url, str(jobs)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{self.name} on {self.store} could not {step}")
        lines = output.splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return found

    def drain(self, folder: Path, url: str, jobs: int) -> Measurement:
        """Fill an empty store with its share of jobs, and drain it."""
        jobs //= self.share
        for step in STEPS[self.store]:
            self.do(folder, step, url, jobs)
        return self.read_measurement(self.do(folder, "drain", url, jobs))

    def read_measurement(self, found: dict[str, Any]) -> Measurement:
        """Read what it has found; a queue that has not run each job once is not compared with."""
        if not found["once"]:
            sys.exit(f"{self.name} on {self.store} did not run each job once: there is nothing to compare")
        return Measurement(found["jobs"], found["seconds"], found["cpu_seconds"])


def _on_redis(name: str, *packages: str, how: str, share: int, mode: str = "") -> Peer:
    return Peer(name, Store.REDIS, "redis_side.py", packages, how, mode or name.lower(), share)


def _on_postgres(name: str, *packages: str, how: str, share: int) -> Peer:
    return Peer(name, Store.POSTGRES, "postgres_side.py", packages, how, name.lower(), share)


BULLMQ = Peer("BullMQ (Node)", Store.REDIS, "redis_side.cjs", ("bullmq@6", "ioredis@5"), "50 at once")
BULLMQ_FOR_PYTHON = _on_redis("BullMQ (Python)", "bullmq==3.4.4", how="50 at once", share=4, mode="bullmq")
_GRAPHILE = ("graphile-worker@0.18", "pg")

PEERS = (
    Peer("huey", Store.SQLITE, "huey_side.py", ("huey==3.5.4",), "one thread, results off", share=4),
    Peer(
        "pgqueuer", Store.POSTGRES, "pgqueuer_side.py", ("pgqueuer[asyncpg]==1.6.0", "uvloop"), "uvloop, batches of 100"
    ),
    Peer("Graphile Worker (local queue)", Store.POSTGRES, "graphile_side.cjs", _GRAPHILE, "500 ahead, 24 at once"),
    Peer("Graphile Worker (default)", Store.POSTGRES, "graphile_side.cjs", _GRAPHILE, "10 at once", "default", share=2),
    Peer(
        "pg-boss",
        Store.POSTGRES,
        "pgboss_side.cjs",
        ("pg-boss@12",),
        "two batches of 500",
        instead=("rrule-temporal@2",),
    ),
    _on_postgres("procrastinate", "procrastinate==3.10.0", "psycopg[binary,pool]", how="20 at once", share=10),
    _on_postgres("chancy", "chancy==0.26.0", "psycopg[binary,pool]", how="100 at once, eager", share=10),
    _on_postgres(
        "SAQ", "saq[postgres]==0.26.4", "psycopg[binary,pool]", "typing_extensions", how="50 at once", share=10
    ),
    BULLMQ,
    BULLMQ_FOR_PYTHON,
    _on_redis("huey", "huey==3.5.4", "redis", how="one thread, results off", share=2),
    _on_redis("taskiq", "taskiq-redis==1.2.4", how="a list, 50 at once, results off", share=4),
    _on_redis("dramatiq", "dramatiq[redis]==2.2.1", how="8 threads", share=4),
    _on_redis("SAQ", "saq[redis]==0.26.4", "hiredis", "typing_extensions", how="50 at once", share=4),
    _on_redis("celery", "celery[redis]==5.7.0", how="solo, 64 ahead, results off", share=8),
    _on_redis("arq", "arq==0.28.0", how="50 at once", share=8),
    _on_redis("rq", "rq==2.12.0", how="without forking", share=16),
)
