"""Every route by role, method and scope; two organisations; one record for each change (S3, S5)."""

from __future__ import annotations

import asyncio
import re
from itertools import product
from typing import Any

import httpx
import msgspec
import pytest

from onward import App, JobRef
from onward.engine.access import AuditQuery
from onward.engine.capabilities import Feature
from onward.engine.values import WorkerInfo
from onward.http import asgi, encode_name
from onward.http.application import API, Server
from onward.http.endpoints import Endpoint
from onward.service.identity import ROLES, Permission, Role
from onward.service.operations import OPERATIONS, Scoped
from tests.conformance.cases import EngineCase
from tests.http.conftest import CANARY, ROOT, all_engines, each_engine, finished, job_url

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SCOPES: dict[str, dict[str, tuple[str, ...]]] = {
    "all": {},
    "org": {"orgs": ("mine",)},
    "queue": {"queues": ("mail/*",)},
}


def url_of(endpoint: Endpoint, **names: str) -> str:
    return API + re.sub(r"\{([a-z_]+)\}", lambda found: names.get(found[1], "nothing-is-called-so"), endpoint.path)


def test_every_operation_has_a_route_and_every_route_an_operation(server: Server):  # A2
    assert {endpoint.operation.name for endpoint in server.endpoints} == set(OPERATIONS)


@each_engine
async def test_every_route_keeps_to_the_table(server: Server, client):  # S3
    """0 mismatches: the status says whether the table lets this caller through."""
    nobody = await client(None)
    callers: dict[tuple[Role, str], httpx.AsyncClient] = {
        (role, scope): await client(role, **SCOPES[scope]) for role, scope in product(Role, SCOPES)
    }
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in server.endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    mismatches: list[str] = []
    walked = 0
    for methods, method in product(by_path.values(), METHODS):
        known = methods.get("GET" if method == "HEAD" else method)
        url = url_of(next(iter(methods.values())))
        if known is not None and known.operation.name == "events.stream":
            url += "?type=nothing"  # an allowed caller would listen for ever
        if known is None or (method == "HEAD" and not known.has_head):
            answer = await nobody.request(method, url)
            if answer.status_code != 405:
                mismatches.append(f"{method} {url}: {answer.status_code}, not 405")
            continue
        operation = known.operation
        if operation.name == "session.create":
            continue
        answer = await nobody.request(method, url)
        if answer.status_code != 401:
            mismatches.append(f"nobody {method} {url}: {answer.status_code}, not 401")
        for (role, scope), http in callers.items():
            allowed = operation.permission is None or operation.permission in ROLES[role]
            allowed = allowed and not (scope == "org" and operation.orgs is Scoped.REFUSED)
            allowed = allowed and not (scope == "queue" and operation.queues is Scoped.REFUSED)
            if allowed and operation.name == "tick.run":
                url = f"{url_of(known)}?limit=0"
            answer = await http.request(method, url, json=None if known.body is None else {"no such field": 1})
            walked += 1
            refused = answer.status_code == 403
            # A caller that may ask is told about its request: never 401, 403, 405, 500.
            if refused == allowed or answer.status_code in {401, 405, 500}:
                mismatches.append(f"{role} {scope} {method} {url}: {answer.status_code}")
    assert mismatches == []
    assert walked > 600


@each_engine
@pytest.mark.parametrize(
    ("permission", "method", "path", "body"),
    [
        ("reveal", "POST", "{job}/reveal", None),
        ("edit", "PATCH", "{job}", {"max_attempts": 9}),
        ("enqueue", "POST", f"{API}/jobs", {"type": "add"}),
        ("delete", "DELETE", "{job}", None),
    ],
)
async def test_a_granted_permission_opens_its_route_alone(client, app, permission, method, path, body):  # S3
    root = await client("admin")
    job = job_url((await root.post(f"{API}/jobs", json={"type": "add", "delay": 60})).json())
    plain, granted = await client("viewer"), await client("viewer", permissions=(permission,))
    url = path.format(job=job)
    assert (await plain.request(method, url, json=body)).status_code == 403
    assert (await granted.request(method, url, json=body)).status_code in {200, 201}
    assert (await granted.post(f"{job}/cancel")).status_code == 403
    assert Permission(permission)


# Two organisations ----------------------------------------------------------------------------------------------------


