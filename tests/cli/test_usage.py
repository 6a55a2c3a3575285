from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


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
