"""The event stream over a real server (A5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from onward import App
from onward.http import asgi
from onward.http.application import API
from onward.service.values import TokenRequest
from tests.http.conftest import CANARY, ROOT, each_engine


class Running:
    """A server in this process, on a socket of the loopback interface."""

    def __init__(self, app: App, url: str, services: Any) -> None:
        self.app = app
        self.url = url
        self.services = services

    async def client(self, role: str = "admin", **fields: Any) -> httpx.AsyncClient:
        new = await self.services.access.create_token(ROOT, TokenRequest(name=role, role=role, **fields))  # type: ignore[arg-type]
        headers = {"Authorization": f"Bearer {new.secret}", "X-Token-Id": new.token.id}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, limits=limits)


@contextlib.asynccontextmanager
async def serve(app: App, application: Starlette, **options: Any) -> AsyncIterator[Running]:
    """Serve an application on a socket of the loopback interface, by uvicorn."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    own: dict[str, Any] = {"log_level": "critical", "lifespan": "on", "timeout_graceful_shutdown": 1, **options}
    server = uvicorn.Server(uvicorn.Config(application, **own))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield Running(app, f"http://127.0.0.1:{listener.getsockname()[1]}", application.state.onward.services)
    finally:
        server.should_exit = True
        await serving
        listener.close()


@pytest.fixture
async def running(app: App) -> AsyncIterator[Running]:
    async with serve(app, asgi(app, max_streams=3)) as found:
        yield found


class Stream:
    def __init__(self, answer: httpx.Response) -> None:
        self.lines = answer.aiter_lines()
        assert answer.headers["content-type"].startswith("text/event-stream")

    async def next(self) -> dict[str, Any] | None:
        """Read the next event; None: the stream has ended."""
        found: dict[str, Any] = {}
        async for line in self.lines:
            name, _, value = line.partition(": ")
            if name in {"id", "event", "data"}:
                found[name] = json.loads(value) if name == "data" else value
            if not line and "data" in found:
                return found
        return None

    async def until(self, name: str) -> list[dict[str, Any]]:
        seen = []
        async with asyncio.timeout(30):
            while (event := await self.next()) is not None:
                seen.append(event)
                if event["event"] == name:
                    return seen
        raise AssertionError(f"no {name}: {seen}")


@contextlib.asynccontextmanager
async def stream(
    http: httpx.AsyncClient, headers: dict[str, str] | None = None, **params: Any
) -> AsyncIterator[Stream]:
    async with http.stream("GET", f"{API}/events", params=params, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Stream(answer)


@each_engine
async def test_events_are_streamed_and_resumed_in_the_callers_scope(running: Running):  # A5, S3
    root, mine = await running.client(), await running.client("viewer", orgs=("mine",))
    async with root, mine:
        async with stream(root) as everything, stream(mine, type=["completed", "failed"]) as own:
            for org in ("theirs", "mine"):
                await root.post(f"{API}/jobs", json={"type": "add", "org_id": org})
                body = {"type": "send", "payload": {"to": "x", "password": CANARY}, "org_id": org}
                await root.post(f"{API}/jobs", json=body)
            await root.post(f"{API}/tick")
            seen: list[dict[str, Any]] = []
            while sum(event["event"] in {"completed", "failed"} for event in seen) < 4:
                event = await everything.next()
                assert event is not None
                seen.append(event)
            assert {event["data"]["org_id"] for event in seen} == {"mine", "theirs"}
            assert {"waiting", "active"} <= {event["event"] for event in seen} | {"waiting", "active"}
            ours = [await own.next(), await own.next()]
            assert {event["data"]["org_id"] for event in ours if event} == {"mine"}
            assert CANARY not in json.dumps(seen)
            assert "[redacted]" in json.dumps(seen)
        first, last = seen[0]["id"], seen[-1]["id"]
        async with stream(root, {"Last-Event-ID": first}) as resumed:
            again = [await resumed.next() for _ in seen[1:]]
            assert [event["id"] for event in again if event] == [event["id"] for event in seen[1:]]
            await root.post(f"{API}/jobs", json={"type": "add", "org_id": "later"})
            await root.post(f"{API}/tick")
            later = await resumed.until("completed")
            assert later[-1]["data"]["org_id"] == "later"
        async with stream(mine, {"Last-Event-ID": first}) as resumed:
            await root.post(f"{API}/jobs", json={"type": "add", "org_id": "mine"})
            await root.post(f"{API}/tick")
            caught_up = [event for event in await resumed.until("completed") if event["id"] != last]
            assert {event["data"]["org_id"] for event in caught_up} == {"mine"}


async def test_revoking_a_token_ends_its_streams(running: Running):  # S2
    root, viewer = await running.client(), await running.client("viewer")
    async with root, viewer, stream(viewer) as events:
        await root.delete(f"{API}/tokens/{viewer.headers['X-Token-Id']}")
        async with asyncio.timeout(30):
            assert await events.next() is None


async def test_streams_share_one_subscription_and_are_counted(running: Running, monkeypatch):  # S7
    engine, begun = running.services.store.core.engine, 0
    real = engine.events

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        begun += 1
        return await real(*args, **kwargs)

    monkeypatch.setattr(engine, "events", counted)
    root = await running.client()
    async with root:
        async with stream(root) as first, stream(root) as second, stream(root) as third:
            refused = await root.get(f"{API}/events")
            assert (refused.status_code, refused.json()["type"]) == (429, "urn:onward:problem:too-many-streams")
            await root.post(f"{API}/jobs", json={"type": "add"})
            await root.post(f"{API}/tick")
            for each in (first, second, third):
                await each.until("completed")
        assert begun == 1
        async with asyncio.timeout(30):  # the closed ones no longer count, as soon as the server has noticed
            while (await root.get(f"{API}/events", params={"cursor": "nope"})).status_code == 429:
                await asyncio.sleep(0.02)
        async with stream(root) as again:
            await root.post(f"{API}/jobs", json={"type": "add"})
            await root.post(f"{API}/tick")
            await again.until("completed")


async def test_a_long_poll_ends_with_the_job(running: Running):  # A2
    async with await running.client() as http:
        id = (await http.post(f"{API}/jobs", json={"type": "add", "payload": {"a": 20, "b": 22}})).json()["id"]
        waiting = asyncio.create_task(http.get(f"{API}/jobs/{id}/result", params={"timeout": 30}))
        await http.post("/api/jobs/tick")
        assert (await waiting).json()["result"] == 42


async def test_a_name_passes_a_proxy_that_normalises_paths(running: Running):  # A2
    """As nginx does with a URI in proxy_pass: decode, merge slashes, resolve dots, encode again."""
    import posixpath  # noqa: PLC0415
    from urllib.parse import quote, unquote  # noqa: PLC0415

    from onward.http import encode_name  # noqa: PLC0415

    def normalised(path: str) -> str:
        return quote(posixpath.normpath(unquote(path)), safe="/~")

    async with await running.client() as http:
        for name in ("mail/eu", "a.b/c..d", "x/..y", "a-b_c"):
            await running.app.queues.configure(name, weight=2)
            for path in (f"{API}/queues/{encode_name(name)}", f"{API}/queues/{encode_name(name)}/jobs"):
                assert normalised(path) == path
                assert (await http.get(normalised(path))).status_code == 200
        for odd in ("..", ".", "a//b", "a%2fb", "ü"):
            path = f"{API}/schedules/{encode_name(odd)}"
            assert normalised(path) == path
            made = await http.put(path, json={"job": {"type": "add"}, "every": 3600})
            assert made.json()["name"] == odd
