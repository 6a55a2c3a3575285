"""The dashboard's pages as plain HTTP: sizes of forms, permissions, and what a refused form changes (S7, D2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from onward import App
from onward.core import core_of
from onward.dashboard import site
from onward.dashboard.live import Streams
from onward.dashboard.tree import tree
from onward.errors import StoreUnavailable
from onward.http.application import Server
from onward.http.problems import HttpError
from onward.http.routes import events
from onward.service.identity import Identity
from tests.http.conftest import ROOT, Client

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
KIB = 1024


@pytest.mark.parametrize("path", ["/login", "/theme"])
async def test_a_large_form_of_an_unknown_caller_is_refused(client: Client, path: str):  # S7
    http = await client(None)
    small = await http.post(path, content=b"x=" + b"a" * (15 * KIB), headers=FORM)
    assert small.status_code == 400
    assert (await http.post(path, content=b"x=" + b"a" * (17 * KIB), headers=FORM)).status_code == 413


@pytest.mark.parametrize(("path", "limit"), [("/queues/default", 16), ("/tokens", 16), ("/jobs", 256), ("/dead", 256)])
async def test_a_form_without_a_payload_has_a_small_limit(client: Client, path: str, limit: int):  # S7
    http = await client("admin")
    for size, is_too_large in ((limit - 1, False), (limit + 1, True)):
        answer = await http.post(path, content=b"x=" + b"a" * (size * KIB), headers=FORM)
        assert (answer.status_code == 413) is is_too_large


async def test_a_form_with_a_payload_is_read_with_the_permission_only_and_parsed_in_a_thread(
    app: App, client: Client, monkeypatch: pytest.MonkeyPatch
):  # S7
    job = await app.tasks["add"].enqueue(a=1)
    parsed: list[bool] = []
    parse = site._parse_form

    def spy(data: bytes) -> list[tuple[str, str]]:
        parsed.append(threading.current_thread() is threading.main_thread())
        return parse(data)

    monkeypatch.setattr(site, "_parse_form", spy)
    body = b"payload=%7B%22a%22%3A2%7D&pad=" + b"a" * (300 * KIB)
    for path in (f"/jobs/{job.id}/edit", f"/jobs/{job.id}/copy", "/schedules/new", "/schedules/nightly/edit"):
        assert (await (await client("viewer")).post(path, content=body, headers=FORM)).status_code == 403
    assert parsed == []
    http = await client("admin")
    assert (await http.post(f"/jobs/{job.id}/edit", content=body, headers=FORM)).status_code == 303
    assert parsed == [False]
    assert (await app.jobs.get(job.ref)).payload == {"a": 2}
    limit = core_of(app).max_payload * 3 // 2 + 64 * KIB
    too_large = await http.post(f"/jobs/{job.id}/edit", headers={**FORM, "Content-Length": str(limit + 1)})
    assert too_large.status_code == 413


async def test_the_answer_of_a_form_does_not_reload_itself(client: Client):
    http = await client("admin")
    assert 'data-live="' in (await http.get("/jobs/missing")).text
    failed = await http.post("/jobs/missing/replay", headers=FORM)
    assert failed.status_code == 404
    assert 'data-live="' not in failed.text


async def test_only_a_change_that_was_made_expires_shared_reads(
    app: App, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
):  # D2
    job = await app.tasks["add"].enqueue()
    expired: list[Any] = []
    monkeypatch.setattr(server.dashboard.reads, "expire", lambda: expired.append(1))
    http = await client("admin")
    for path, status in (
        ("/jobs/missing/replay", 404),
        (f"/jobs/{job.id}/cancel", 200),
        (f"/jobs/{job.id}/edit", 400),
        ("/tokens", 400),
    ):
        answer = await http.post(path, content=b"priority=high", headers=FORM)
        assert (path, answer.status_code, expired) == (path, status, [])
    assert (await http.post(f"/jobs/{job.id}/cancel", content=b"confirmed=1", headers=FORM)).status_code == 303
    assert expired == [1]


async def test_the_way_back_is_a_page_of_this_server(client: Client):
    http = await client("admin")
    for referrer, back in (
        ("http://localhost/queues", 'href="/queues"'),
        ("http://localhost//evil.example", 'href="/"'),
    ):
        page = (await http.post("/jobs/missing/replay", headers={**FORM, "Referer": referrer})).text
        assert back in page
        assert "evil" not in page


@pytest.mark.parametrize(("path", "kind"), [("/jobs", "counts"), ("/dead", "dead")])
async def test_searches_by_age_share_their_counts(server: Server, client: Client, path: str, kind: str):  # D2
    http = await client("admin")
    for _ in range(3):
        assert (await http.get(path, params={"q": "after:2h"})).status_code == 200
    assert len([key for key in server.dashboard.reads._known if isinstance(key, tuple) and key[0] == kind]) == 1


async def test_a_payload_that_is_nested_deep_is_a_page(server: Server):  # S7
    value: Any = 1
    for _ in range(900):
        value = {"a": value}
    parts = server.dashboard._templates.get_template("parts.html").module
    assert "nested deeper" in parts.node(tree(value))  # type: ignore[attr-defined]


async def test_a_stream_ends_when_the_store_is_away(server: Server, monkeypatch: pytest.MonkeyPatch):  # D2
    async def away(identity: Identity) -> bool:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(server.services.access, "is_valid", away)
    monkeypatch.setattr("onward.dashboard.live._TURN", 0.01)
    assert [message["type"] for message in await live_messages(server)][-1] == "http.response.body"


async def test_a_stream_ends_so_that_another_authority_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
):  # S2
    monkeypatch.setattr("onward.dashboard.live._TURN", 0.01)
    monkeypatch.setattr("onward.dashboard.live.UNCHECKED", 0.0)
    monkeypatch.setattr("onward.http.routes.events.UNCHECKED", 0.0)
    monkeypatch.setattr("onward.http.routes.events._VALID", 0.0)
    assert await live_messages(server)
    sent: list[Any] = []

    async def silence() -> AsyncGenerator[None, None]:
        while True:
            await asyncio.sleep(0)
            yield None

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(60):
        await events._send(server.services, ROOT, silence(), receive, send)
    assert sent[-1]["more_body"] is False


def test_streams_are_counted_by_token(server: Server):  # S7
    streams = Streams(server.services, most=1)
    one = msgspec.structs.replace(ROOT, token_id="t", session="a")
    streams.enter(one)
    with pytest.raises(HttpError, match="too many"):
        streams.enter(msgspec.structs.replace(one, session="b"))
    streams.enter(msgspec.structs.replace(one, token_id="u"))


async def test_a_value_that_a_form_sends_back_is_unchanged(app: App, client: Client):  # X6
    job = await app.tasks["add"].enqueue()
    http = await client("admin")
    asked = await http.post(f"/jobs/{job.id}/cancel", data={"reason": "a\u202eb"}, headers=FORM)
    assert 'name="reason" value="a\u202eb"' in asked.text
    page = (await http.get("/jobs", params={"q": "error:a\u202e<b"})).text
    assert 'name="q" value="error:a\u202e&lt;b"' in page
    assert "error:a\\u202e&lt;b" in page  # as text


async def live_messages(server: Server) -> list[Any]:
    """Open a stream of the dashboard, and return what was sent when it has ended."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    dashboard = server.dashboard
    async with asyncio.timeout(60):
        await dashboard._streams.send(ROOT, dashboard.pulses.of(ROOT), (), receive, send, {})
    assert sent[-1]["more_body"] is False
    return sent
