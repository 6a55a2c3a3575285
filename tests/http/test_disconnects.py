"""Clients that go away while their request runs: exactly one audit record and one change each (S5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from onward.engine.access import AuditQuery
from onward.http.application import API, asgi
from onward.http.serving import ServeOptions, uvicorn_options
from onward.service.services import Services
from tests.http.conftest import ROOT, make_app
from tests.http.test_events_api import serve

CLIENTS = 20
BODY = b'{"type": "add"}'


async def test_clients_that_go_away_leave_one_record_and_one_job_each(tmp_path: Path):  # S5
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    options = {**uvicorn_options(ServeOptions()), "log_level": "critical", "timeout_graceful_shutdown": 1}
    async with serve(app, asgi(app), **options) as server, await server.client() as http:
        port = int(server.url.rpartition(":")[2])
        head = (
            f"POST {API}/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: {http.headers['Authorization']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        ).encode()
        for number in range(CLIENTS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            # Every other one goes away before its body is complete: that one changes nothing.
            writer.write(head + (BODY if number % 2 else BODY[:-3]))
            await writer.drain()
            writer.close()
        # The last request of all: what came before it has been answered, or never will be. A client that has gone
        # before the server read its body has changed nothing, so how many did is not known.
        assert (await http.post(f"{API}/jobs", content=BODY, headers={"Content-Type": "application/json"})).is_success
    # The server has stopped: no request is under way.
    records = (await Services(app).audit.list(ROOT, AuditQuery(action="jobs.enqueue"), limit=200)).items
    stored = sum((await app.jobs.count()).values())
    assert 1 <= stored <= CLIENTS // 2 + 1
    assert [record.count for record in records] == [1] * stored
    assert len({record.request_id for record in records}) == stored
    await app.close()
