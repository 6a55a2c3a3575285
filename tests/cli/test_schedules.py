from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def some(shop: Cli) -> Cli:
    """A shop with a schedule."""
    shop(
        "schedules", "set", "digest", "send_mail", "to=ann", "--cron", "30 6 * * mon-fri", "--timezone", "Europe/Berlin"
    ).ok()
    return shop


def test_schedules_are_listed_with_when_they_run_and_their_next_run(some: Cli):
    lines = some("schedules", "list").ok().out.splitlines()
    assert lines[0].split() == ["schedule", "status", "when", "type", "queue", "next", "last"]
    assert "digest" in lines[1]
    assert "30 6 * * mon-fri (Europe/Berlin)" in lines[1]
    assert "in " in lines[1]
    (found,) = some("schedules", "list", "--json").ok().json["schedules"]
    assert (found["name"], found["job"]["type"], found["job"]["queue"]) == ("digest", "send_mail", "mail")


def test_no_schedules_are_no_error(shop: Cli):
    shop("enqueue", "send_mail", "to=ann").ok()
    assert "no schedules yet" in shop("schedules", "list").ok().err
    assert shop("schedules", "list", "--json").ok().json == {"schedules": []}


def test_the_next_turns_are_told(some: Cli):
    turns = some("schedules", "show", "digest", "--upcoming", "3", "--json").ok().json["upcoming"]
    assert len(turns) == 3
    assert turns == sorted(turns)
    assert some("schedules", "show", "digest", "--upcoming", "3").ok().out.count("\nnext   ") == 3


def test_a_schedule_is_changed_by_setting_it_again(some: Cli):
    some("schedules", "set", "digest", "send_mail", '{"to": "bob"}', "--every", "5m", "--missed", "all").ok()
    (found,) = some("schedules", "list", "--json").ok().json["schedules"]
    assert found["job"]["payload"] == '{"to":"bob"}'
    assert (found["trigger"]["type"], found["missed"]) == ("interval", "all")


def test_a_schedule_is_paused_resumed_run_and_deleted(some: Cli):
    assert some("schedules", "pause", "digest", "--json").ok().json["schedules"][0]["next_at"] is None
    assert "paused" in some("schedules", "list").ok().out
    assert some("schedules", "resume", "digest", "--json").ok().json["schedules"][0]["next_at"] is not None
    job = some("schedules", "run", "digest").ok().out.strip()
    assert some("jobs", "show", job, "--json").ok().json["payload"] == {"to": "ann"}
    some("schedules", "delete", "digest").usage_error("will be deleted", "--yes")
    some("schedules", "delete", "digest", "--yes").ok()
    assert some("schedules", "list", "--json").ok().json == {"schedules": []}


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "delete"])
def test_an_unknown_schedule_is_answered_with_the_nearest(some: Cli, verb):
    some("schedules", verb, "digets").failed("there is no schedule 'digets'", "did you mean 'digest'?")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "give --cron or --every"),
        (("--cron", "* * * * *", "--every", "5m"), "give --cron or --every"),
        (("--cron", "61 * * * *"), "cannot be read"),
        (("--cron", "0 6 * * *", "--timezone", "Berlin"), "no time zone"),
        (("--every", "0s"), "at least a second"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(shop: Cli, more, says):
    shop("enqueue", "send_mail", "to=ann").ok()
    shop("schedules", "set", "digest", "send_mail", "to=ann", *more).usage_error(says)
    shop("schedules", "set", "digest", "send_mail", "--every", "5m").usage_error("send_mail takes to")
    assert shop("schedules", "list", "--json").ok().json == {"schedules": []}
