from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from onward import App, Backoff, Retention
from tests.cli.conftest import Cli


@pytest.fixture
def some(shop: Cli) -> Cli:
    """A shop with jobs in mail and in the queues of two organisations."""
    shop("enqueue", "send_mail", "to=ann").ok()
    shop("enqueue", "render", "path=x", "--org", "acme").ok()
    shop("enqueue", "render", "path=y", "--org", "bolt").ok()
    return shop


def test_queues_are_listed_with_what_waits_in_them(some: Cli):
    lines = some("queues", "list").ok().out.splitlines()
    assert lines[0].split()[:4] == ["queue", "status", "ready", "scheduled"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["mail", "open", "1"],
        ["video/acme", "open", "1"],
        ["video/bolt", "open", "1"],
    ]
    found = some("queues", "list", "video/*", "--json").ok().json["queues"]
    assert [queue["name"] for queue in found] == ["video/acme", "video/bolt"]
    assert found[0]["counts"] == {"pending": 1}


def test_no_queues_are_no_error(shop: Cli):
    assert "no queues yet" in shop("queues", "list").ok().err
    assert shop("queues", "list", "--json").ok().json == {"queues": []}


@pytest.mark.parametrize("verb", ["list", "pause", "resume", "configure"])
def test_an_unknown_queue_is_answered_with_the_nearest(some: Cli, verb):
    more = ("--weight", "1") if verb == "configure" else ()
    some("queues", verb, "mial", *more).failed("there is no queue 'mial'", "did you mean 'mail'?", "onward queues list")


def test_a_queue_is_paused_and_resumed(some: Cli):
    assert some("queues", "pause", "mail").ok().out.splitlines()[1].split()[:2] == ["mail", "paused"]
    assert some("queues", "list", "mail", "--json").ok().json["queues"][0]["settings"]["paused"] is True
    assert "already paused" in some("queues", "pause", "mail").ok().err
    assert some("queues", "resume", "mail", "--json").ok().json["queues"][0]["settings"]["paused"] is False


def test_a_pause_says_why_and_by_whom(some: Cli):
    shown = some("queues", "pause", "mail", "--reason", "the provider \x1b[2J is down").ok().out
    for listed in (shown, some("queues", "list").ok().out):
        (line,) = [line for line in listed.splitlines() if line.startswith("mail is paused since ")]
        assert " by cli:" in line
        assert line.endswith(": the provider \\x1b[2J is down")
    settings = some("queues", "list", "mail", "--json").ok().json["queues"][0]["settings"]
    assert settings["paused_by"].startswith("cli:")
    some("queues", "pause", "mail", "--reason", "another").ok()
    assert some("queues", "list", "mail", "--json").ok().json["queues"][0]["settings"]["pause_reason"] == "another"
    assert "is paused since" not in some("queues", "resume", "mail").ok().out


def test_many_queues_are_paused_only_with_a_yes(some: Cli, on_store):
    some("queues", "pause", "video/*").usage_error("2 queues will be paused", "--yes")
    assert on_store(_paused) == []
    some("queues", "pause", "video/*", "--yes").ok()
    assert on_store(_paused) == ["video/acme", "video/bolt"]
    some("queues", "pause", "nothing/*").failed("no queue is below nothing/")


async def _paused(app: App) -> list[str]:
    return [queue.name for queue in await app.queues.list() if queue.settings.paused]


def test_a_queue_can_be_paused_before_its_first_job(shop: Cli, on_store):
    shop("queues", "pause", "campaign-7").failed("there is no queue")
    shop("queues", "pause", "campaign-7", "--create").ok()
    assert on_store(_paused) == ["campaign-7"]


def test_a_queue_is_limited_and_set_free(some: Cli, on_store):
    result = some("queues", "configure", "mail", "--rate", "600/min", "--global-concurrency", "3").ok().out
    assert facts(result)["rate"] == "600/min"
    assert facts(result)["global concurrency"] == "3"
    assert "600/min, 3 at once" in some("queues", "list").ok().out
    settings = on_store(_mail)
    assert (settings.rate.count, settings.rate.period.total_seconds(), settings.global_concurrency) == (600, 60, 3)
    some("queues", "configure", "mail", "--rate", "5/10s", "--burst", "2").ok()
    settings = on_store(_mail)
    assert (settings.rate.count, settings.rate.burst, settings.global_concurrency) == (5, 2, 3)
    some("queues", "configure", "mail", "--rate", "none", "--global-concurrency", "none").ok()
    settings = on_store(_mail)
    assert (settings.rate, settings.global_concurrency) == (None, None)


