"""All scenarios of ``onward bench``, one after the other, beside what is wanted of them.

    python -m bench [--url URL] [--quick]

Prints each scenario's JSON object, then a table. Exits with 1 if a scenario could not be verified; a figure that is not
as wanted is said, and no failure: a machine that is busy with other things shows all sorts of figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

Result = dict[str, Any]


class Target(NamedTuple):
    """A figure of a scenario, and what it should be."""

    label: str
    figure: Callable[[Result], float]
    is_met: Callable[[float], bool]
    limit: str


def at_least(label: str, minimum: float, key: str = "ratio") -> Target:
    """Want a figure to be at least so much."""
    return Target(label, lambda result: result[key], lambda figure: figure >= minimum, f"≥ {minimum:g}")


def at_most(label: str, maximum: float, key: str) -> Target:
    """Want a figure to be at most so much."""
    return Target(label, lambda result: result[key], lambda figure: figure <= maximum, f"≤ {maximum:g}")


def memory_ratio(result: Result) -> float:
    """Say how much larger a worker is beside a backlog."""
    return float(result["memory_mb"] / result["few_memory_mb"])


Runs = list[tuple[str, str, list[Target]]]

HTTP: Runs = [
    (
        "http",
        "--seconds 1 --streams 20",
        [
            at_least("enqueue by HTTP, × bare Starlette insert", 0.5),
            at_least("the same by 64 clients, × empty route", 0.5, "of_empty_route"),
            at_least("read by HTTP, × bare Starlette read", 0.5, "of_bare_read"),
            at_most("200 event streams, MB", 15, "streams_memory_mb"),
            at_most("200 event streams, statements, × one", 1.5, "of_one_stream"),
            at_most("idle server, statements/s", 2, "idle_queries_per_s"),
        ],
    ),
]

SQLITE: Runs = [
    ("drain", "--jobs 2000", [at_least("drain, async no-op, × bare store", 0.25)]),
    ("drain --handler def", "--jobs 2000", [at_least("drain, plain functions, × async", 0.5, "of_async")]),
    ("drain --handler sleep10", "--jobs 2000", [at_least("drain, 10 ms handlers, of the ideal", 0.9, "of_ideal")]),
    ("enqueue", "--jobs 200", [at_least("enqueue, × bare insert", 0.7)]),
    ("enqueue --callers 64 --jobs 10000", "--jobs 2000", [at_least("64 callers, × one", 10, "of_single")]),
    ("bulk", "--jobs 10000", [at_least("bulk, × bare store", 0.2)]),
    (
        "latency",
        "--jobs 50",
        [at_most("pickup, p50, ms", 5, "p50_ms"), at_most("pickup, p99, ms", 25, "p99_ms")],
    ),
    ("due", "--jobs 50", [at_most("due jobs, idle worker, p99, ms late", 50, "p99_ms")]),
    ("idle", "--seconds 1", [at_most("idle, % of a processor", 1, "cpu_percent")]),
    ("mixed", "--slow 1", [at_most("99 quick jobs beside a slow one, s", 1, "onward")]),
    (
        "backlog",
        "--jobs 20000 --sample 5000",
        [
            at_least("a million wait, × 20 000", 0.8),
            at_least("a million urgent ones next year, × none", 0.9, "future_ratio"),
            Target("a million wait, memory, × 20 000", memory_ratio, lambda figure: figure <= 1.1, "≤ 1.1"),
        ],
    ),
]

POSTGRES: Runs = [
    ("drain --jobs 50000", "--jobs 2000", [at_least("drain, async no-op, × the yardstick", 0.5)]),
    ("drain --handler def", "--jobs 2000", [at_least("drain, plain functions, × async", 0.5, "of_async")]),
    ("drain --processes 2 --jobs 50000", "--jobs 2000", [at_least("two processes, × one", 1.15, "of_one")]),
    ("enqueue", "--jobs 200", [at_least("enqueue, × bare insert", 0.8)]),
    ("enqueue --producers 8 --jobs 10000", "--jobs 400", [at_least("8 producers, × bare inserts", 0.8)]),
    ("enqueue --callers 64 --jobs 10000", "--jobs 2000", [at_least("64 callers, × one", 8, "of_single")]),
    ("bulk", "--jobs 10000", []),
    (
        "latency",
        "--jobs 50",
        [at_most("pickup, p50, ms", 2.5, "p50_ms"), at_most("pickup, p99, ms", 10, "p99_ms")],
    ),
    ("due", "--jobs 50", [at_most("due jobs, idle worker, p99, ms late", 50, "p99_ms")]),
    ("idle", "--seconds 1", [at_most("idle, statements/s", 2, "queries_per_s")]),
]


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="sqlite://", help="measure on stores like this one; postgresql:// starts one")
    parser.add_argument("--quick", action="store_true", help="small and once: to see that it runs, not how fast")
    given = parser.parse_args()
    rows: list[tuple[str, str, str, str]] = []
    verified = True
    for scenario, quick, targets in [*(POSTGRES if given.url.startswith("postgres") else SQLITE), *HTTP]:
        words = scenario.split() + ([*quick.split(), "--rounds", "1"] if given.quick else [])
        command = [sys.executable, "-m", "onward.cli", "bench", *words, "--url", given.url, "--json"]
        finished = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if not finished.stdout.strip():
            sys.exit(f"onward bench {scenario} failed")
        line = finished.stdout.splitlines()[-1]
        print(line, flush=True)
        result = json.loads(line)
        verified &= result["verified"]
        for target in targets:
            figure = target.figure(result)
            rows.append((target.label, f"{figure:.3g}", target.limit, "yes" if target.is_met(figure) else "no"))
    print()
    for row in (("", "found", "wanted", "enough"), *rows):
        print("{:<42} {:>8} {:>8} {:>7}".format(*row))
    sys.exit(0 if verified else 1)


if __name__ == "__main__":
    main()
