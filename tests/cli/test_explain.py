from __future__ import annotations

from tests.cli.conftest import Cli


def test_all_that_keeps_a_job_is_told_with_what_to_do(shop: Cli):
    job = shop("enqueue", "send_mail", "to=ann").ok().out.strip()
    shop("queues", "pause", "mail").ok()
    result = shop("explain", job).ok()
    assert result.out.splitlines()[0] == "pending send_mail in mail"
    assert "- the queue mail is paused" in result.out
    assert "- no worker serves mail" in result.out
    assert "onward queues resume mail" in result.err
    reasons = shop("explain", job, "--json").ok().json["reasons"]
    assert [reason["code"] for reason in reasons] == ["paused", "no_worker"]
    assert reasons[0]["message"].startswith("the queue mail is paused")


def test_when_it_will_be_gone_by_itself_is_told(shop: Cli):
    job = shop("enqueue", "send_mail", "to=ann", "--delay", "1h").ok().out.strip()
    assert "it is delayed, as it was asked to be (until " in shop("explain", job).ok().out


def test_a_job_that_there_is_not_is_an_error(shop: Cli):
    shop("enqueue", "send_mail", "to=ann").ok()
    shop("explain", "01900000-0000-7000-8000-000000000000").failed("not found")