def facts(result: str) -> dict[str, str]:
    pairs = (line.strip().split("  ", 1) for line in result.splitlines())
    return {name: value.strip() for name, value in pairs}


async def _mail(app: App):
    return (await app.queues.get("mail")).settings


@pytest.mark.parametrize(
    ("words", "field", "value", "shown"),
    [
        (("--weight", "4"), "weight", 4, ("weight", "4")),
        (("--lease", "5m"), "lease", timedelta(minutes=5), ("lease", "5 min")),
        (("--max-attempts", "9"), "max_attempts", 9, ("max attempts", "9")),
        (("--backoff", "30s"), "backoff", Backoff.fixed(30), ("backoff", "30 s")),
        (("--backoff", "1s..10m"), "backoff", Backoff.exponential(1, cap=600), ("backoff", "1.0 s, × 2 up to 10 min")),
    ],
)
def test_each_setting_of_a_queue_is_changed_by_itself(some: Cli, on_store, words, field, value, shown):
    before = on_store(_mail)
    result = some("queues", "configure", "mail", *words).ok().out
    assert on_store(_mail) == msgspec.structs.replace(before, **{field: value})
    assert facts(result)[shown[0]] == shown[1]


def test_a_setting_is_taken_back(some: Cli, on_store):
    before = on_store(_mail)
    given = ("--lease", "5m", "--max-attempts", "9", "--backoff", "30s")
    some("queues", "configure", "mail", *given).ok()
    some("queues", "configure", "mail", "--lease", "none", "--max-attempts", "none", "--backoff", "none").ok()
    assert on_store(_mail) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to configure"),
        (("--rate", "often"), "no rate"),
        (("--rate", "0/s"), "at least 1"),
        (("--rate", "5/s", "--burst", "9"), "burst"),
        (("--burst", "2"), "--rate"),
        (("--global-concurrency", "0"), "at least 1"),
        (("--global-concurrency", "many"), "no limit"),
        (("--weight", "0"), "--weight"),
        (("--lease", "soon"), "no duration"),
        (("--max-attempts", "0"), "at least 1"),
        (("--backoff", "1s..soon"), "no duration"),
        (("--backoff", "0s"), "more than 0"),
        (("--keep-completed", "long"), "no duration"),
    ],
)
def test_a_setting_that_cannot_be_kept_is_refused(some: Cli, on_store, words, message):
    before = on_store(_mail)
    some("queues", "configure", "mail", *words).usage_error(message)
    assert on_store(_mail) == before


def test_many_queues_are_configured_only_with_a_yes(some: Cli, on_store):
    async def weights(app: App) -> list[int]:
        return [queue.settings.weight for queue in await app.queues.list("video/*")]

    some("queues", "configure", "video/*", "--weight", "3").usage_error("2 queues will be configured", "--yes")
    assert on_store(weights) == [1, 1]
    some("queues", "configure", "video/*", "--weight", "3", "--yes").ok()
    assert on_store(weights) == [3, 3]


def test_the_retention_of_a_queue_is_configured(some: Cli, on_store):  # P9
    words = ("--keep-completed", "12h", "--keep-cancelled", "0", "--keep-archived", "forever")
    result = some("queues", "configure", "mail", *words).ok().out
    assert facts(result)["retention"] == "completed 12 h; failed forever; cancelled not kept; archived forever"
    found = some("queues", "configure", "mail", "--keep-failed", "90d", "--rate", "5/min", "--json").ok().json
    settings = found["queues"][0]["settings"]
    assert settings["retention"]["completed"] == 12 * 3600  # durations are seconds
    assert settings["rate"]["period"] == 60

    async def retention(app: App) -> Retention:
        return (await app.queues.get("mail")).settings.retention

    assert on_store(retention) == Retention(
        completed=timedelta(hours=12), failed=timedelta(days=90), cancelled=timedelta(0), archived=None
    )


def test_a_queue_is_configured_before_its_first_job(some: Cli):
    words = ("configure", "new", "--keep-completed", "1500ms")
    some("queues", *words).failed("there is no queue")
    (found,) = some("queues", *words, "--create", "--json").ok().json["queues"]
    assert (found["name"], found["settings"]["retention"]["completed"]) == ("new", 1.5)
