from __future__ import annotations

from pathlib import Path

import pytest

from onward import App, NewJob
from tests.cli.conftest import Cli


@pytest.fixture
def three(shop: Cli) -> list[str]:
    """Three jobs: one completed, one failed, one that waits. Their ids."""
    done = shop("enqueue", "send_mail", "to=ann").ok().out.strip()
    bad = shop("enqueue", "broken").ok().out.strip()
    shop("tick").ok()
    waits = shop("enqueue", "send_mail", "to=bob", "--delay", "1h", "--org", "acme").ok().out.strip()
    return [done, bad, waits]


def test_jobs_are_listed_newest_first(shop: Cli, three):
    result = shop("jobs", "list").ok()
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == three[::-1]
    assert "\x1b" not in result.out
    assert "scheduled" in lines[1]
    assert "due in" in lines[1]
    assert lines[0].split() == ["id", "type", "queue", "status", "attempts", "age", "details"]
    assert "--cursor " in shop("jobs", "list", "-n", "1").ok().err


def test_control_characters_of_strangers_do_not_reach_the_terminal(shop: Cli, three):
    for words in (("jobs", "list"), ("jobs", "show", three[1])):
        result = shop(*words).ok()
        assert "\x1b" not in result.out
        assert "\\x1b[31mcannot work" in result.out


def test_a_list_as_json_has_jobs_and_a_cursor(shop: Cli, three):
    page = shop("jobs", "list", "--json", "-n", "2").ok().json
    assert [job["id"] for job in page["jobs"]] == [three[2], three[1]]
    assert page["jobs"][1]["status"] == "failed"
    assert page["jobs"][0]["org_id"] == "acme"
    rest = shop("jobs", "list", "--json", "--cursor", page["next_cursor"]).ok().json
    assert [job["id"] for job in rest["jobs"]] == [three[0]]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (("--status", "failed"), [1]),
        (("--status", "failed,completed"), [1, 0]),
        (("--status", "failed, completed", "--status", "scheduled"), [2, 1, 0]),
        (("-s", "failed", "-s", "completed"), [1, 0]),
        (("--queue", "mail"), [2, 0]),
        (("--type", "broken"), [1]),
        (("--org", "acme"), [2]),
        (("--error", "CANNOT"), [1]),
        (("--newer-than", "1h"), [2, 1, 0]),
        (("--older-than", "1h"), []),
    ],
)
def test_jobs_are_listed_by_filter(shop: Cli, three, filter, expected):
    page = shop("jobs", "list", "--json", *filter).ok().json
    assert [job["id"] for job in page["jobs"]] == [three[at] for at in expected]


