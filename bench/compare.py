"""Compare two checkouts of Onward on one machine, in interleaved pairs.

    python -m bench.compare BEFORE [AFTER] [--pairs 15] [--only drain-sqlite,latency-postgres]

BEFORE and AFTER are folders with a checkout and its ``.venv``; AFTER is this one unless given. Each pair runs one
checkout, then the other, each in fresh processes on a fresh store of the same server; the order alternates. A ratio is
after / before of the rate, or before / after of the latency, so that more is better. The last line printed is one JSON
object: for each scenario the geometric mean of the ratios and the bounds of its 95 % confidence interval; ``cpu`` is
the median ratio of processor time, before / after, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from onward.bench.environment_postgres import PostgresEnvironment
from tests.servers.redis import Kind, RedisServer

_ROUND = Path(__file__).with_name("compare_round.py")
_T_95 = {10: 2.262, 15: 2.145, 20: 2.093, 30: 2.045}
"""Student's t for a two-sided interval of 95 %, by the number of pairs."""

SCENARIOS: Mapping[str, tuple[str, str, int]] = {
    "drain-sqlite": ("drain", "sqlite", 20_000),
    "enqueue-sqlite": ("enqueue", "sqlite", 2_000),
    "latency-sqlite": ("latency", "sqlite", 100),
    "drain-postgres": ("drain", "postgres", 20_000),
    "enqueue-postgres": ("enqueue", "postgres", 2_000),
    "latency-postgres": ("latency", "postgres", 100),
    "drain-redis": ("drain", "redis", 20_000),
}
"""What is done, on which store, with how many jobs."""


def main() -> int:
    """Run the pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--pairs", type=int, choices=sorted(_T_95), default=15)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="names of scenarios, separated by commas")
    given = parser.parse_args()
    report: dict[str, object] = {}
    with ExitStack() as stack:
        stores = Stores(stack)
        for name in given.only.split(","):
            scenario, store, jobs = SCENARIOS[name]
            ratios, cpu = [], []
            for number in range(given.pairs):
                sides = [given.before, given.after] if number % 2 else [given.after, given.before]
                figures = {side: run(side, scenario, stores.fresh[store], jobs) for side in sides}
                (before, cpu_before), (after, cpu_after) = figures[given.before], figures[given.after]
                ratios.append(before / after if scenario == "latency" else after / before)
                if cpu_after:
                    cpu.append(cpu_before / cpu_after)
                print(f"{name} {number + 1}: {before:.6g} {after:.6g} {ratios[-1]:.3f}", file=sys.stderr, flush=True)
            report[name] = interval(ratios) | ({"cpu": round(statistics.median(cpu), 3)} if cpu else {})
            print(name, report[name], flush=True)
    print(json.dumps(report | {"pairs": given.pairs, "load": round(os.getloadavg()[0], 2)}))
    return 0


class Stores:
    """Empty stores, each used once; the servers start when they are first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._files = self._sqlite()
        self._postgres: PostgresEnvironment | None = None
        self._redis: RedisServer | None = None
        self.fresh: Mapping[str, Callable[[], str]] = {
            "sqlite": lambda: next(self._files),
            "postgres": self._fresh_postgres,
            "redis": self._fresh_redis,
        }

    def _sqlite(self) -> Iterator[str]:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="onward-compare-"))
        for number in count():
            yield f"sqlite:///{folder}/{number}.db"

    def _fresh_postgres(self) -> str:
        if self._postgres is None:
            self._postgres = self._stack.enter_context(PostgresEnvironment(None))
        return self._postgres.fresh()

    def _fresh_redis(self) -> str:
        if self._redis is None:
            self._redis = self._stack.enter_context(RedisServer(Kind.REDIS, port=True))
        with self._redis.client() as client:
            client.flushall()
        return self._redis.tcp_url


def run(checkout: Path, scenario: str, fresh: Callable[[], str], jobs: int) -> tuple[float, float]:
    """Run one round with the code of a checkout, and give its figures."""
    command = [checkout / ".venv/bin/python", str(_ROUND), scenario, fresh(), str(jobs)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=checkout)
    figure, cpu = answer.stdout.split()[-2:]
    return float(figure), float(cpu)


def interval(ratios: list[float]) -> dict[str, float]:
    """Give the geometric mean of ratios, its confidence interval, and the median."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = _T_95[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
    figures = {"mean": mean, "low": mean - half, "high": mean + half, "median": statistics.median(logs)}
    return {name: round(math.exp(value), 3) for name, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
