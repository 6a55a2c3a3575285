"""Onward on Redis beside the other queues there: the same no-op jobs, one Redis, one stop-watch, taking turns.

    python -m bench.redis_peers [drain|bulk|delay|pickup] [--jobs 20000] [--rounds 5] [--valkey] [--only NAME …]

``drain``: one worker process, fifty jobs at once where a queue can. ``bulk``: 1 000 jobs a call. ``delay``: 200 jobs,
due at moments spread over two seconds; how late they start. ``pickup``: 200 jobs, one every 20 ms, for an idle worker
of Onward's in another process; how long each waits. Redis is a server of our own, on a port, without persistence,
emptied before each round. Each peer of Python's gets a virtualenv in the folder (BENCH_DIR, else one under
the system's temporary folder), made when it is first needed; BullMQ for Node comes from npm as the tests have it.

The last line printed is one JSON object: for each peer its figure and Onward's in terms of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import redis_onward
from bench.virtualenvs import virtualenv
from onward.bench import product, stopwatch
from onward.bench.account import is_accounted_for
from onward.bench.apart import apart
from onward.bench.handlers import Handler
from onward.bench.pace import Pace, Paces, take_turns
from tests.interop.bullmq.peer import V6
from tests.servers.node import node_packages
from tests.servers.redis import Kind, RedisServer

SIDE = Path(__file__).with_name("redis_side.py")
NODE_SIDE = Path(__file__).with_name("redis_side.cjs")


@dataclass(frozen=True)
class Peer:
    """A queue on Redis."""

    name: str
    packages: tuple[str, ...]
    share: int
    """It gets the jobs divided by this: a slow one need not run for minutes to show it."""


PEERS = (
    Peer("bullmq", ("bullmq==3.4.4",), 4),
    Peer("huey", ("huey==3.5.4", "redis"), 2),
    Peer("taskiq", ("taskiq-redis==1.2.4",), 4),
    Peer("dramatiq", ("dramatiq[redis]==2.2.1",), 4),
    Peer("saq", ("saq[redis]==0.26.4", "hiredis", "typing_extensions"), 4),
    Peer("celery", ("celery[redis]==5.7.0",), 8),
    Peer("arq", ("arq==0.28.0",), 8),
    Peer("rq", ("rq==2.12.0",), 16),
)


class Stage:
    """One Redis, and the ways to measure on it."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.verified = True

    def clear(self) -> None:
        """Empty the server."""
        with self.server.client() as client:
            client.flushall()

    def python(self, peer: Peer, what: str, jobs: int) -> dict[str, Any]:
        """Have a peer of Python's do something on what is there."""
        python = virtualenv(self.folder, f"redis-{peer.name}", *peer.packages)
        command = [str(python), str(SIDE), peer.name, what, stopwatch.__file__, self.server.tcp_url, str(jobs)]
        return _last_object(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    def node(self, what: str, jobs: int) -> dict[str, Any]:
        """Have BullMQ for Node do something on what is there."""
        parts = urlsplit(self.server.tcp_url)
        process = node_packages(*V6).start(
            NODE_SIDE, what, str(parts.hostname), str(parts.port), str(jobs), stdout=subprocess.PIPE
        )
        said, _ = process.communicate()
        if process.returncode:
            sys.exit(f"BullMQ for Node could not {what}")
        return _last_object(said)

    def drain_with(self, do: Callable[[str, int], dict[str, Any]], name: str, jobs: int) -> Pace:
        """Fill an empty server and drain it."""
        self.clear()
        do("fill", jobs)
        return _pace(name, do("drain", jobs))

    def drain_with_onward(self, jobs: int) -> Pace:
        """Fill an empty server and drain it with Onward."""
        self.clear()
        url = self.server.tcp_url
        apart(product.fill, url, Handler.ASYNC, jobs)
        drained = apart(product.drain, url, jobs, 50)
        self.verified &= len(drained.ran) == jobs and is_accounted_for(url, drained.ran)
        return drained.pace


def _last_object(said: str) -> dict[str, Any]:
    lines = said.splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found


def _pace(name: str, found: dict[str, Any]) -> Pace:
    if not found["once"]:
        sys.exit(f"{name} did not run each job once: there is nothing to compare")
    return Pace(found["jobs"], found["seconds"], found["cpu_seconds"])


def drain(stage: Stage, jobs: int, wanted: Callable[[str], bool]) -> Mapping[str, Callable[[], Pace]]:
    """Give the sides of the drain."""

    def of(peer: Peer) -> Callable[[], Pace]:
        share = jobs // peer.share
        return lambda: stage.drain_with(lambda what, number: stage.python(peer, what, number), peer.name, share)

    sides: dict[str, Callable[[], Pace]] = {
        "onward": lambda: stage.drain_with_onward(jobs),
        "bullmq for Node": lambda: stage.drain_with(stage.node, "bullmq for Node", jobs),
        **{peer.name: of(peer) for peer in PEERS},
    }
    return {name: side for name, side in sides.items() if wanted(name)}


def bulk(stage: Stage, jobs: int, wanted: Callable[[str], bool]) -> Mapping[str, Callable[[], Pace]]:
    """Give the sides that can add many jobs in a call."""

    def onward() -> Pace:
        stage.clear()
        return apart(product.enqueue_many, stage.server.tcp_url, jobs, 1000)

    def node() -> Pace:
        stage.clear()
        return _pace("bullmq for Node", stage.node("bulk", jobs))

    def python() -> Pace:
        stage.clear()
        return _pace("bullmq", stage.python(PEERS[0], "bulk", jobs))

    sides = {"onward": onward, "bullmq for Node": node, "bullmq": python}
    return {name: side for name, side in sides.items() if wanted(name)}


def delay(stage: Stage, rounds: int, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Say how late delayed jobs start, in milliseconds: the median of each round's median, and the worst of all."""
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "onward": lambda: apart(redis_onward.delay, stage.server.tcp_url, 200),
        "bullmq for Node": lambda: stage.node("delay", 200),
        "bullmq": lambda: stage.python(PEERS[0], "delay", 200),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides if wanted(name)}
    for _ in range(rounds):
        for name, rows in found.items():
            stage.clear()
            rows.append(sides[name]())
            print(
                f"{name}: {rows[-1]['median'] * 1000:.1f} ms late, worst {rows[-1]['worst'] * 1000:.1f}",
                file=sys.stderr,
            )
    middle = {name: sorted(row["median"] for row in rows)[len(rows) // 2] * 1000 for name, rows in found.items()}
    worst = {name: max(row["worst"] for row in rows) * 1000 for name, rows in found.items()}
    return {"median_ms": _rounded(middle), "worst_ms": _rounded(worst)}


def pickup(stage: Stage, rounds: int) -> dict[str, Any]:
    """Say how long a job waits for an idle worker of Onward's, in milliseconds: medians of the rounds' p50 and p99."""
    halves, most = [], []
    for _ in range(rounds):
        stage.clear()
        waits = sorted(redis_onward.pickup(stage.server.tcp_url, 200)[10:])
        halves.append(waits[len(waits) // 2] * 1000)
        most.append(waits[len(waits) * 99 // 100] * 1000)
        print(f"onward: p50 {halves[-1]:.2f} ms, p99 {most[-1]:.2f}", file=sys.stderr)
    return {"p50_ms": round(sorted(halves)[rounds // 2], 2), "p99_ms": round(sorted(most)[rounds // 2], 2)}


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(figure, 2) for name, figure in figures.items()}


def _rates(paces: Paces, names: Mapping[str, object]) -> dict[str, Any]:
    rates = {name: paces.rate(name) for name in names}
    found: dict[str, Any] = {"per_s": {name: round(rate) for name, rate in rates.items()}}
    if "onward" in rates:
        found["times"] = _rounded({name: rates["onward"] / rate for name, rate in rates.items() if name != "onward"})
    found["cpu_us"] = _rounded({name: paces.cpu_per_job(name) * 1e6 for name in names})
    return found


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="drain", choices=["drain", "bulk", "delay", "pickup"])
    parser.add_argument("--jobs", type=int, default=20_000, help="for the fast ones; others get fewer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--valkey", action="store_true", help="on Valkey 9 instead of Redis 6.2")
    parser.add_argument("--only", action="append", help="a peer's name; can be given more than once")
    default = os.environ.get("BENCH_DIR") or str(Path(tempfile.gettempdir()) / "onward-peers")
    parser.add_argument("--folder", type=Path, default=Path(default), help="where the virtualenvs are")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with RedisServer(Kind.VALKEY if given.valkey else Kind.REDIS, port=True) as server:
        stage = Stage(server, given.folder)

        def wanted(name: str) -> bool:
            return not given.only or name in given.only

        if given.scenario == "delay":
            figures = delay(stage, given.rounds, wanted)
        elif given.scenario == "pickup":
            figures = pickup(stage, given.rounds)
        else:
            sides = (drain if given.scenario == "drain" else bulk)(stage, given.jobs, wanted)
            figures = _rates(take_turns(given.rounds, sides, lambda line: print(line, file=sys.stderr)), sides)
    head = {"store": str(server.kind), "scenario": given.scenario, "jobs": given.jobs, "rounds": given.rounds}
    print(json.dumps({**head, **figures, "verified": stage.verified, "load": round(os.getloadavg()[0], 2)}))
    sys.exit(0 if stage.verified else 1)


if __name__ == "__main__":
    main()
