"""Every page on every engine: what an engine cannot do is not offered, and no page fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from onward import App
from onward.dashboard.views.rows import states_of
from onward.engine.capabilities import Feature
from onward.http import asgi
from onward.http.application import Server
from onward.http.names import encode_name
from onward.job import Job
from onward.lifecycle import JobStatus
from tests.dashboard.shop import fill, make_app, token
from tests.servers.pgboss import drop_schema, make_schema
from tests.servers.pgmq import drop_database, make_database
from tests.servers.postgres import postgres_url
from tests.servers.redis import RedisServer

ENGINES = ("sqlite", "postgresql", "redis", "pgboss", "pgmq")
FEATURES = {
    "schedules": Feature.SCHEDULES,
    "batches": Feature.BATCHES,
    "archive": Feature.ARCHIVE,
    "usage": Feature.USAGE,
}


@contextmanager
def store(engine: str) -> Iterator[str]:
    match engine:
        case "sqlite":
            yield "sqlite://"
        case "postgresql":
            yield f"{postgres_url()}{'&' if '?' in postgres_url() else '?'}schema=dash_{uuid4().hex[:8]}"
        case "redis":
            with RedisServer() as server:
                yield server.url
        case "pgboss":
            schema = f"dash_{uuid4().hex[:8]}"
            make_schema(postgres_url(), schema)
            separator = "&" if "?" in postgres_url() else "?"
            yield f"pgboss+{postgres_url()}{separator}schema={schema}"
            drop_schema(postgres_url(), schema)
        case _:
            database = make_database()
            known = conninfo_to_dict(database)
            yield f"pgmq+postgresql:///{known['dbname']}?host={known['host']}&user={known['user']}"
            drop_database(database)


def page_of(app: App, job: Job) -> str:
    if app.capabilities.has_global_ids:
        return f"/jobs/{encode_name(job.id)}"
    return f"/queues/{encode_name(job.queue)}/jobs/{encode_name(job.id)}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES)
async def test_every_page_answers_on_every_engine_and_offers_what_it_can(engine: str):  # A7, D5, X1
    with store(engine) as url:
        app = make_app(url)
        await fill(app, jobs=8)
        application = asgi(app)
        server: Server = application.state.onward
        headers = {"Authorization": f"Bearer {await token(app)}", "Origin": "http://localhost"}
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            overview = (await client.get("/")).text
            for name, feature in FEATURES.items():
                is_offered = f'id="nav-{name}"' in overview
                assert is_offered == app.capabilities.has(feature), name
                assert (await client.get(f"/{name}")).status_code == (200 if is_offered else 501), name
            paths = ["/", "/jobs", "/jobs?q=state:completed", "/queues", "/queues/mail", "/workers", "/dead"]
            paths += ["/operations", "/audit", "/tokens", "/doctor", "/jobs?q=queue:mail"]
            for status in states_of(app.capabilities):
                jobs = (await app.jobs.list(status=[status], limit=1)).items
                paths += [page_of(app, job) for job in jobs]
                paths += [f"{page_of(app, job)}/copy" for job in jobs]
            if app.capabilities.has(Feature.BATCHES):
                paths += ["/batches/digest-2026-11-18"]
            for path in paths:
                answer = await client.get(path)
                assert answer.status_code == 200, f"{path}: {re.sub('<[^>]+>', ' ', answer.text)[-600:]}"
                assert "/edit" not in answer.text or app.capabilities.has(Feature.EDIT), path
            waiting = (await app.jobs.list(status=["pending"], queue="reports", limit=1)).items[0]
            answer = await client.post(f"{page_of(app, waiting)}/cancel", data={"confirmed": "1"})
            assert answer.status_code == 303, answer.text
            assert "/jobs" in answer.headers["location"] or "/queues/" in answer.headers["location"]
            all_mail = {"which": "all", "verb": "replay", "q": f"state:{app.capabilities.shown(JobStatus.DEAD_LETTER)}"}
            answer = await client.post("/jobs", data=all_mail)
            assert answer.status_code == (200 if app.capabilities.has(Feature.REPLAY) else 501)
        if server.operations is not None:
            await server.operations.stop()
        await app.close()
