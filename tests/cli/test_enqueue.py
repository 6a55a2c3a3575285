from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


def payload_of(shop: Cli, id: str) -> object:
    return shop("jobs", "show", id, "--json").ok().json["payload"]


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        (['{"to": "ann", "count": 2}'], {"to": "ann", "count": 2}),
        (["to=ann", "count=2"], {"to": "ann", "count": 2}),
        (["to=7"], {"to": "7"}),
        (["to=a=b"], {"to": "a=b"}),
        (["to="], {"to": ""}),
        (['to="quoted"'], {"to": "quoted"}),
    ],
)
def test_arguments_are_read_as_the_task_wants_them(shop: Cli, arguments, payload):
    id = shop("enqueue", "send_mail", *arguments).ok().out.strip()
    assert payload_of(shop, id) == payload


def test_arguments_can_come_from_the_standard_input(shop: Cli):
    id = shop("enqueue", "send_mail", "-", input='{"to": "ann"}').ok().out.strip()
    assert payload_of(shop, id) == {"to": "ann"}


def test_the_answer_as_json_says_what_the_enqueue_did(shop: Cli):
    first = shop("enqueue", "send_mail", "to=ann", "--key", "order-7", "--json").ok().json
    assert first == {"id": first["id"], "queue": "mail", "enqueue_status": "inserted"}
    again = shop("enqueue", "send_mail", "to=bob", "--key", "order-7", "--json").ok().json
    assert again == {"id": first["id"], "queue": "mail", "enqueue_status": "same_key"}
    assert "there already" in shop("enqueue", "send_mail", "to=bob", "--key", "order-7").ok().err


def test_options_reach_the_job(shop: Cli):
    words = ("--queue", "other", "--org", "acme", "--priority", "5", "--delay", "1h", "--max-attempts", "2")
    id = shop("enqueue", "send_mail", "to=ann", *words, "--start-by", "2040-01-01T00:00+00:00").ok().out.strip()
    job = shop("jobs", "show", id, "--json").ok().json
    assert (job["queue"], job["org_id"], job["priority"], job["max_attempts"]) == ("other", "acme", 5, 2)
    assert (job["status"], job["start_by"]) == ("scheduled", "2040-01-01T00:00:00Z")
    at = shop("enqueue", "send_mail", "to=ann", "--at", "2040-02-03T04:05+00:00").ok().out.strip()
    assert shop("jobs", "show", at, "--json").ok().json["next_run_at"] == "2040-02-03T04:05:00Z"


def test_the_same_job_is_added_once_while_it_waits(shop: Cli):  # H5
    first = shop("enqueue", "send_mail", "to=ann", "--dedupe").ok().out
    assert shop("enqueue", "send_mail", "to=ann", "--dedupe").ok().out == first
    assert shop("enqueue", "send_mail", "to=bob", "--dedupe").ok().out != first


def test_a_job_nobody_serves_is_stored_with_a_warning(shop: Cli):
    result = shop("enqueue", "send_mail", "to=ann").ok()
    assert "no worker serves the queue mail" in result.err
    assert len(result.out.split()) == 1


def test_an_unknown_task_is_not_found_and_nothing_is_stored(shop: Cli):
    shop("enqueue", "send_mial", "to=ann").failed("did you mean 'send_mail'?")
    assert not shop("jobs", "list", "--json").ok().json["jobs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["send_mail"], "send_mail takes to: str, count: int = 1"),
        (["send_mail", "too=ann"], "did you mean 'to'?"),
        (["send_mail", "to=ann", "count=few"], "payload.count"),
        (["send_mail", '{"to": 7}'], "payload.to"),
        (["send_mail", '{"to": '], "no JSON object"),
        (["send_mail", "[1]"], "neither NAME=VALUE nor a JSON object"),
        (["send_mail", "ann"], "neither NAME=VALUE nor a JSON object"),
        (["send_mail", "to=ann", "to=bob"], "given twice"),
        (["render", "path=x"], "add --org ORG"),
        (["send_mail", "to=ann", "--delay", "1h", "--at", "2040-01-01"], "not both"),
        (["send_mail", "to=ann", "--priority", "-1"], "priority"),
        (["send_mail", "to=ann", "--queue", "Not A Queue"], "queue"),
        (["send_mail", "to=ann", "--timeout", "1s"], "--wait"),
        (["send_mail", "to=ann", "--at", "tomorrow"], "no moment"),
        ([], "TASK"),
    ],
)
def test_what_cannot_be_enqueued_is_refused_and_nothing_is_stored(shop: Cli, words, message):
    shop("enqueue", *words).usage_error(message)
    assert shop("jobs", "list", "--json").ok().json["jobs"] == []


def test_a_store_without_an_app_takes_any_task(cli: Cli):
    url = ("--url", "sqlite:///bare.db")
    id = cli("enqueue", "whatever", "a=1", "b=x", "--queue", "misc", *url).ok().out.strip()
    job = cli("jobs", "show", id, "--json", *url).ok().json
    assert (job["type"], job["queue"], job["payload"]) == ("whatever", "misc", {"a": 1, "b": "x"})
    cli("enqueue", "whatever", "--dedupe", *url).usage_error("--app")


def test_waiting_ends_with_the_time_given(shop: Cli):
    result = shop("enqueue", "send_mail", "to=ann", "--delay", "1h", "--wait", "--timeout", "50ms")
    result.failed("has not ended", "it goes on", "onward jobs show")
    assert result.out == ""
