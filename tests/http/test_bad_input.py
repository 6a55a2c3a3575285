"""What is wrong is a problem document with a stable type, and nothing is half-written ("Bad input" of the API)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from onward import App, JobStatus
from onward.errors import StoreUnavailable
from onward.http.application import API, Server
from tests.http.conftest import CANARY

JSON = {"Content-Type": "application/json"}
DEEP = b'{"type": "add", "payload": ' + b"[" * 5000 + b"]" * 5000 + b"}"
NESTED = b'{"type": "add", "payload": {"a": ' + b"[" * 150 + b"]" * 150 + b"}}"

BAD: list[tuple[str, str, str, bytes | None, dict[str, str], int, str, str | None]] = [
    ("not JSON", "POST", "/jobs", b"{", JSON, 400, "malformed-json", None),
    ("empty body", "POST", "/jobs", b"", JSON, 400, "malformed-json", None),
    ("invalid UTF-8", "POST", "/jobs", b'{"type": "\xff"}', JSON, 400, "malformed-json", None),
    ("no media type", "POST", "/jobs", b"{}", {}, 415, "media-type", "Content-Type"),
    ("a form", "POST", "/jobs", b"{}", {"Content-Type": "text/plain"}, 415, "media-type", "Content-Type"),
    ("wrong type", "POST", "/jobs", b'{"type": 5}', JSON, 400, "invalid-value", "type"),
    ("missing field", "POST", "/jobs", b"{}", JSON, 400, "invalid-value", "type"),
    ("unknown field", "POST", "/jobs", b'{"type": "add", "nope": 1}', JSON, 400, "invalid-value", "nope"),
    ("an array", "POST", "/jobs", b"[]", JSON, 400, "invalid-value", None),
    ("unknown task", "POST", "/jobs", b'{"type": "ad"}', JSON, 400, "invalid-value", "type"),
    ("wrong argument", "POST", "/jobs", b'{"type": "add", "payload": {"a": "x"}}', JSON, 400, "invalid-value",
     "payload.a"),
    ("unknown argument", "POST", "/jobs", b'{"type": "add", "payload": {"z": 1}}', JSON, 400, "invalid-value",
     "payload.z"),
    ("payload no object", "POST", "/jobs", b'{"type": "add", "payload": 5}', JSON, 400, "invalid-value", "payload"),
    ("a reserved name", "POST", "/jobs", b'{"type": "add", "payload": {"self": 1}}', JSON, 400, "invalid-value",
     "payload.self"),
    ("priority", "POST", "/jobs", b'{"type": "add", "priority": 99999999}', JSON, 400, "invalid-value", "priority"),
    ("delay", "POST", "/jobs", b'{"type": "add", "delay": -1}', JSON, 400, "invalid-value", "delay"),
    ("endless delay", "POST", "/jobs", b'{"type": "add", "delay": 1e300}', JSON, 400, "invalid-value", "delay"),
    ("naive time", "POST", "/jobs", b'{"type": "add", "run_at": "2030-01-01T00:00:00"}', JSON, 400, "invalid-value",
     "run_at"),
    ("queue name", "POST", "/jobs", b'{"type": "add", "queue": "No Such"}', JSON, 400, "invalid-value", "queue"),
    ("NUL", "POST", "/jobs", b'{"type": "add", "org_id": "a\\u0000"}', JSON, 400, "invalid-value", "org_id"),
    ("backoff", "POST", "/jobs", b'{"type": "add", "backoff": {"base": -1}}', JSON, 400, "invalid-value", None),
    ("reserved type", "POST", "/jobs", b'{"type": "onward.operation"}', JSON, 400, "invalid-value", "type"),
    ("too deep", "POST", "/jobs", DEEP, JSON, 400, "", None),
    ("nested", "POST", "/jobs", NESTED, JSON, 400, "invalid-value", None),
    ("bulk no array", "POST", "/jobs/bulk", b"{}", JSON, 400, "invalid-value", None),
    ("bulk media type", "POST", "/jobs/bulk", b"[]", {"Content-Type": "text/csv"}, 415, "media-type", "Content-Type"),
    ("bulk one bad", "POST", "/jobs/bulk", b'[{"type": "add"}, {"type": "add", "payload": {"a": "x"}}]', JSON, 400,
     "invalid-value", "[1].payload.a"),
    ("bad cursor", "GET", "/jobs?cursor=nope", None, {}, 400, "invalid-value", "cursor"),
    ("archive cursor", "GET", "/archive?cursor=nope", None, {}, 400, "invalid-value", "cursor"),
    ("audit cursor", "GET", "/audit?cursor=nope", None, {}, 400, "invalid-value", "cursor"),
    ("batch cursor", "GET", "/batches?cursor=nope", None, {}, 400, "invalid-value", "cursor"),
    ("event cursor", "GET", "/events?cursor=nope", None, {}, 400, "invalid-value", None),
    ("limit", "GET", "/jobs?limit=0", None, {}, 400, "invalid-value", "limit"),
    ("limit no number", "GET", "/jobs?limit=many", None, {}, 400, "invalid-value", "limit"),
    ("unknown parameter", "GET", "/jobs?nope=1", None, {}, 400, "invalid-value", "nope"),
    ("given twice", "GET", "/jobs?limit=1&limit=2", None, {}, 400, "invalid-value", "limit"),
    ("bad status", "GET", "/jobs?status=sleeping", None, {}, 400, "invalid-value", None),
    ("bad pattern", "GET", "/jobs?queue=No%20Such", None, {}, 400, "invalid-value", None),
    ("many values", "GET", "/jobs?" + "&".join(["type=x"] * 101), None, {}, 400, "invalid-value", "type"),
    ("many parameters", "GET", "/jobs?" + "&".join(["type=x"] * 400), None, {}, 400, "malformed-query", None),
    ("query not UTF-8", "GET", "/jobs?type=%ff", None, {}, 400, "malformed-query", None),
    ("parameter of none", "GET", "/workers?x=1", None, {}, 400, "invalid-value", "x"),
    ("path not tilde", "GET", "/queues/a%20b", None, {}, 400, "invalid-value", "path"),
    ("path bad escape", "GET", "/queues/a~2", None, {}, 400, "invalid-value", "path"),
    ("path not UTF-8", "GET", "/queues/~ff", None, {}, 400, "invalid-value", "path"),
    ("path a slash", "GET", "/queues/mail%2Feu", None, {}, 404, "unknown-route", None),
    ("unknown route", "GET", "/nope", None, {}, 404, "unknown-route", None),
    ("a slash too many", "GET", "/jobs/", None, {}, 404, "unknown-route", None),
    ("unknown job", "GET", "/jobs/nope", None, {}, 404, "not-found", None),
    ("unknown queue", "POST", "/queues/nope/pause", None, {}, 404, "not-found", None),
    ("unknown schedule", "GET", "/schedules/nope", None, {}, 404, "not-found", None),
    ("unknown batch", "GET", "/batches/nope", None, {}, 404, "not-found", None),
    ("unknown token", "DELETE", "/tokens/nope", None, {}, 404, "not-found", None),
    ("unknown operation", "GET", "/operations/nope", None, {}, 404, "not-found", None),
    ("wrong method", "PUT", "/jobs", b"{}", JSON, 405, "method-not-allowed", None),
    ("odd method", "FOO", "/jobs", None, {}, 405, "method-not-allowed", None),
    ("a body for none", "POST", "/queues/x/resume", b"{}", JSON, 400, "unexpected-body", None),
    ("bulk verb for all", "POST", "/jobs/delete", b"{}", JSON, 400, "invalid-value", "filter"),
    ("bulk empty filter", "POST", "/jobs/delete", b'{"filter": {}}', JSON, 400, "invalid-value", "filter"),
    ("rate", "PATCH", "/queues/q", b'{"rate": "fast"}', JSON, 400, "invalid-value", "rate"),
    ("settings", "PATCH", "/queues/q", b"{}", JSON, 400, "invalid-value", "settings"),
    ("paused by settings", "PATCH", "/queues/q", b'{"paused": true}', JSON, 400, "invalid-value", "paused"),
    ("cron", "PUT", "/schedules/s", b'{"job": {"type": "add"}, "cron": "x"}', JSON, 400, "invalid-value", "cron"),
    ("zone", "PUT", "/schedules/s", b'{"job": {"type": "add"}, "cron": "0 0 * * *", "timezone": "Mars"}', JSON, 400,
     "invalid-value", None),
    ("schedule once", "PUT", "/schedules/s", b'{"job": {"type": "add", "delay": 5}, "every": 60}', JSON, 400,
     "invalid-value", "job.delay"),
    ("circular batch", "POST", "/batches/b", b'{"jobs": [{"job": {"type": "add"}, "after": [3]}]}', JSON, 400,
     "invalid-value", None),
    ("role", "POST", "/tokens", b'{"name": "x", "role": "king"}', JSON, 400, "invalid-value", "role"),
    ("usage", "GET", "/usage?bucket=year", None, {}, 400, "invalid-value", "bucket"),
    ("wait", "GET", "/jobs/x/result?timeout=1000", None, {}, 400, "invalid-value", "timeout"),
    ("tick", "POST", "/tick?limit=0", None, {}, 400, "invalid-value", "limit"),
    ("no session", "DELETE", "/session", None, {}, 400, "invalid-value", "session"),
]  # fmt: skip


async def test_what_is_wrong_is_a_problem_document(client, app: App):
    http = await client("admin")
    wrong: list[str] = []
    for name, method, path, content, headers, status, slug, field in BAD:
        answer = await http.request(method, API + path, content=content, headers=headers)
        if answer.headers.get("content-type") != "application/problem+json":
            wrong.append(f"{name}: {answer.status_code} {answer.headers.get('content-type')} {answer.text[:200]}")
            continue
        problem = answer.json()
        expected = (status, status, None)
        found = (answer.status_code, problem["status"], None)
        if found != expected or (slug and problem["type"] != f"urn:onward:problem:{slug}"):
            wrong.append(f"{name}: {answer.text[:300]}")
        if field is not None and problem.get("field") != field:
            wrong.append(f"{name}: field {problem.get('field')}, not {field}")
        if "Traceback" in answer.text or 'File "' in answer.text:
            wrong.append(f"{name}: shows the code")
        if not problem.get("title") or problem.get("request_id") != answer.headers["x-request-id"]:
            wrong.append(f"{name}: says too little: {answer.text}")
    assert wrong == []
    assert sum((await app.jobs.count()).values()) == 0
    assert await app.queues.list() == []
    assert await app.schedules.list() == []


async def request(server: Server, method: str, path: str, headers: dict[str, str], chunks: list[bytes]) -> Any:
    """Send a request piece by piece, and stop when the answer is there."""
    sent: list[Any] = []
    left = list(chunks)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": b"", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "headers": raw,
    }  # fmt: skip
    async with asyncio.timeout(30):
        await server.application()(scope, receive, send)
    return sent[0]["status"], msgspec.json.decode(sent[1]["body"]), len(left)


async def test_a_body_that_is_too_large_is_refused_while_it_is_read(server: Server, client):  # A3
    http = await client("admin")
    headers = {"Host": "localhost", "Authorization": http.headers["Authorization"], **JSON}
    chunks = [b"x" * 1024 * 1024] * 200
    status, problem, unread = await request(server, "POST", f"{API}/jobs", headers, chunks)
    assert (status, problem["type"]) == (413, "urn:onward:problem:too-large")
    assert unread > 180
    status, problem, unread = await request(server, "POST", f"{API}/jobs/bulk", headers, chunks)
    assert (status, unread > 100) == (413, True)
    honest = {**headers, "Content-Length": str(10**12)}
    status, _, unread = await request(server, "POST", f"{API}/jobs", honest, chunks)
    assert (status, unread) == (413, 200)
    status, _, unread = await request(server, "POST", f"{API}/queues/x/resume", headers, chunks)
    assert (status, unread > 190) == (413, True)


async def test_a_body_that_takes_too_long_is_given_up(app: App, client):  # S7
    from onward.http import asgi  # noqa: PLC0415

    http = await client("admin")
    slow: Server = asgi(app, body_timeout=0.05).state.onward
    headers = {"Host": "localhost", "Authorization": http.headers["Authorization"], **JSON}
    status, problem, _ = await request(slow, "POST", f"{API}/jobs", headers, [b'{"type": '])
    assert (status, problem["type"]) == (408, "urn:onward:problem:body-timeout")
    assert sum((await app.jobs.count()).values()) == 0


async def test_a_store_that_is_down_is_503_with_a_hint(client, server: Server, app: App, monkeypatch):
    http = await client("admin")
    assert (await http.get(f"{API}/workers")).status_code == 200

    async def down(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable(f"connection to db.internal as {CANARY} refused", remedy="start it")

    engine = server.services.store.core.engine
    for verb in ("enqueue", "find", "get", "queues", "workers", "check", "cancel", "find_token"):
        monkeypatch.setattr(engine, verb, down)
    server.services.access._tokens.clear()
    for method, path, body in (
        ("GET", "/jobs", None),
        ("GET", "/workers", None),
        ("POST", "/jobs", {"type": "add"}),
        ("POST", "/jobs/cancel", {"all": True}),
    ):
        answer = await http.request(method, API + path, json=body)
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"].isdecimal()
        assert answer.json()["type"] == "urn:onward:problem:store-unavailable"
        assert CANARY not in answer.text
    assert (await http.get("/readyz")).status_code == 503
    assert (await http.get("/healthz")).status_code == 200


async def test_a_fault_of_the_server_shows_nothing_of_it(client, server: Server, monkeypatch):
    http = await client("admin")

    async def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError(CANARY)

    monkeypatch.setattr(server.services.store.core.engine, "workers", broken)
    answer = await http.get(f"{API}/workers")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:onward:problem:internal")
    assert CANARY not in answer.text


async def test_what_the_store_cannot_do_is_501_with_its_note(client, server: Server, monkeypatch):  # A7
    from onward.engine.capabilities import Feature, absent  # noqa: PLC0415

    http = await client("admin")
    capabilities = server.services.store.core.capabilities
    missing = {feature: absent("this store has none of it") for feature in (Feature.PRIORITY, Feature.USAGE)}
    monkeypatch.setattr(
        type(server.services.store.core.engine.inner),
        "capabilities",
        type(capabilities)(
            engine="Test", features={**capabilities.features, **missing}, status_aliases=capabilities.status_aliases
        ),
    )
    server.services.store.core.engine._checks.capabilities = server.services.store.core.engine.capabilities
    for method, path, body in (("POST", "/jobs", {"type": "add", "priority": 5}), ("GET", "/usage", None)):
        answer = await http.request(method, API + path, json=body)
        assert (answer.status_code, answer.json()["detail"]) == (501, "this store has none of it")


async def test_a_job_that_ended_meanwhile_is_a_conflict(client, app: App):
    http = await client("admin")
    id = (await http.post(f"{API}/jobs", json={"type": "add"})).json()["id"]
    await app.tick()
    assert (await app.jobs.get(id)).status is JobStatus.COMPLETED
    for method, path in (("POST", "cancel"), ("POST", "replay")):
        answer = await http.request(method, f"{API}/jobs/{id}/{path}")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:onward:problem:conflict")
