from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest

from onward import App
from onward.batches.values import Dependency
from onward.cli import graph
from onward.job import Job
from onward.lifecycle import JobStatus
from tests.cli.conftest import Cli


@pytest.fixture
def some(shop: Cli, on_store: Callable[[Callable[[App], Awaitable[None]]], None]) -> Cli:
    """A shop with a flow of which a part has run, and a batch in a queue of its own."""

    async def fill(app: App) -> None:
        @app.task(queue="mail")
        async def send_mail(to: str) -> str:
            return to

        flow = app.flow("letters")
        first = flow.add(send_mail.using(priority=1).job(to="ann"))
        others = [flow.add(send_mail.job(to=name), after=first) for name in ("bob", "cy")]
        flow.add(send_mail.job(to="dan"), after=others)
        await flow.start()
        await app.tick(limit=1)
        await app.batch("cards", queue="cards").add([send_mail.job(to="eve")])

    on_store(fill)
    return shop


def test_batches_are_listed_with_how_they_stand(some: Cli):
    lines = some("batches", "list").ok().out.splitlines()
    assert lines[0].split() == ["batch", "status", "progress", "total", "completed", "failed", "cancelled", "age"]
    assert lines[1].split()[:5] == ["cards", "open", "0", "%", "1"]
    assert lines[2].split()[:6] == ["letters", "running", "25", "%", "4", "1"]
    (found,) = some("batches", "show", "letters", "--json").ok().json["batches"]
    assert (found["total"], found["completed"], found["progress"]) == (4, 1, 25)


def test_jobs_are_listed_by_their_batch(some: Cli):
    found = some("jobs", "list", "--batch", "letters", "--json").ok().json["jobs"]
    assert len(found) == 4
    assert "letters" in some("jobs", "show", found[0]["id"]).ok().out


def test_no_batches_are_no_error(shop: Cli):
    shop("enqueue", "send_mail", "to=ann").ok()
    assert "no batches yet" in shop("batches", "list").ok().err
    assert shop("batches", "list", "--json").ok().json == {"batches": []}


def test_a_batch_is_paused_resumed_cancelled_and_deleted(some: Cli):
    some("batches", "pause", "cards").ok()
    assert "paused" in some("queues", "list").ok().out
    some("batches", "resume", "cards").ok()
    assert "paused" not in some("queues", "list").ok().out
    some("batches", "pause", "letters").failed("has no queue of its own")
    some("batches", "delete", "cards", "--yes").failed("has not finished")
    some("batches", "cancel", "cards").usage_error("1 job of the batch cards will be cancelled", "--yes")
    assert "1 job of cards cancelled" in some("batches", "cancel", "cards", "--yes").ok().err
    some("batches", "delete", "cards", "--yes").ok()
    assert len(some("batches", "list", "--json").ok().json["batches"]) == 1


@pytest.mark.parametrize("verb", [("batches", "show"), ("batches", "cancel"), ("batches", "graph")])
def test_an_unknown_batch_is_answered_with_the_nearest(some: Cli, verb):
    some(*verb, "lettres").failed("there is no batch 'lettres'", "did you mean 'letters'?")


def test_a_flow_is_drawn_in_the_terminal(some: Cli):
    lines = some("batches", "graph", "letters").ok().out.splitlines()
    ids = [re.findall(r" ([0-9a-f-]{36})\b", line) for line in lines]
    for (each,) in ids:
        some("jobs", "show", each).ok()  # a command takes what is shown
    assert [re.sub(r" [0-9a-f-]{36}\b| …[0-9a-f]{6}\b", "", line) for line in lines] == [
        "✓ send_mail  completed",
        "├─ ● send_mail  pending",
        "└─ ● send_mail  pending",
        "   └─ ○ send_mail  also after send_mail  blocked",
    ]


def test_a_flow_is_drawn_as_mermaid(some: Cli):
    lines = some("batches", "graph", "letters", "--as", "mermaid").ok().out.splitlines()
    assert lines[0] == "flowchart LR"
    assert sum("-->" in line for line in lines) == 4
    assert '  j0["send_mail<br/>completed"]:::completed' in lines


def test_a_flow_is_drawn_as_svg(some: Cli):
    svg = ET.fromstring(some("batches", "graph", "letters", "--as", "svg").ok().out)
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}path")) == 4
    places = [box.attrib["transform"] for box in svg.findall(f"{space}g")]
    assert len(set(places)) == 4


def test_a_flow_is_told_as_json(some: Cli):
    message = some("batches", "graph", "letters", "--json").ok().json
    assert (len(message["jobs"]), len(message["dependencies"]), message["batch"]["name"]) == (4, 4, "letters")
    first = message["jobs"][0]["id"] if message["jobs"][0]["status"] == "completed" else message["jobs"][-1]["id"]
    assert sum(one["depends_on"] == first for one in message["dependencies"]) == 2
    assert all(one["job"] != first for one in message["dependencies"])


def job(job_id: str, type: str = "t") -> Job:
    now = datetime.now(UTC)
    return Job(id=job_id, type=type, queue="q", status=JobStatus.PENDING, created_at=now, updated_at=now)


def test_a_chain_of_thousands_is_drawn_and_links_to_what_is_gone_are_left_out():
    jobs = [job(f"{number:06}") for number in range(3000)]
    dependencies = [Dependency(f"{number + 1:06}", f"{number:06}") for number in range(2999)]
    dependencies.append(Dependency("000000", "gone"))
    plan = graph.graph_of(list(reversed(jobs)), dependencies)
    assert [one.id for one in plan.jobs] == [one.id for one in jobs]
    assert len(graph.lines_of(plan)) == 3000


def test_names_of_strangers_cannot_break_a_drawing():
    plan = graph.graph_of([job("000001", '<b>"x"</b>')], [])
    assert "<b>" not in graph.svg_of(plan)
    assert '"x"' not in graph.mermaid_of(plan).replace('["', "").replace('"]', "")
