"""A page of another site, in a real browser with a session, changes nothing (S4); no name can be rebound (S1)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from onward.engine.access import AuditQuery
from onward.http.application import API, asgi
from onward.service.values import TokenRequest
from tests.http.conftest import ROOT, make_app
from tests.http.test_events_api import Running, serve
from tests.servers.chromium import chromium

CHANGES = [
    ("POST", "/jobs", '{"type": "add"}'),
    ("POST", "/jobs/bulk", '[{"type": "add"}]'),
    ("POST", "/queues/default/pause", ""),
    ("POST", "/jobs/cancel", '{"all": true}'),
    ("POST", "/tokens", '{"name": "evil", "role": "admin"}'),
    ("POST", "/tick", ""),
    ("GET", "/tick", ""),
    ("PATCH", "/queues/default", '{"weight": 7}'),
    ("PUT", "/schedules/evil", '{"job": {"type": "add"}, "every": 60}'),
    ("DELETE", "/jobs/{job}", ""),
    ("POST", "/jobs/{job}/cancel", ""),
    ("POST", "/jobs/{job}/reveal", ""),
    ("DELETE", "/session", ""),
]
TYPES = ("text/plain", "application/x-www-form-urlencoded", "application/json", "")

SEND = """
async ([method, url, body, type, mode]) => {
    const headers = type ? {"Content-Type": type} : {};
    const hasBody = body && method !== "GET";
    try {
        const answer = await fetch(url, {
            method, mode, credentials: "include", headers, body: hasBody ? body : undefined,
        });
        return [answer.type, answer.status, await answer.text()];
    } catch (error) {
        return ["refused", 0, ""];
    }
}
"""
FORM = """
([url, enctype, name, value]) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.name = "target" + Math.random();
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {method: "POST", action: url, enctype, target: frame.name});
    const input = document.createElement("input");
    Object.assign(input, {type: "hidden", name, value});
    form.append(input);
    document.body.append(form);
    frame.addEventListener("load", () => resolve(true));
    setTimeout(() => resolve(false), 2000);
    form.submit();
})
"""
LOAD = """
([url, tag]) => new Promise((resolve) => {
    const element = document.createElement(tag);
    for (const event of ["load", "error"]) element.addEventListener(event, () => resolve(event));
    setTimeout(() => resolve("timeout"), 2000);
    element[tag === "link" ? "href" : "src"] = url;
    if (tag === "link") element.rel = "stylesheet";
    document.body.append(element);
})
"""


@contextlib.asynccontextmanager
async def other_site() -> AsyncIterator[int]:
    """A site of somebody else: an empty page on another port."""

    async def page(_: Request) -> Response:
        return HTMLResponse("<!doctype html><title>other</title><body></body>")

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=[Route("/", page)]), log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        listener.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with serve(app, asgi(app, max_failures=10_000)) as running:
        yield running


async def state(server: Running) -> dict[str, Any]:
    """Everything that a request could have changed."""
    app, access = server.app, server.services.access
    records = await server.services.audit.list(ROOT, AuditQuery(), limit=200)
    return {
        "jobs": [(job.id, job.status) for job in (await app.jobs.list()).items],
        "queues": [(queue.name, queue.settings) for queue in await app.queues.list()],
        "schedules": [schedule.name for schedule in await app.schedules.list()],
        "tokens": [token.id for token in (await access.list_tokens(ROOT)).items],
        "records": [record.action for record in records.items],
    }


@pytest.mark.timeout(300)
async def test_a_page_of_another_site_changes_nothing(server: Running):  # S4
    port = int(server.url.rpartition(":")[2])
    new = await server.services.access.create_token(ROOT, TokenRequest(name="web", role="admin"))
    await server.app.queues.configure("default", weight=2)
    async with chromium() as browser, other_site() as other_port:
        context = await browser.new_context(bypass_csp=True)  # no answer of the API is a page, and none may fetch
        page = await context.new_page()
        # The page logs in as the dashboard does: same origin, and a cookie that no script can read.
        await page.goto(f"http://127.0.0.1:{port}/healthz")
        logged_in = await page.evaluate(
            "async ([url, token]) => (await fetch(url, {method: 'POST', headers: {'Content-Type': 'application/json'},"
            " body: JSON.stringify({token})})).status",
            [f"{API}/session", new.secret],
        )
        assert logged_in == 201
        assert await page.evaluate("document.cookie") == ""
        kind, status, text = await page.evaluate(SEND, ["POST", f"{API}/jobs", '{"type": "add"}', TYPES[2], "cors"])
        assert (kind, status) == ("basic", 201), text  # a page of ours may: the session works
        (job,) = [one.id for one in (await server.app.jobs.list()).items]
        before = await state(server)
        # Another port is another origin of the same site, to which the browser sends a SameSite=Strict cookie;
        # another host is another site.
        for origin in (f"http://127.0.0.1:{other_port}", f"http://localhost:{other_port}"):
            attacker = await context.new_page()
            await attacker.goto(f"{origin}/")
            for method, path, body in CHANGES:
                url = f"http://127.0.0.1:{port}{API}{path.format(job=job)}"
                for media_type in TYPES:
                    for mode in ("no-cors", "cors"):
                        kind, _, text = await attacker.evaluate(SEND, [method, url, body, media_type, mode])
                        assert (kind in {"opaque", "refused"}, text) == (True, ""), (method, path, media_type, mode)
            for path, enctype, name, value in (
                ("/jobs", "text/plain", '{"type": "add", "payload": {"a": ', "1}}"),
                ("/jobs", "application/x-www-form-urlencoded", "type", "add"),
                ("/jobs", "multipart/form-data", "type", "add"),
                ("/queues/default/pause", "text/plain", "", ""),
                ("/tick", "application/x-www-form-urlencoded", "", ""),
            ):
                await attacker.evaluate(FORM, [f"http://127.0.0.1:{port}{API}{path}", enctype, name, value])
            for tag in ("img", "script", "iframe", "link"):
                await attacker.evaluate(LOAD, [f"http://127.0.0.1:{port}{API}/tick", tag])
                await attacker.evaluate(LOAD, [f"http://127.0.0.1:{port}/api/jobs/tick", tag])
            # Nor is anything read: no answer has a header that would let another origin see it.
            assert await attacker.evaluate(SEND, ["GET", f"http://127.0.0.1:{port}{API}/jobs", "", "", "cors"]) == [
                "refused",
                0,
                "",
            ]
            await attacker.close()
        assert await state(server) == before
        # The session is still there: it was refused, not lost.
        assert (await page.evaluate(SEND, ["GET", f"{API}/session", "", "", "cors"]))[1] == 200
        await context.close()


@pytest.mark.timeout(300)
async def test_a_rebound_name_finds_no_server(server: Running):  # S1
    """As after DNS rebinding: the name of another site has this server's address, so that its page is of one origin."""
    port = int(server.url.rpartition(":")[2])
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{server.url}{API}/jobs", headers={"Host": f"evil.example:{port}"})
        assert (answer.status_code, answer.json()["type"]) == (421, "urn:onward:problem:unknown-host")
    async with chromium() as browser:
        context = await browser.new_context(bypass_csp=True)  # no answer of the API is a page, and none may fetch
        page = await context.new_page()
        # Every name below localhost is the loopback interface in a browser, and none that this server answers for.
        answer_of_page = await page.goto(f"http://evil.localhost:{port}/healthz")
        assert answer_of_page is not None
        assert answer_of_page.status == 421
        kind, status, _ = await page.evaluate(SEND, ["POST", f"{API}/jobs", '{"type": "add"}', TYPES[2], "cors"])
        assert (kind, status) == ("basic", 421)
        await context.close()
    assert sum((await server.app.jobs.count()).values()) == 0