async def fill(root: httpx.AsyncClient, case: EngineCase) -> dict[str, list[JobRef]]:
    """Jobs of two organisations in every status that can be made, in the same queues."""
    ids: dict[str, list[JobRef]] = {"mine": [], "theirs": []}
    for org, kept in ids.items():
        for body in (
            {"type": "send", "payload": {"to": f"{org}-{CANARY}"}},
            {"type": "add", "payload": {"a": 1}},
            {"type": "add", "delay": 3600} | keys(case, f"d-{org}"),
        ):
            made = await root.post(f"{API}/jobs", json={**body, "org_id": org})
            assert made.status_code == 201, made.text
            kept.append(JobRef(made.json()["queue"], made.json()["id"]))
    assert (await root.post("/api/jobs/tick")).status_code == 200
    return ids


def keys(case: EngineCase, dedupe_key: str) -> dict[str, str]:
    found = {"idempotency_key": "k"} if case.capabilities.has(Feature.IDEMPOTENCY) else {}
    return found | ({"dedupe_key": dedupe_key} if case.capabilities.has(Feature.DEDUPLICATION) else {})


async def snapshot(app: App) -> list[Any]:
    return [job async for job in app.jobs.iterate(org_id="theirs")]


@all_engines
async def test_nothing_of_another_organisation_is_read_or_changed(server: Server, client, app, case):  # S3, H9
    root, mine = await client("admin"), await client("admin", orgs=("mine",))
    ids = await fill(root, case)
    told = [ref.id for ref in ids["theirs"] if len(ref.id) > 9]  # BullMQ's "1" is everywhere
    before = await snapshot(app)
    leaks: list[str] = []

    def look(what: str, answer: httpx.Response) -> None:
        # A refusal may repeat what was asked for, and nothing else.
        hidden = [id for id in told if answer.status_code < 300 or id not in what]
        hidden += ["theirs-"] if answer.status_code >= 300 else ["theirs-", '"theirs"', "mail/theirs"]
        if any(text in answer.text for text in hidden):
            leaks.append(f"{what}: {answer.status_code} {answer.text[:300]}")

    bodies: dict[str, list[Any]] = {
        "jobs.enqueue": [
            {"type": "add", "org_id": "theirs"},
            {"type": "add"} | keys(case, "d-theirs"),
            {"type": "send", "payload": {"to": "x"}, "org_id": "theirs"},
            {"type": "add", "dedupe_key": "d-theirs", "debounce": 60, "payload": {"a": 666}},
        ],
        "jobs.enqueue_many": [[{"type": "add"}, {"type": "add", "org_id": "theirs"}]],
        "jobs.edit": [{"max_attempts": 9}, {"payload": {"a": 666}}],
        "jobs.cancel": [None],
    }
    for name in (
        "jobs.cancel_many",
        "jobs.replay_many",
        "jobs.delete_many",
        "dead.replay",
        "dead.purge",
        "archive.purge",
    ):
        bodies[name] = [
            {"all": True},
            {"filter": {"org_id": "theirs"}},
            {"filter": {"queue": ["mail/theirs"]}},
            {"filter": {"type": ["add", "send"]}},
        ]
    queries = ("", "?org_id=theirs", "?queue=mail/theirs", "?by=org_id")
    for endpoint in server.endpoints:
        if endpoint.operation.name in {"events.stream", "session.create", "session.delete"}:
            continue
        for ref, query in product(ids["theirs"], queries):
            url = url_of(endpoint, id=ref.id, queue=encode_name(ref.queue), name="theirs") + query
            for body in bodies.get(endpoint.operation.name, [None]):
                answer = await mine.request(endpoint.method, url, json=body)
                look(f"{endpoint.method} {url} {body}", answer)
            if not endpoint.path.count("{id}"):
                break
    assert server.operations is not None
    async with asyncio.timeout(60):
        while any(
            one["status"] not in {"completed", "failed", "dead_letter", "cancelled"}
            for one in (await root.get(f"{API}/operations")).json()["items"]
        ):
            await asyncio.sleep(0.05)
    assert leaks == []
    assert await snapshot(app) == before


# Audit ----------------------------------------------------------------------------------------------------------------