def test_no_jobs_are_no_error(shop: Cli):
    result = shop("jobs", "list").ok()
    assert result.out == ""
    assert "no jobs" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--status", "runing"), "did you mean 'running'?"),
        (("--older-than", "soon"), "no duration"),
        (("--queue", "Not A Queue"), "must be a queue name"),
        (("--limit", "0"), "--limit"),
        (("--cursor", "x"), "cursor"),
        (("--status", ","), "names no status"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(shop: Cli, words, message):
    shop("jobs", "list", *words).usage_error(message)


def test_a_job_is_shown_with_its_log_and_errors(shop: Cli):
    id = shop("enqueue", "render", "path=x", "--org", "acme").ok().out.strip()
    shop("tick").ok()
    result = shop("jobs", "show", id).ok()
    for word in ("completed", "video/acme", '{"path":"x"}', '{"frames":7}', "first line", "50 % half-way"):
        assert word in result.out
    job = shop("jobs", "show", id, "--json").ok().json
    assert job["result"] == {"frames": 7}
    assert [line["line"] for line in job["log"]] == ["first line"]


def test_a_job_is_found_by_queue_and_id_too(shop: Cli, three):
    assert shop("jobs", "show", f"mail:{three[0]}", "--json").ok().json["id"] == three[0]
    shop("jobs", "show", f"default:{three[0]}").failed("not found")


def test_a_job_that_is_not_there_is_told_with_the_next_command(shop: Cli):
    shop("jobs", "show", "nope").failed("job nope not found", "try: onward jobs list")


def test_a_job_is_cancelled_by_id(shop: Cli, three):
    assert "1 job cancelled" in shop("jobs", "cancel", three[2], "--reason", "changed my mind").ok().out
    job = shop("jobs", "show", three[2], "--json").ok().json
    assert (job["status"], job["last_error"]) == ("cancelled", "changed my mind")


def test_what_cannot_be_done_to_a_job_is_said(shop: Cli, three):
    shop("jobs", "cancel", three[0]).failed("is completed", "it stays as it is", f"onward jobs show mail:{three[0]}")
    result = shop("jobs", "cancel", three[0], three[2], "--json")
    assert result.code == 1
    assert result.json == {
        "action": "cancel",
        "changed": 1,
        "jobs": [{"queue": "mail", "id": three[2], "before": "scheduled"}],
    }


def test_a_failed_job_is_replayed_and_a_finished_one_deleted(shop: Cli, three):
    assert shop("jobs", "replay", three[1], "--json").ok().json["changed"] == 1
    assert shop("jobs", "show", three[1], "--json").ok().json["status"] == "pending"
    shop("jobs", "delete", three[0]).ok()
    shop("jobs", "show", three[0]).failed("not found")


def test_nothing_is_done_to_many_without_a_yes(shop: Cli, three, on_store):
    """Nobody can be asked: the standard input is no terminal."""
    shop("jobs", "delete", "--all").usage_error("3 jobs will be deleted", "--yes")
    assert on_store(_count) == 3
    result = shop("jobs", "delete", "--all", "--dry-run").ok()
    assert result.out == "3 jobs would be deleted\n"
    assert on_store(_count) == 3
    assert shop("jobs", "delete", "--all", "--yes").ok().out == "3 jobs deleted\n"
    assert on_store(_count) == 0


async def _count(app: App) -> int:
    return sum((await app.jobs.count()).values())


def test_a_bulk_verb_counts_only_what_it_can_move(shop: Cli, three):
    assert shop("jobs", "cancel", "--queue", "*", "--dry-run", "--json").ok().json["matching"] == 1
    assert shop("jobs", "replay", "--status", "completed", "--yes").ok().out == "no job to be replayed\n"


def test_more_jobs_than_one_batch_are_all_moved(shop: Cli, on_store):
    async def fill(app: App) -> None:
        await app.enqueue_many([NewJob(type="bulk") for _ in range(2500)])

    on_store(fill)
    assert shop("jobs", "cancel", "--type", "bulk", "--yes").ok().out == "2 500 jobs cancelled\n"


@pytest.mark.parametrize("verb", ["cancel", "replay", "delete"])
def test_a_verb_needs_to_know_which_jobs(shop: Cli, verb):
    shop("jobs", verb).usage_error("which jobs", "--all")
    shop("jobs", verb, "some-id", "--queue", "mail").usage_error("not both")
    shop("jobs", verb, "nope").failed("job nope not found")


def test_a_database_that_is_not_there_is_not_made_by_looking(cli: Cli, workdir: Path):
    cli("jobs", "list", "--url", "sqlite:///typo.db").unreachable("there is no database", "onward migrate")
    assert not (workdir / "typo.db").exists()


def test_a_job_is_named_by_any_prefix_that_only_one_has(shop: Cli, three):  # O2
    whole = three[2]
    shared = next(length for length in range(len(whole), 0, -1) if any(o.startswith(whole[:length]) for o in three[:2]))
    unique = whole[: shared + 1]
    for words in (("jobs", "show"), ("explain",), ("jobs", "cancel", "--dry-run")):
        assert shop(*words, unique).ok().out
        assert shop(*words, f"mail:{unique}").ok().out
    shop("jobs", "cancel", whole[:shared]).usage_error("names several jobs", f"mail:{whole}")
    shop("jobs", "cancel", "default:" + unique).failed("not found")
    shop("jobs", "show", "ffff").failed("not found")
    assert shop("jobs", "cancel", unique).ok().out == "1 job cancelled\n"


def test_a_prefix_is_not_compared_with_ever_so_many_jobs(shop: Cli, three, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onward.cli.bulk._PAGE", 1)
    monkeypatch.setattr("onward.cli.bulk._MAX_COMPARED", 2)
    shop("jobs", "show", "f").usage_error("more than 2 jobs", "give the whole id")


def test_one_word_lists_all_that_ended_in_an_error(shop: Cli):  # O8
    for task in ("broken", "doomed", "send_mail"):
        shop("enqueue", task, *(["to=ann"] if task == "send_mail" else [])).ok()
    shop("tick").ok()
    listed = shop("jobs", "list", "--status", "unsuccessful", "--json").ok().json["jobs"]
    assert {job["type"]: job["status"] for job in listed} == {"broken": "failed", "doomed": "dead_letter"}
    both = shop("jobs", "list", "--status", "failed,dead_letter", "--json").ok().json["jobs"]
    assert both == listed
    for words, other in (
        (("jobs", "list", "--status", "failed"), "1 dead letter"),
        (("jobs", "list", "--status", "dead_letter"), "1 failed job"),
        (("dead", "list"), "1 failed job"),
    ):
        said = shop(*words).ok().err
        assert f"not listed: {other}" in said
        assert "--status unsuccessful" in said
    for words in (("jobs", "list"), ("jobs", "list", "--status", "unsuccessful"), ("dead", "list", "--queue", "mail")):
        assert "not listed" not in shop(*words).ok().err
    assert shop("jobs", "replay", "--status", "unsuccessful", "--yes", "--json").ok().json["changed"] == 2


@pytest.mark.parametrize("group", ["jobs", "queues", "schedules", "batches", "dead", "archive", "tokens"])
def test_a_group_alone_lists(shop: Cli, group: str):
    shop("enqueue", "send_mail", "to=ann").ok()
    assert shop(group).ok().out.splitlines()[:1] == shop(group, "list").ok().out.splitlines()[:1]
    assert shop(group, "--json").ok().json == shop(group, "list", "--json").ok().json
    shop(group, "--json", "list").usage_error("the options are before list")
