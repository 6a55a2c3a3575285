"""Onward on Redis beside BullMQ for Node and for Python, beyond what ``peers.py`` measures: one Redis, taking turns.

    python -m bench.redis_peers bulk|delay|pickup|idle [--jobs 20000] [--rounds 5] [--valkey]

``bulk``: 1 000 jobs a call. ``delay``: 200 jobs, due at moments spread over two seconds; how late they start.
``pickup``: 200 jobs, one every 20 ms, for an idle worker of Onward's in another process; how long each waits until its
handler begins, from before the call of enqueue (``p50_ms``, ``p99_ms``) and from its return (``p50_from_return_ms``),
beside two bare round trips, each after a rest of 20 ms. ``idle``: how many commands a second a worker sends that has
nothing to do. Redis is a server of our own, on a port, without persistence, emptied before each round.

The last line printed is one JSON object: for each its figure, and Onward's in terms of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench import redis_onward
from bench.roster import BULLMQ, BULLMQ_FOR_PYTHON
from onward.bench import scenarios
from onward.bench.isolated import run_isolated
from onward.bench.statistics import Measurement, run_interleaved
from tests.servers.redis import Kind, RedisServer

PEERS = (BULLMQ, BULLMQ_FOR_PYTHON)
WARMUP, COUNTING = 4.0, 15.0
"""Seconds that an idle worker has to come to rest, and in which its commands are counted."""


class Environment:
    """One Redis, and the ways to measure on it."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self._server, self._folder = server, folder

    @property
    def url(self) -> str:
        """Where it is."""
        return self._server.tcp_url

    def clear(self) -> None:
        """Empty the server."""
        with self._server.client() as client:
            client.flushall()

    def sides(self, what: str, jobs: int, onward: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
        """Give how each does something on an empty server."""

        def on_empty(do: Callable[[], Any]) -> Any:
            self.clear()
            return do()

        peers = {peer.name: partial(peer.do, self._folder, what, self.url, jobs) for peer in PEERS}
        return {name: partial(on_empty, do) for name, do in {"Onward": onward, **peers}.items()}

    def counted(self, do: Callable[[], Any]) -> float:
        """Count the commands a second that come while something is done."""
        doing = threading.Thread(target=do)
        doing.start()
        time.sleep(WARMUP)
        sent = 0
        with self._server.client() as client, client.monitor() as monitor:
            end = time.monotonic() + COUNTING
            while time.monotonic() < end:
                if monitor.connection.can_read(timeout=0.1) and monitor.next_command()["client_type"] != "lua":
                    sent += 1
        doing.join()
        return sent / COUNTING


def bulk(environment: Environment, jobs: int, rounds: int) -> dict[str, Any]:
    """Say how many jobs a second are added, a thousand to a call."""
    sides = environment.sides("bulk", jobs, lambda: run_isolated(scenarios.enqueue_many, environment.url, jobs, 1000))
    paced = {name: partial(_pace, do) for name, do in sides.items()}
    paces = run_interleaved(rounds, paced, lambda line: print(line, file=sys.stderr))
    rates = {name: paces.rate(name) for name in sides}
    return {"per_s": _rounded(rates), "times": _rounded({name: rates["Onward"] / rate for name, rate in rates.items()})}


def _pace(do: Callable[[], Any]) -> Measurement:
    found = do()
    return (
        found if isinstance(found, Measurement) else Measurement(found["jobs"], found["seconds"], found["cpu_seconds"])
    )


def delay(environment: Environment, _jobs: int, rounds: int) -> dict[str, Any]:
    """Say how late delayed jobs start, in milliseconds: the median of each round's median, and the worst of all."""
    sides = environment.sides("delay", 200, lambda: run_isolated(redis_onward.delay, environment.url, 200))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, rows in found.items():
            rows.append(sides[name]())
            shown = {what: f"{rows[-1][what] * 1000:.1f} ms" for what in ("median", "worst")}
            print(f"{name}: {shown}", file=sys.stderr)
    return {
        "median_ms": _rounded({name: _median([row["median"] for row in rows]) * 1000 for name, rows in found.items()}),
        "worst_ms": _rounded({name: max(row["worst"] for row in rows) * 1000 for name, rows in found.items()}),
    }


def pickup(environment: Environment, _jobs: int, rounds: int) -> dict[str, Any]:
    """Say how long a job waits for an idle worker of Onward's, in milliseconds: medians of the rounds' p50 and p99."""
    figures = ("p50_ms", "p99_ms", "p50_from_return_ms", "two_round_trips_ms")
    found: dict[str, list[float]] = {figure: [] for figure in figures}
    for _ in range(rounds):
        environment.clear()
        from_call, from_return = (sorted(waits[10:]) for waits in redis_onward.pickup(environment.url, 200))
        found["p50_ms"].append(_median(from_call) * 1000)
        found["p99_ms"].append(from_call[len(from_call) * 99 // 100] * 1000)
        found["p50_from_return_ms"].append(_median(from_return) * 1000)
        found["two_round_trips_ms"].append(run_isolated(redis_onward.round_trip, environment.url, 200) * 2000)
        print({what: round(taken[-1], 2) for what, taken in found.items()}, file=sys.stderr)
    return _rounded({what: _median(taken) for what, taken in found.items()})


def idle(environment: Environment, _jobs: int, rounds: int) -> dict[str, Any]:
    """Say how many commands a second an idle worker sends."""
    seconds = int(WARMUP + COUNTING + 2)
    sides = environment.sides("idle", seconds, lambda: run_isolated(redis_onward.idle, environment.url, seconds))
    found = {name: [environment.counted(do) for _ in range(rounds)] for name, do in sides.items()}
    return {"commands_per_s": _rounded({name: _median(figures) for name, figures in found.items()})}


def _median(figures: list[float]) -> float:
    return sorted(figures)[len(figures) // 2]


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(figure, 2) for name, figure in figures.items()}


SCENARIOS = {"bulk": bulk, "delay": delay, "pickup": pickup, "idle": idle}


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=list(SCENARIOS))
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--valkey", action="store_true", help="on Valkey 9 instead of Redis 6.2")
    default = os.environ.get("BENCH_DIR") or str(Path(tempfile.gettempdir()) / "onward-peers")
    parser.add_argument("--folder", type=Path, default=Path(default), help="where the virtualenvs are")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for peer in PEERS:
        peer.install(given.folder)
    with RedisServer(Kind.VALKEY if given.valkey else Kind.REDIS, port=True) as server:
        figures = SCENARIOS[given.scenario](Environment(server, given.folder), given.jobs, given.rounds)
    head = {"store": str(server.kind), "scenario": given.scenario, "rounds": given.rounds}
    print(json.dumps({**head, **figures, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