CHANGES: list[tuple[str, str, Any, Feature | None]] = [
    ("POST", "/jobs", {"type": "add"}, None),
    ("POST", "/jobs/bulk", [{"type": "add"}, {"type": "add"}], None),
    ("PATCH", "{waits}", {"max_attempts": 3}, None),
    ("POST", "{waits}/reveal", None, None),
    ("POST", "{waits}/cancel", None, None),
    ("POST", "{dead}/replay", None, None),
    ("DELETE", "{unwanted}", None, None),
    ("POST", "/queues/default/pause", None, None),
    ("POST", "/queues/default/resume", None, None),
    ("PATCH", "/queues/default", {"weight": 3}, None),
    ("PUT", "/schedules/s", {"job": {"type": "add"}, "every": 3600}, Feature.SCHEDULES),
    ("POST", "/schedules/s/pause", None, Feature.SCHEDULES),
    ("POST", "/schedules/s/resume", None, Feature.SCHEDULES),
    ("POST", "/schedules/s/resume", None, Feature.SCHEDULES),
    ("POST", "/schedules/s/run", None, Feature.SCHEDULES),
    ("DELETE", "/schedules/s", None, Feature.SCHEDULES),
    ("POST", "/batches/b", {"queue": "own", "jobs": [{"job": {"type": "add"}}]}, Feature.BATCHES),
    ("POST", "/batches/b/pause", None, Feature.BATCHES),
    ("POST", "/batches/b/resume", None, Feature.BATCHES),
    ("POST", "/batches/b/seal", None, Feature.BATCHES),
    ("POST", "/batches/b/cancel", None, Feature.BATCHES),
    ("POST", "/tick", None, None),
    ("DELETE", "/batches/b", None, Feature.BATCHES),
    ("GET", "/tick", None, None),
    ("POST", "/workers/{worker}/quiet", None, None),
    ("POST", "/workers/{worker}/resume", None, None),
    ("POST", "/workers/{worker}/stop", None, None),
    ("POST", "/tokens", {"name": "new"}, None),
    ("DELETE", "/tokens/{token}", None, None),
    ("POST", "/jobs/cancel", {"filter": {"type": ["nothing"]}}, None),
    ("POST", "/jobs/replay", {"filter": {"type": ["nothing"]}}, None),
    ("POST", "/jobs/delete", {"filter": {"type": ["nothing"]}}, None),
    ("POST", "/dead/replay", {"all": True}, None),
    ("POST", "/dead/purge", {"all": True}, None),
    ("POST", "/archive/purge", {"all": True}, Feature.ARCHIVE),
]


@each_engine
async def test_every_change_leaves_exactly_one_record(server: Server, client, app, case):  # S5, A7
    http = await client("admin")
    names = {}
    for name, body in (
        ("waits", {"type": "add", "delay": 3600}),
        ("unwanted", {"type": "add", "delay": 3600}),
        ("dead", {"type": "send", "payload": {"to": "x"}, "org_id": "a"}),
    ):
        names[name] = job_url((await http.post(f"{API}/jobs", json=body)).json()).removeprefix(API)
    await app.tick()
    names["token"] = (await http.post(f"{API}/tokens", json={"name": "old"})).json()["token"]["id"]
    info = WorkerInfo(id="w-1", hostname="here", pool_size=1, version="1")
    await server.services.store.core.engine.heartbeat(info, [])
    names["worker"] = info.id
    seen, refused = set(), set()
    for at, (method, path, body, feature) in enumerate(CHANGES):
        request_id = f"change-{at}"
        url = API + path.format(**names)
        answer = await http.request(method, url, json=body, headers={"X-Request-Id": request_id})
        assert answer.headers["x-request-id"] == request_id
        if answer.status_code == 202:
            await finished(http, answer.json()["id"])
        records = [
            one
            for one in (await server.services.audit.list(ROOT, AuditQuery(), limit=200)).items
            if one.request_id == request_id
        ]
        if feature is not None and not case.capabilities.has(feature):
            assert answer.status_code == 501, f"{method} {path}: {answer.text}"
            assert case.capabilities.features[feature].note in answer.json()["detail"]
            assert records == []
            refused.add(feature)
            continue
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        assert len(records) == 1, f"{method} {path}: {records}"
        assert records[0].actor.startswith("token:test-admin")
        assert records[0].role == "admin"
        seen.add(records[0].action)
    changing = {name for name, operation in OPERATIONS.items() if operation.changes}
    absent = {"schedules.": Feature.SCHEDULES, "batches.": Feature.BATCHES, "archive.": Feature.ARCHIVE}
    changing -= {
        name for name in changing for head, lacks in absent.items() if name.startswith(head) and lacks in refused
    }
    assert seen == changing - {"session.create", "session.delete", "operations.cancel"}


