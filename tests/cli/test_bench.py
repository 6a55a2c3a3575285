"""Each scenario once, as small as can be: what is measured must have happened, and be told in the promised shape.

How fast it is is not asked here: that is for ``make bench``, on a machine that does nothing else.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onward.bench import scenarios
from onward.bench.handlers import Handler
from onward.bench.statistics import Measurement, run_interleaved
from onward.bench.verification import is_verified
from tests.cli.conftest import Cli, CommandResult
from tests.servers import missing
from tests.servers.postgres import postgres_url

KEYS = ["engine", "scenario", "jobs", "onward", "raw", "ratio", "unit", "verified"]

RATES = [
    (("drain", "--jobs", "60"), {"handler"}),
    (("drain", "--jobs", "60", "--handler", "def"), {"handler", "async", "of_async"}),
    (("drain", "--jobs", "60", "--handler", "sleep10", "--concurrency", "20"), {"handler", "ideal", "of_ideal"}),
    (("enqueue", "--jobs", "20"), {"callers"}),
    (("enqueue", "--jobs", "40", "--callers", "8"), {"callers", "single", "of_single"}),
    (("bulk", "--jobs", "100", "--batch", "30"), {"batch", "executemany", "json_each"}),
    (("backlog", "--jobs", "200", "--sample", "50"), {"beside_future", "future_ratio", "memory_mb", "few_memory_mb"}),
    (("events", "--jobs", "60"), {"with_listener", "of_unrecorded", "last_event_ms"}),
    (("batches", "--jobs", "60"), {"drained", "drained_plain", "of_plain"}),
    (("prune", "--jobs", "4000", "--sample", "50"), {"archived_meanwhile", "archived_per_second"}),
]


POSTGRES = [
    (("drain", "--jobs", "60"), {"handler"}),
    (("drain", "--jobs", "60", "--processes", "2"), {"processes", "one", "of_one"}),
    (("enqueue", "--jobs", "20", "--producers", "2"), {"producers"}),
    (("bulk", "--jobs", "100", "--batch", "30"), {"batch", "unnest", "copy"}),
    (("events", "--jobs", "60"), {"with_listener", "of_unrecorded", "last_event_ms"}),
    (("batches", "--jobs", "60"), {"drained", "drained_plain", "of_plain"}),
    (("prune", "--jobs", "4000", "--sample", "50"), {"archived_meanwhile", "archived_per_second"}),
]


def last_line(result: CommandResult, engine: str = "SQLite") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.ok().out.splitlines()[-1])
    assert list(found)[: len(KEYS)] == KEYS
    assert found["engine"] == engine
    assert found["verified"] is True
    return found


@pytest.mark.parametrize(
    ("words", "more"), RATES, ids=lambda value: "-".join(value) if isinstance(value, tuple) else ""
)
def test_a_rate_stands_beside_that_of_the_bare_store(cli: Cli, words, more):
    found = last_line(cli("bench", *words, "--rounds", "1", "--json", "--url", "sqlite:///store.db"))
    assert found["scenario"] == words[0]
    assert found["jobs"] == int(words[2])
    assert found["unit"] == "jobs/s"
    assert found["ratio"] == pytest.approx(found["onward"] / found["raw"], rel=0.01)
    assert more <= found.keys()


@pytest.mark.parametrize(
    ("words", "more"), POSTGRES, ids=lambda value: "-".join(value) if isinstance(value, tuple) else ""
)
def test_postgresql_has_a_yardstick_too(cli: Cli, words, more):
    found = last_line(cli("bench", *words, "--rounds", "1", "--json", "--url", postgres_url()), "PostgreSQL")
    assert found["jobs"] == int(words[2])
    assert found["ratio"] == pytest.approx(found["onward"] / found["raw"], rel=0.01)
    assert more <= found.keys()


def test_on_postgresql_databases_of_ours_are_gone_in_the_end(cli: Cli):
    def ours() -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_url()) as connection:
            found = connection.execute("select datname from pg_database where datname like 'onward\\_bench\\_%'")
            return found.fetchall()

    asked = ("idle", "--jobs", "5", "--seconds", "2", "--rounds", "1", "--json", "--url", postgres_url())
    assert last_line(cli("bench", *asked), "PostgreSQL")["queries_per_s"] > 0  # it polls, and it beats
    assert ours() == []


def test_pickup_is_told_by_its_percentiles(cli: Cli):
    found = last_line(cli("bench", "latency", "--jobs", "15", "--rounds", "1", "--json"))
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert 0 < found["raw"] <= found["raw_p99_ms"]
    assert found["unit"] == "ms"


def test_pickup_from_a_server_is_measured_beside_a_bare_one(cli: Cli):
    asked = ("latency", "--jobs", "15", "--rounds", "1", "--json", "--url", postgres_url())
    found = last_line(cli("bench", *asked), "PostgreSQL")
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert 0 < found["raw"] <= found["raw_p99_ms"]
    assert "by one who listens" in found["against"]


@pytest.mark.parametrize("engine", ["SQLite", "PostgreSQL"])
def test_lateness_is_told_by_its_percentiles_and_none_starts_early(cli: Cli, engine: str):
    url = postgres_url() if engine == "PostgreSQL" else "sqlite:///store.db"
    found = last_line(cli("bench", "due", "--jobs", "15", "--rounds", "1", "--json", "--url", url), engine)
    assert found["onward"] == found["p99_ms"]
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["worst_ms"]
    assert found["raw"] > 0
    assert found["unit"] == "ms"


def test_idling_is_told_by_statements_and_processor_time(cli: Cli):
    found = last_line(cli("bench", "idle", "--jobs", "5", "--seconds", "2", "--rounds", "1", "--json"))
    assert found["queries_per_s"] > 0  # it polls, and it beats
    assert found["cpu_percent"] > 0


def test_quick_jobs_are_timed_by_the_store(cli: Cli):
    found = last_line(cli("bench", "mixed", "--jobs", "10", "--slow", "0.2", "--rounds", "1", "--json"))
    assert found["onward"] > 0
    assert found["workers"] == 2


HTTP_KEYS = {
    "of_empty_route", "of_bare_read", "streams_memory_mb", "streams_queries_per_job", "of_one_stream",
    "idle_queries_per_s",
}  # fmt: skip


@pytest.mark.parametrize("engine", ["SQLite", "PostgreSQL"])
def test_the_http_api_is_measured_beside_bare_routes(cli: Cli, engine: str):
    if shutil.which("wrk") is None:
        missing("there is no wrk here: apt install wrk")
    url = postgres_url() if engine == "PostgreSQL" else "sqlite:///store.db"
    words = ("http", "--rounds", "1", "--seconds", "1", "--clients", "4", "--streams", "12", "--json", "--url", url)
    found = last_line(cli("bench", *words), engine)
    assert found.keys() >= HTTP_KEYS
    assert found["ratio"] == pytest.approx(found["onward"] / found["raw"], rel=0.01)
    assert found["unit"] == "requests/s"
    assert found["jobs"] > 0
    assert found["idle_queries_per_s"] < 2


def test_without_wrk_the_command_says_how_to_install_it(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onward.bench.load.shutil.which", lambda _: None)
    result = cli("bench", "http", "--rounds", "1")
    assert result.code == 1
    assert "apt install wrk" in result.err


def test_the_store_at_the_url_is_left_alone(cli: Cli, workdir: Path):
    before = sorted(workdir.iterdir())
    result = cli("bench", "enqueue", "--jobs", "5", "--rounds", "1", "--url", "sqlite:///jobs.db").ok()
    assert "verified" in result.out  # for people, too
    assert sorted(workdir.iterdir()) == before


def test_what_cannot_be_measured_is_said(cli: Cli):
    cli("bench", "drain", "--url", "sqlite:///nowhere/jobs.db").usage_error("nowhere")
    cli("bench", "drain", "--url", "nothing://x").usage_error("nothing")
    cli("bench", "drain", "--handler", "none").usage_error("handler")


def test_an_account_holds_only_if_store_and_ledger_agree(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    scenarios.fill(url, Handler.ASYNC, 5)
    assert not is_verified(url, range(5))  # the store has not completed them
    ran = scenarios.drain(url, 5, 10).ran
    assert sorted(ran) == list(range(5))
    assert is_verified(url, ran)
    assert not is_verified(url, [*ran, 3])  # ran twice
    assert not is_verified(url, ran[:-1])  # the store has one more
    scenarios.fill(url, Handler.ASYNC, 1, first=5)
    assert not is_verified(url, ran)  # one is left
    assert is_verified(url, ran, waiting=1)


def test_sides_take_turns_and_the_median_counts():
    seconds = {"a": iter([1.0, 2.0, 9.0]), "b": iter([2.0, 8.0, 2.0])}
    order: list[str] = []

    def variant(name: str) -> Measurement:
        order.append(name)
        return Measurement(10, next(seconds[name]))

    measurements = run_interleaved(3, {"a": lambda: variant("a"), "b": lambda: variant("b")}, lambda _: None)
    assert order == ["a", "b"] * 3
    assert measurements.rate("a") == 5
    assert measurements.rate("b") == 5
