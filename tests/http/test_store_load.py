"""How often a server asks its store, as counts of SQL statements ("Must reach" of the API)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward.http.application import API, asgi
from onward.http.serving import JoiningTransport, ServeOptions, make_application, uvicorn_options
from tests.http.conftest import make_app
from tests.http.test_events_api import Running, Stream, serve, stream

STREAMS = 200


class Statements:
    """Counts what this process asks of SQLite."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def of(self, word: str) -> int:
        return sum(word in text for text in self.texts)


@pytest.fixture
def statements(monkeypatch) -> Statements:
    found, connect = Statements(), sqlite3.connect

    def counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(found.texts.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counted)
    return found


@contextlib.asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Running]:
    app = make_app(f"sqlite:///{folder / 'jobs.db'}")
    async with serve(app, asgi(app, **options)) as found:
        yield found


async def receive(http: Any, opened: list[Stream], statements: Statements, jobs: int) -> tuple[int, int, int]:
    """Have every stream receive the events of some jobs; count all statements, reads of events and of tokens."""
    statements.texts.clear()
    for _ in range(jobs):
        await http.post(f"{API}/jobs", json={"type": "add"})
    for each in opened:
        for _ in range(jobs):
            async with asyncio.timeout(60):
                assert await each.next() is not None
    return len(statements.texts), statements.of("from onward_event"), statements.of("onward_token")


@pytest.mark.timeout(300)
async def test_many_event_streams_ask_the_store_no_more_than_one(tmp_path: Path, statements: Statements):  # A5
    async with (
        running(tmp_path, max_streams=STREAMS) as server,
        await server.client() as http,
        contextlib.AsyncExitStack() as stack,
    ):
        one = await stack.enter_async_context(stream(http, type=["waiting"]))
        alone = await receive(http, [one], statements, 20)
        others = [await stack.enter_async_context(stream(http, type=["waiting"])) for _ in range(STREAMS - 1)]
        together = await receive(http, [one, *others], statements, 20)
    # An event is read once, however many receive it. A slow machine may poll and look at the token more often.
    assert alone[1] > 0
    assert together[1] <= alone[1] + 60
    assert together[2] <= alone[2] + 60
    assert together[0] <= 2 * alone[0] + 200, "one more statement a stream would be 4 000"


async def test_an_idle_server_does_not_ask_the_store(tmp_path: Path, statements: Statements):  # X1
    async with running(tmp_path) as server, await server.client() as http:
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get(f"{API}/jobs")).status_code == 200
        await asyncio.sleep(0)
        statements.texts.clear()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(2)  # the time in which it is to ask nothing
        seconds = asyncio.get_running_loop().time() - began
        assert len(statements.texts) < 2 * seconds


async def test_an_answer_is_sent_by_one_call_and_an_event_is_not_held_back(tmp_path: Path, monkeypatch):
    sent: list[bytes] = []
    send = JoiningTransport.send

    def counted(self: JoiningTransport) -> None:
        if self._parts:
            sent.append(b"".join(self._parts))
        send(self)

    monkeypatch.setattr(JoiningTransport, "send", counted)
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    options = ServeOptions()
    own = {**uvicorn_options(options), "timeout_graceful_shutdown": 1}
    async with serve(app, make_application(app, options), **own) as server, await server.client() as http:
        answer = await http.post(f"{API}/jobs", json={"type": "add"})
        assert answer.status_code == 201
        (whole,) = sent
        assert whole.startswith(b"HTTP/1.1 201")
        assert whole.endswith(answer.content)
        async with stream(http, type=["waiting"]) as events:
            await http.post(f"{API}/jobs", json={"type": "add"})
            async with asyncio.timeout(60):
                assert (await events.next()) is not None
