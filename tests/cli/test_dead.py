from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def two(shop: Cli) -> list[str]:
    """Two dead letters, beside a job that is none. The ids of the two."""
    ids = [shop("enqueue", "doomed").ok().out.strip() for _ in range(2)]
    shop("enqueue", "broken").ok()
    shop("tick").ok()
    return ids


def test_dead_letters_are_listed(shop: Cli, two):  # O8
    page = shop("dead", "list", "--json").ok().json
    assert [job["id"] for job in page["jobs"]] == two[::-1]
    assert {job["status"] for job in page["jobs"]} == {"dead_letter"}
    assert shop("dead", "list", "--error", "never", "--json").ok().json["jobs"]
    assert not shop("dead", "list", "--error", "nothing like it", "--json").ok().json["jobs"]
    assert "ValueError: never" in shop("dead", "list").ok().out


def test_dead_letters_are_replayed_one_and_all(shop: Cli, two):  # O8
    assert shop("dead", "replay", two[0]).ok().out == "1 job replayed\n"
    assert shop("jobs", "show", two[0], "--json").ok().json["status"] == "pending"
    shop("dead", "replay", "--all").usage_error("1 job will be replayed", "--yes")
    assert shop("dead", "replay", "--all", "--yes", "--json").ok().json["changed"] == 1


def test_dead_letters_are_purged_and_nothing_else(shop: Cli, two):  # O8
    shop("dead", "purge").usage_error("which jobs")
    assert shop("dead", "purge", "--all", "--dry-run").ok().out == "2 jobs would be purged\n"
    assert shop("dead", "purge", "--type", "doomed", "--yes").ok().out == "2 jobs purged\n"
    assert [job["type"] for job in shop("jobs", "list", "--json").ok().json["jobs"]] == ["broken"]


@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_only_dead_letters_can_be_named(shop: Cli, two, verb):
    id = shop("jobs", "list", "--type", "broken", "--json").ok().json["jobs"][0]["id"]
    shop("dead", verb, id).failed("is failed", "only jobs that are dead_letter")
    shop("dead", verb, "nope").failed("job nope not found")


def test_dead_letters_have_no_other_status(shop: Cli):
    shop("dead", "list", "--status", "pending").usage_error("--status")
