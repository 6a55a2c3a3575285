from __future__ import annotations

import json

import pytest

from onward import App
from onward.job import NewJob
from onward.metering import Usage
from onward.prometheus import exposition
from tests.cli.conftest import Cli

STEERING = "a\x1b[2J\x07\x7f\x9b31m\u202egpj.exe\u2066\u200b\u2028\r\U000e0041z"


@pytest.fixture
def some(shop: Cli) -> Cli:
    """A shop in which something was run."""
    for name in ("ann", "bob"):
        shop("enqueue", "send_mail", f"to={name}").ok()
    shop("enqueue", "doomed").ok()
    shop("tick").ok()
    return shop


def test_usage_is_summed_up_by_what_is_asked(some: Cli):
    lines = some("usage", "--by", "type", "--by", "outcome", "--bucket", "all").ok().out.splitlines()
    assert lines[0].split() == ["since", "type", "outcome", "runs", "avg", "wait", "avg", "run", "total", "run"]
    assert [line.split()[:3] for line in lines[1:]] == [["doomed", "dead_letter", "1"], ["send_mail", "completed", "2"]]
    (found,) = some("usage", "--type", "send_mail", "--last", "1d", "--json").ok().json["usage"]
    assert found["runs"] == 2


def test_no_usage_is_no_error(shop: Cli):
    assert "nothing has been run yet" in shop("usage").ok().err
    assert shop("usage", "--json").ok().json == {"usage": []}


def test_metrics_are_written_as_prometheus_reads_them(some: Cli):
    out = some("metrics").ok().out
    assert 'onward_runs_total{queue="mail",type="send_mail",outcome="completed"} 2\n' in out
    assert out.startswith("# HELP onward_jobs ")


def test_json_writes_what_steers_a_terminal_by_its_escape(shop: Cli, on_store):  # X6
    async def add(app: App) -> None:
        await (await app._core.opened()).enqueue([NewJob(type=STEERING, payload=json.dumps({STEERING: STEERING}))])

    on_store(add)
    shown = shop("jobs", "list", "--json").ok()
    assert shown.out.removesuffix("\n").isprintable()
    (job,) = shown.json["jobs"]
    assert (job["type"], job["payload"]) == (STEERING, {STEERING: STEERING})


def test_metrics_write_what_steers_a_terminal_by_its_escape():  # X6
    text = exposition([], [], [Usage(queue="mail", type=STEERING, outcome="completed", runs=1)])
    assert all(line.isprintable() for line in text.split("\n"))
    assert 'type="a\\\\x1b[2J\\\\x07\\\\x7f\\\\x9b31m\\\\u202egpj.exe' in text


@pytest.mark.parametrize("names", [("\x1b", "\\x1b", "\\\x1b", "\\\\x1b"), ("\t", "\\t"), ("App\\Jobs", "App\\\\Jobs")])
def test_two_names_never_make_the_same_series(names: tuple[str, ...]):  # X6
    usage = [Usage(queue="mail", type=name, outcome="completed", runs=1) for name in names]
    lines = [line for line in exposition([], [], usage).splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)
    assert len([line for line in lines if line.startswith("onward_runs_total")]) == len(names)
