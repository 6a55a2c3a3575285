"""The pure parts: search line, cron in words, trees, graphs, charts, shared reads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onward.batches.values import Dependency
from onward.dashboard import durations
from onward.dashboard.callers import scope_key
from onward.dashboard.charts import Series, chart, spark
from onward.dashboard.cron_words import words
from onward.dashboard.graph import draw
from onward.dashboard.reads import Reads
from onward.dashboard.search import parse
from onward.dashboard.series import RANGES, percentile, throughput
from onward.dashboard.site import _local
from onward.dashboard.tree import MAX_DEPTH, MAX_NODES, has_redacted, restored, tree
from onward.dashboard.views.access import _names
from onward.dashboard.wording import moment, number, short_number, span, visible
from onward.errors import InvalidValue
from onward.job import Job
from onward.lifecycle import JobStatus
from onward.metering import Usage
from onward.service.identity import of_user
from onward.service.values import JobQuery

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)


def test_a_search_line_becomes_a_filter():  # D1
    found = parse(
        'state:failed,dead queue:mail/* type:send_mail org:acme error:"timed out" after:2026-11-01 before:2h', now=NOW
    )
    assert found.query == JobQuery(
        status=(JobStatus.FAILED, JobStatus.DEAD_LETTER),
        queue=("mail/*",),
        type=("send_mail",),
        org_id="acme",
        error_contains="timed out",
        created_after=datetime(2026, 11, 1, tzinfo=UTC),
        created_before=NOW - timedelta(hours=2),
    )
    assert parse(found.text, now=NOW).query == found.query
    assert found.without("state", "error").text == "queue:mail/* type:send_mail org:acme after:2026-11-01 before:2h"
    assert parse("01a1eedc-8fd0").id == "01a1eedc-8fd0"
    assert parse("").query == JobQuery()


@pytest.mark.parametrize("line", ["bogus:1", "state:happy", "org:a org:b", "after:soon", "one two", "x" * 1001])
def test_a_search_line_that_is_wrong_names_what_is(line: str):
    with pytest.raises(InvalidValue):
        parse(line)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0 * * * *", "every hour"),
        ("15 * * * *", "at 15 minutes past every hour"),
        ("30 6 * * mon-fri", "at 06:30 on Monday to Friday"),
        ("0 3 1 * *", "at 03:00 on day 1"),
        ("0 9,17 * * *", "at 09:00 and 17:00"),
        ("0 0 1 jan,jul *", "at 00:00 on day 1 in January and July"),
        ("0 */2 * * *", "every 2 hours"),
        ("*/10 8-18 * * 1-5", "every 10 minutes, hours 08 to 18 on Monday to Friday"),
        ("0 3 * * 1#2", "0 3 * * 1#2"),
    ],
)
def test_cron_expressions_are_said_in_words(expression: str, said: str):
    assert words(expression) == said


def test_durations_are_read_as_they_are_written():
    for text, seconds in (("7d", 604800), ("1h30m", 5400), ("90", 90), ("0s", 0), ("2.5s", 2.5)):
        assert durations.read("x", text) == seconds
        assert durations.read("x", durations.write(seconds)) == seconds
    assert durations.read("x", " ") is None
    with pytest.raises(InvalidValue):
        durations.read("x", "soon")


def test_trees_are_bounded_and_redacted_values_are_restored():  # S6, S7
    large = tree([[0] * 100] * 100)
    assert sum(1 + len(child.children) for child in large.children) <= MAX_NODES + 2
    shown = {"a": "[redacted]", "b": [1, {"token": "[redacted]"}], "c": "new"}
    original = {"a": "secret", "b": [1, {"token": 7}], "c": "old"}
    assert has_redacted(shown)
    assert not has_redacted(original)
    old = {**shown, "c": "old"}
    assert restored(shown, original, old) == {"a": "secret", "b": [1, {"token": 7}], "c": "new"}


def test_a_redacted_part_of_a_text_is_restored_and_none_is_stored():  # S6
    original = {"url": "postgres://u:hunter2@h", "keys": ["x", "y"], "n": 1}
    shown = {"url": "postgres://u:[redacted]@h", "keys": ["[redacted]", "[redacted]"], "n": 1}
    assert restored({**shown, "n": True}, original, shown) == {**original, "n": True}
    assert restored({**shown, "n": True}, original, shown)["n"] is True
    for moved in (
        {**shown, "url": "postgres://v:[redacted]@h"},
        {**shown, "keys": ["[redacted]"]},
        {**original, "password": "[redacted]"},
        {**original, "[redacted]": 1},
    ):
        with pytest.raises(InvalidValue, match="payload"):
            restored(moved, original, shown)
    literal = {"note": "[redacted]"}
    assert restored({"note": "[redacted]", "a": 1}, literal, literal) == {"note": "[redacted]", "a": 1}


def test_a_value_that_is_nested_deep_is_shown_in_part():  # S7
    value: Any = "[redacted]"
    for _ in range(5000):
        value = [value]
    assert has_redacted(value)
    node, depth = tree(value), 0
    while node.children:
        (node,) = node.children
        depth += 1
    assert (depth, node.kind) == (MAX_DEPTH, "more")


def test_callers_share_reads_only_with_the_same_rights():  # S3
    assert scope_key(of_user("a", role="viewer")) == scope_key(of_user("b", role="viewer"))
    assert scope_key(of_user("a", role="viewer")) != scope_key(of_user("b", role="viewer", permissions=["enqueue"]))


def test_names_of_organisations_may_have_spaces():
    assert _names(" ACME Corp, Globex ,,") == ("ACME Corp", "Globex")
    assert _names(" , ") is None


def _job(id: str) -> Job:
    return Job(id=id, type=f"task-{id}", queue="q", status=JobStatus.PENDING, created_at=NOW, updated_at=NOW)


def test_a_flow_is_drawn_from_left_to_right_and_a_cycle_does_not_hang():
    jobs = [_job(id) for id in "abcd"]
    edges = [Dependency("b", "a"), Dependency("c", "a"), Dependency("d", "b"), Dependency("d", "c")]
    drawing = draw(jobs, edges, {id: f"/jobs/{id}" for id in "abcd"})
    assert drawing is not None
    places = {box.title: (box.x, box.y) for box in drawing.boxes}
    assert places["task-a"][0] < places["task-b"][0] == places["task-c"][0] < places["task-d"][0]
    assert len(set(places.values())) == 4
    assert len(drawing.arrows) == 4
    assert draw(jobs, [], {}) is None
    assert draw(jobs, [Dependency("a", "b"), Dependency("b", "a")], dict.fromkeys("abcd", "")) is not None


def test_charts_show_what_usage_says():
    over = RANGES[0]
    rows = [
        Usage(at=NOW - timedelta(minutes=3), outcome="completed", runs=10, queue="q"),
        Usage(at=NOW - timedelta(minutes=3), outcome="failed", runs=2, queue="q"),
        Usage(at=NOW - timedelta(hours=3), outcome="completed", runs=999, queue="q"),
    ]
    drawn = throughput(rows, over, NOW)
    assert "at most 12" in drawn.summary
    assert "failed runs: at most 2" in drawn.summary
    assert not drawn.is_empty
    half_a_minute = [Usage(at=NOW, outcome="completed", runs=10, queue="q")]
    assert "at most 20" in throughput(half_a_minute, over, NOW + timedelta(seconds=30)).summary
    assert chart("x", [Series(name="a", values=(0.0, 0.0))], start=NOW, step=over.step).is_empty
    assert spark([0, 0, 0]) is None
    assert percentile([0, 95, 5] + [0] * 8, 0.95) == 0.05
    assert percentile([0] * 10 + [3], 0.95) is None


def test_numbers_and_times_are_written_for_people():
    assert number(1234567) == "1\u00a0234\u00a0567"
    assert short_number(1500) == "1.5k"
    assert span(0.0123) == "12\u00a0ms"
    shown = moment(NOW - timedelta(minutes=3), NOW)
    assert shown is not None
    assert (shown.relative, shown.iso) == ("3\u00a0min\u00a0ago", "2026-11-18T11:57:00Z")
    assert visible("a\x1b[31mb\u202ec\n") == "a\\u001b[31mb\\u202ec\n"


@pytest.mark.parametrize(
    "path", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:x", "", "/a\nb"]
)
def test_a_login_leads_to_no_other_site(path: str):  # S4
    assert _local(path) == "/"


async def test_viewers_share_a_read_and_a_change_makes_them_read_again(monkeypatch: pytest.MonkeyPatch):  # D2
    monkeypatch.setattr("onward.dashboard.reads._CHEAP", float("inf"))  # a loaded machine makes any read slow
    reads, calls = Reads(), 0
    gate = asyncio.Event()

    async def read() -> int:
        nonlocal calls
        calls += 1
        await gate.wait()
        return calls

    first = [asyncio.create_task(reads.get("key", read, fresh_for=60)) for _ in range(50)]
    assert await reads.soon("key", read, fresh_for=60, wait=0.01) is None
    gate.set()
    assert set(await asyncio.gather(*first)) == {1}
    assert await reads.get("key", read, fresh_for=60) == 1
    reads.expire()
    assert await reads.get("key", read, fresh_for=60) == 2


async def test_a_change_makes_no_second_read_beside_one_under_way_and_forgets_no_cost(
    monkeypatch: pytest.MonkeyPatch,
):  # D2
    monkeypatch.setattr("onward.dashboard.reads._CHEAP", float("inf"))
    reads, calls, under_way, most = Reads(), 0, 0, 0
    begun, gate = asyncio.Event(), asyncio.Event()

    async def read() -> int:
        nonlocal calls, under_way, most
        calls, under_way = calls + 1, under_way + 1
        most = max(most, under_way)
        number = calls
        begun.set()
        await gate.wait()
        under_way -= 1
        return number

    before = asyncio.create_task(reads.get("key", read, fresh_for=60))
    await begun.wait()
    reads.expire()
    after = asyncio.create_task(reads.get("key", read, fresh_for=60))
    await asyncio.sleep(0)
    gate.set()
    assert (await before, await after, most) == (1, 2, 1)
    monkeypatch.setattr("onward.dashboard.reads._CHEAP", 0.0)
    monkeypatch.setattr("onward.dashboard.reads._COST", 1e12)
    reads.expire()
    assert await reads.get("key", read, fresh_for=0) == 2