async def test_a_refused_change_leaves_no_record(server: Server, client):  # S5
    viewer, root = await client("viewer"), await client("admin")
    before = len((await server.services.audit.list(ROOT, AuditQuery(), limit=200)).items)
    for http, expected in ((viewer, 403), (root, 400)):
        for method, path, _, _ in CHANGES:
            url = API + path.format(waits="/jobs/x", dead="/jobs/x", unwanted="/jobs/x", token="x", worker="x")
            if http is root and not path.startswith(("/jobs", "{", "/queues", "/schedules/s", "/tokens")):
                continue
            answer = await http.request(method, url, content=b"{", headers={"Content-Type": "application/json"})
            assert answer.status_code == expected, f"{method} {url}: {answer.text}"
    assert len((await server.services.audit.list(ROOT, AuditQuery(), limit=200)).items) == before


async def test_a_change_is_finished_and_recorded_when_the_client_goes_away(
    app, server: Server, client, monkeypatch: pytest.MonkeyPatch
):  # S5
    http = await client("admin")
    token = http.headers["Authorization"].encode()
    body = msgspec.json.encode({"type": "add"})
    application = server.application()
    began, go_on = asyncio.Event(), asyncio.Event()
    engine = server.services.store.core.engine
    real = engine.enqueue

    async def enqueue(*args: Any, **options: Any) -> Any:
        began.set()
        await go_on.wait()
        return await real(*args, **options)

    monkeypatch.setattr(engine, "enqueue", enqueue)

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_: Any) -> None:
        raise OSError("the client has gone")

    scope = {
        "type": "http", "method": "POST", "path": f"{API}/jobs", "raw_path": f"{API}/jobs".encode(), "root_path": "",
        "query_string": b"", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [(b"host", b"localhost"), (b"authorization", token), (b"content-type", b"application/json")],
    }  # fmt: skip
    task = asyncio.create_task(application(scope, receive, send))
    await began.wait()
    task.cancel()  # what some servers do to the task of a client that has gone
    await asyncio.wait([task])
    go_on.set()
    async with asyncio.timeout(30):
        while not (records := (await server.services.audit.list(ROOT, AuditQuery(action="jobs.enqueue"))).items):
            await asyncio.sleep(0.02)
    assert len(records) == 1
    assert sum((await app.jobs.count()).values()) == 1


async def test_no_secret_shows_in_logs_answers_records_or_metrics(client, server: Server, app, caplog):  # S6
    caplog.set_level("DEBUG")
    root, viewer = await client("admin"), await client("viewer")
    body = {"type": "send", "payload": {"to": "x", "password": CANARY}, "org_id": "a", "dedupe": True}
    id = (await root.post(f"{API}/jobs", json=body)).json()["id"]
    await root.post(f"{API}/jobs", json={**body, "payload": {"to": "x", "password": CANARY, "nope": CANARY}})
    await root.post(f"{API}/jobs", content=b'{"type": "send", "payload": {"password": "' + CANARY.encode())
    await root.post(f"{API}/jobs?token={CANARY}", json=body)
    await root.post(f"{API}/session", json={"token": f"onw_{CANARY}_{CANARY}"})
    await root.post("/api/jobs/tick")
    shown = [(await root.get("/metrics")).text, (await root.get(f"{API}/audit?limit=200")).text]
    for endpoint in server.endpoints:
        if endpoint.method == "GET" and endpoint.operation.name not in {"events.stream", "tick.run"}:
            for http in (viewer, root):
                shown.append((await http.get(url_of(endpoint, id=id, queue="mail~2fa"))).text)
    assert any("[redacted]" in text for text in shown)
    assert [text for text in shown if CANARY in text] == []
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("onward.http")]
    assert ours
    assert [line for line in ours if CANARY in line] == []


async def test_the_server_can_be_mounted_under_a_path(app):  # A1
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.routing import Mount  # noqa: PLC0415

    inner = asgi(app)
    outer = Starlette(routes=[Mount("/admin/jobs", app=inner)])
    from onward.service.values import TokenRequest  # noqa: PLC0415

    new = await inner.state.onward.services.access.create_token(ROOT, TokenRequest(name="t", role="admin"))
    headers = {"Authorization": f"Bearer {new.secret}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(outer), base_url="http://localhost", headers=headers
    ) as http:
        made = await http.post(f"/admin/jobs{API}/jobs", json={"type": "add"})
        assert made.status_code == 201
        assert (await http.get(f"/admin/jobs{API}/jobs/{made.json()['id']}")).status_code == 200
        assert (await http.get(f"/admin/jobs{API}/nope")).json()["type"].endswith("unknown-route")
        document = (await http.get(f"/admin/jobs{API}/openapi.json")).json()
        assert document["servers"] == [{"url": "/admin/jobs"}]
        login = await http.post(f"/admin/jobs{API}/session", json={"token": new.secret})
        assert "Path=/admin/jobs" in login.headers["set-cookie"]
