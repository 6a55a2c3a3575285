from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from onward import App, Retention
from tests.cli.conftest import Cli

OnStore = Callable[[Callable[[App], Awaitable[Any]]], Any]


@pytest.fixture
def two(shop: Cli, on_store: OnStore) -> list[str]:
    """Two archived jobs, beside one that is kept. The ids of the two."""
    ids = [shop("enqueue", "send_mail", f"to={who}").ok().out.strip() for who in ("ada", "bob")]
    shop("tick").ok()

    async def archive(app: App) -> None:
        await app.queues.configure("mail", retention=Retention(completed=timedelta(0)))
        term = await app._core.engine.elect("test", lease=timedelta(seconds=5))
        assert term is not None
        assert (await app._core.engine.prune(term)).changed == 2
        await app._core.engine.resign(term)

    on_store(archive)
    shop("enqueue", "broken").ok()
    return ids


def test_archived_jobs_are_listed_and_shown(shop: Cli, two: list[str]):  # P9
    page = shop("archive", "list", "--json").ok().json
    assert {job["id"] for job in page["jobs"]} == set(two)
    assert shop("archive", "list", "--queue", "other", "--json").ok().json["jobs"] == []
    assert "send_mail" in shop("archive", "list").ok().out
    shown = shop("archive", "show", two[0]).ok().out
    assert "1 to ada" in shown
    assert shop("archive", "show", two[0], "--json").ok().json["payload"] == {"to": "ada"}
    shop("jobs", "show", two[0]).failed("not found", "onward archive list")
    kept = shop("jobs", "list", "--json").ok().json["jobs"][0]["id"]
    shop("archive", "show", kept).failed("is not in the archive: it is still live")


def test_archived_jobs_are_purged_and_nothing_else(shop: Cli, two: list[str]):  # P9
    shop("archive", "purge").usage_error("which jobs")
    assert shop("archive", "purge", two[0], "--dry-run").ok().out == "1 job would be purged\n"
    assert shop("archive", "purge", two[0]).ok().out == "1 job purged\n"
    shop("archive", "purge", two[0]).failed("is not in the archive")
    shop("archive", "purge", "--all").usage_error("1 job will be purged", "--yes")
    assert shop("archive", "purge", "--all", "--yes", "--json").ok().json["changed"] == 1
    assert shop("archive", "list", "--json").ok().json["jobs"] == []
    assert [job["type"] for job in shop("jobs", "list", "--json").ok().json["jobs"]] == ["broken"]


def test_archived_jobs_are_counted(two: list[str], on_store: OnStore):
    async def counts(app: App) -> list[Any]:
        return [await app.archive.count(), await app.archive.count(by="queue"), await app.archive.count(by="org_id")]

    assert on_store(counts) == [{"completed": 2}, {"mail": 2}, {"": 2}]
