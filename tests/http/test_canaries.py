"""Planted secrets occur nowhere: logs, API as every role, audit, metrics, exports, event streams (S2, S5, S6)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from onward import App, JobContext
from onward.http import encode_name
from onward.http.application import API, asgi
from onward.http.serving import ServeOptions, uvicorn_options
from onward.worker.log_format import JsonFormatter, TextFormatter
from tests.http.conftest import ROOT
from tests.http.test_events_api import Running, serve, stream

CANARY = "canary-5c91-hunter2"
PAYLOAD = {
    "to": "x",
    "password": f"{CANARY}-a",
    "options": {"apiKey": f"{CANARY}-b", "list": [{"session_cookie": f"{CANARY}-c"}]},
    "iban": f"{CANARY}-d",
}


def make_app(url: str) -> App:
    app = App(url, redact=["iban"])

    @app.task(queue="mail", max_attempts=1)
    def send(context: JobContext, to: str, password: str, options: dict[str, Any], iban: str) -> None:
        context.log(f"logging in with {password}")
        context.set_progress(50, f"iban {iban}")
        raise RuntimeError(f"postgres://me:{CANARY}-e@db refused {password}, {options}, Bearer {CANARY}-f")

    @app.task(queue="mail")
    def echo(to: str, password: str, options: dict[str, Any], iban: str) -> dict[str, Any]:
        return {"text": f"{password} and {iban}", "secret": f"{CANARY}-g", "options": options}

    return app


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    options = {**uvicorn_options(ServeOptions()), "log_level": "debug", "timeout_graceful_shutdown": 1}
    async with serve(app, asgi(app, max_failures=10_000), **options) as found:
        yield found


async def plant(http: httpx.AsyncClient, secret: str) -> list[str]:
    """Send secrets by every way in, right ones and wrong ones, and return the ids of the jobs."""
    ids = []
    for task in ("send", "echo"):
        body = {"type": task, "payload": PAYLOAD, "org_id": "a", "dedupe": True}
        made = await http.post(f"{API}/jobs", json=body)
        assert made.status_code == 201, made.text
        ids.append(made.json()["id"])
    await http.put(f"{API}/schedules/nightly", json={"job": {"type": "echo", "payload": PAYLOAD}, "every": 3600})
    batch = {"jobs": [{"job": {"type": "echo", "payload": PAYLOAD}}]}
    assert (await http.post(f"{API}/batches/b", json=batch)).status_code == 201
    await http.patch(f"{API}/jobs/{ids[1]}", json={"payload": {**PAYLOAD, "to": "y"}})
    wrong = f"onw_01a1eec9-cf4f-789f-8591-48f3548fa230_{CANARY}-h"
    for method, path, options in (
        ("POST", "/jobs", {"json": {"type": "send", "payload": {**PAYLOAD, "nope": CANARY}}}),
        ("POST", "/jobs", {"content": b'{"type": "send", "payload": {"password": "' + CANARY.encode()}),
        ("POST", "/jobs", {"json": {"type": "send", "payload": {**PAYLOAD, "password": 5, "iban": [CANARY]}}}),
        ("POST", f"/jobs?token={CANARY}", {"json": {"type": "echo", "payload": PAYLOAD}}),
        ("GET", f"/jobs?access_token={secret}", {}),
        ("GET", f"/tokens/{secret}", {}),
        ("DELETE", f"/tokens/{secret}", {}),
        ("DELETE", f"/tokens/{wrong}", {}),
        ("GET", f"/{secret}", {}),
        ("POST", "/session", {"json": {"token": wrong}}),
        ("POST", "/session", {"json": {"code": f"{CANARY}-i"}}),
        ("GET", "/jobs", {"headers": {"Authorization": f"Bearer {wrong}"}}),
        ("GET", "/jobs", {"headers": {"Authorization": f"Basic {CANARY}"}}),
        ("GET", "/jobs", {"headers": {"Cookie": f"onward_session={CANARY}", "Authorization": ""}}),
    ):
        await http.request(method, API + path, **options)
    return ids


async def every_read(http: httpx.AsyncClient, values: dict[str, list[str]]) -> list[str]:
    """Ask every route that reads, and return the answers."""
    document = (await http.get(f"{API}/openapi.json")).json()
    answers: list[str] = []
    done = 0
    for path, methods in document["paths"].items():
        if "get" not in methods or path.endswith(("/events", "/tick")):
            continue
        for id in values["id"]:
            names = {"id": id, "queue": "mail", "name": values["name"][len(answers) % 2]}
            answer = await http.get(path.format(**{name: encode_name(value) for name, value in names.items()}))
            answers.append(f"{path}: {answer.text}")
            done += answer.status_code == 200
    assert done > 30
    for query in ("format=csv", "format=ndjson", "format=csv&status=failed&status=dead_letter"):
        answers.append((await http.get(f"{API}/jobs/export?{query}")).text)
    answers += [(await http.get(path)).text for path in ("/metrics", "/readyz", "/healthz")]
    return answers


@pytest.mark.timeout(300)
async def test_planted_secrets_occur_nowhere(
    running: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):  # S2, S5, S6
    caplog.set_level(logging.DEBUG)
    # uvicorn's own access log is off, by having no handler; pytest adds one to every logger of that kind.
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "handlers", [])
    root, viewer = await running.client(), await running.client("viewer")
    secret = root.headers["Authorization"].removeprefix("Bearer ")
    async with root, viewer, stream(viewer) as events:
        browser = httpx.AsyncClient(base_url=running.url, headers={"Origin": running.url}, timeout=60)
        async with browser:
            assert (await browser.post(f"{API}/session", json={"token": secret})).status_code == 201
            cookie = browser.cookies["onward_session"]
            assert (await browser.get(f"{API}/session")).status_code == 200
            ids = await plant(root, secret)
            for _ in range(3):
                await root.post(f"{API}/tick")
            values = {"id": ids, "name": ["nightly", "b"]}
            answers = [text for http in (viewer, root, browser) for text in await every_read(http, values)]
            missing = {"waiting", "active", "progress", "failed", "completed"}
            while missing:
                missing.discard((await next_event(events, answers))["event"])
            assert (await browser.delete(f"{API}/session")).status_code == 204
    shown = (await running.services.jobs.get(ROOT, ids[0])).payload
    assert shown["password"] == "[redacted]"
    forms = (JsonFormatter(), TextFormatter(), logging.Formatter("%(message)s %(args)s"))
    # The client of the test itself logs what it sends.
    records = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert sum(record.name == "onward.http.access" for record in records) > 100
    lines = [form.format(record) for record in records for form in forms]
    for planted in (CANARY, secret.split("_", 2)[2], cookie):
        assert [line for line in lines if planted in line] == []
        assert [text for text in answers if planted in text] == []


async def next_event(events: Any, answers: list[str]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        event = await events.next()
    assert event is not None
    answers.append(json.dumps(event))
    found: dict[str, Any] = event
    return found
