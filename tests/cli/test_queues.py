from __future__ import annotations

from datetime import timedelta

import pytest

from onward import App, Retention
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


@pytest.mark.parametrize("verb", ["list", "pause", "resume", "limit"])
def test_an_unknown_queue_is_answered_with_the_nearest(some: Cli, verb):
    more = ("--concurrency", "1") if verb == "limit" else ()
    some("queues", verb, "mial", *more).wrong("there is no queue 'mial'", "did you mean 'mail'?", "onward queues list")


def test_a_queue_is_paused_and_resumed(some: Cli):
    assert some("queues", "pause", "mail").ok().out.splitlines()[1].split()[:2] == ["mail", "paused"]
    assert some("queues", "list", "mail", "--json").ok().json["queues"][0]["settings"]["paused"] is True
    assert "already paused" in some("queues", "pause", "mail").ok().err
    assert some("queues", "resume", "mail", "--json").ok().json["queues"][0]["settings"]["paused"] is False


def test_many_queues_are_paused_only_with_a_yes(some: Cli, on_store):
    some("queues", "pause", "video/*").wrong("2 queues will be paused", "--yes")
    assert on_store(_paused) == []
    some("queues", "pause", "video/*", "--yes").ok()
    assert on_store(_paused) == ["video/acme", "video/bolt"]
    some("queues", "pause", "nothing/*").wrong("no queue is below nothing/")


async def _paused(app: App) -> list[str]:
    return [queue.name for queue in await app.queues.list() if queue.settings.paused]


def test_a_queue_can_be_paused_before_its_first_job(shop: Cli, on_store):
    shop("queues", "pause", "campaign-7").wrong("there is no queue")
    shop("queues", "pause", "campaign-7", "--create").ok()
    assert on_store(_paused) == ["campaign-7"]


def test_a_queue_is_limited_and_set_free(some: Cli, on_store):
    assert "600/min, 3 at once" in some("queues", "limit", "mail", "--rate", "600/min", "--concurrency", "3").ok().out
    settings = on_store(_mail)
    assert (settings.rate.count, settings.rate.period.total_seconds(), settings.concurrency) == (600, 60, 3)
    some("queues", "limit", "mail", "--rate", "5/10s", "--burst", "2").ok()
    settings = on_store(_mail)
    assert (settings.rate.count, settings.rate.burst, settings.concurrency) == (5, 2, 3)
    some("queues", "limit", "mail", "--rate", "none", "--concurrency", "none").ok()
    settings = on_store(_mail)
    assert (settings.rate, settings.concurrency) == (None, None)


async def _mail(app: App):
    return (await app.queues.get("mail")).settings


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "which limit?"),
        (("--rate", "often"), "no rate"),
        (("--rate", "0/s"), "at least 1"),
        (("--rate", "5/s", "--burst", "9"), "burst"),
        (("--burst", "2"), "--rate"),
        (("--concurrency", "0"), "at least 1"),
        (("--concurrency", "many"), "no limit"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(some: Cli, on_store, words, told):
    some("queues", "limit", "mail", *words).wrong(told)
    settings = on_store(_mail)
    assert (settings.rate, settings.concurrency) == (None, None)


def test_a_queue_is_told_how_long_to_keep_jobs(some: Cli, on_store):  # P9
    said = some("queues", "keep", "mail", "--completed", "12h", "--cancelled", "0", "--archived", "forever").ok().out
    assert said == (
        "mail keeps jobs that have ended: completed 12 h; failed for ever; cancelled not at all; archived for ever\n"
    )
    some("queues", "keep", "mail", "--failed", "90d", "--json").ok()

    async def retention(app: App) -> Retention:
        return (await app.queues.get("mail")).settings.retention

    assert on_store(retention) == Retention(
        completed=timedelta(hours=12), failed=timedelta(days=90), cancelled=timedelta(0), archived=None
    )


def test_what_is_to_be_kept_must_be_said(some: Cli):
    some("queues", "keep", "mail").wrong("which jobs, and for how long?", "onward queues keep mail --completed 12h")
    some("queues", "keep", "mail", "--completed", "long").wrong("'long' is no duration")
    some("queues", "keep", "mial", "--completed", "1h").wrong("there is no queue 'mial'", "mail")
    assert (
        some("queues", "keep", "new", "--completed", "1h", "--create", "--json").ok().json["queues"][0]["name"] == "new"
    )
