"""Jobs over HTTP: enqueue, read, change, wait, export (A2, A3)."""

from __future__ import annotations

import asyncio
import csv
import io

import msgspec
import pytest

from onward import JobStatus
from onward.engine.capabilities import Feature
from onward.http import decode_name, encode_name
from onward.http.application import API
from onward.service import export
from tests.http.conftest import CANARY, ROOT, all_engines, each_engine, finished, job_url


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("mail", "mail"),
        ("mail/eu", "mail~2feu"),
        ("a b~c%d", "a~20b~7ec~25d"),
        ("..", "~2e."),
        (".", "~2e"),
        ("über", "~c3~bcber"),
        ("x:1", "x~3a1"),
        ("a\nb", "a~0ab"),
    ],
)
def test_a_name_is_one_safe_segment(name, segment):  # A2
    assert encode_name(name) == segment
    assert decode_name(segment) == name


@all_engines
async def test_a_job_makes_its_way(client, app, case):  # A2
    http = await client("operator")
    made = await http.post(f"{API}/jobs", json={"type": "add", "payload": {"a": 1, "b": 2}})
    assert made.status_code == 201, made.text
    job = made.json()
    assert job["enqueue_status"] == "inserted"
    url = job_url(job)
    assert (await http.get(url)).json()["status"] == "pending"
    by_id = await http.get(f"{API}/jobs/{job['id']}")
    if case.capabilities.has_global_ids:
        assert by_id.json()["id"] == job["id"]
    else:
        assert (by_id.status_code, by_id.json()["field"]) == (400, "job")
    pending = await http.get(f"{url}/result")
    assert pending.json()["is_finished"] is False
    waiting = asyncio.create_task(http.get(f"{url}/result", params={"timeout": 30}))
    await asyncio.sleep(0)
    ticked = await http.post("/api/jobs/tick")
    assert (ticked.status_code, ticked.json()["ok"], ticked.json()["completed"]) == (200, True, 1)
    assert (await waiting).json()["result"] == 3
    logs = await http.get(f"{url}/logs")
    if case.capabilities.has(Feature.LOG_LINES):
        assert logs.json() == {"items": []}
    else:
        assert logs.status_code == 501
    assert (await http.get(f"{url}/explain")).json()["items"][0]["code"] == "ended"
    assert (await http.post(f"{url}/cancel")).status_code == 409


@each_engine
async def test_an_idempotency_key_is_the_jobs_own(client):  # A3
    http = await client("operator")
    headers = {"Idempotency-Key": "order-7"}
    first = await http.post(f"{API}/jobs", json={"type": "add"}, headers=headers)
    again = await http.post(f"{API}/jobs", json={"type": "add"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "enqueue_status": "same_key"}
    other = await http.post(f"{API}/jobs", json={"type": "add", "idempotency_key": "other"}, headers=headers)
    assert other.json()["field"] == "idempotency_key"
    bulk = await http.post(f"{API}/jobs/bulk", json=[{"type": "add"}], headers=headers)
    assert bulk.json()["field"] == "Idempotency-Key"


@each_engine
async def test_many_jobs_are_enqueued_all_or_none(client, app):  # A2
    http = await client("operator")
    jobs = [{"type": "add", "payload": {"a": at}} for at in range(50)]
    assert len((await http.post(f"{API}/jobs/bulk", json=jobs)).json()["items"]) == 50
    lines = "\n".join(msgspec.json.encode(job).decode() for job in jobs) + "\n\n"
    headers = {"Content-Type": "application/x-ndjson"}
    assert len((await http.post(f"{API}/jobs/bulk", content=lines, headers=headers)).json()["items"]) == 50
    for content, field in (
        (lines + '{"type": "add", "priority": "high"}', "[50].priority"),
        (lines + '{"type": "add", "payload": {"a": "x"}}', "[50].payload.a"),
        (lines + "{", "[50]"),
        ("", "jobs"),
    ):
        answer = await http.post(f"{API}/jobs/bulk", content=content, headers=headers)
        assert (answer.status_code, answer.json()["field"]) == (400, field)
    too_many = await http.post(f"{API}/jobs/bulk", json=[{"type": "add"}] * 10_001)
    assert too_many.status_code == 400
    assert sum((await app.jobs.count()).values()) == 100


@each_engine
async def test_pages_follow_each_other(client):  # A3
    http = await client("operator")
    await http.post(f"{API}/jobs/bulk", json=[{"type": "add", "payload": {"a": at}} for at in range(5)])
    seen, cursor = [], None
    while True:
        params = {"limit": 2, "order": "oldest"} | ({} if cursor is None else {"cursor": cursor})
        page = (await http.get(f"{API}/jobs", params=params)).json()
        seen += [job["payload"]["a"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [0, 1, 2, 3, 4]
    assert (await http.get(f"{API}/jobs", params={"limit": 201})).json()["field"] == "limit"
    counts = (await http.get(f"{API}/jobs/count", params={"status": ["pending", "failed"]})).json()
    assert counts == {"by": "status", "counts": {"pending": 5}, "total": 5}


@each_engine
async def test_a_job_is_edited_cancelled_replayed_and_deleted(client, app, case):  # A2
    http = await client("admin")
    job = (await http.post(f"{API}/jobs", json={"type": "add", "delay": 3600})).json()
    url, id = job_url(job), job["id"]
    edited = await http.patch(url, json={"max_attempts": 7, "payload": {"a": 5}})
    assert (edited.json()["max_attempts"], edited.json()["payload"]) == (7, {"a": 5})
    assert (await http.patch(url, json={"payload": {"a": "text"}})).status_code == 400
    assert (await http.patch(url, json={})).status_code == 400
    cancelled = await http.post(f"{url}/cancel", json={"reason": "no longer needed"})
    assert cancelled.json() == {"id": id, "queue": "default", "before": "scheduled"}
    if not case.capabilities.has(Feature.CANCELLED_STATE):
        assert (await http.get(url)).status_code == 404
        return
    assert (await http.get(url)).json()["last_error"] == "no longer needed"
    assert (await http.post(f"{url}/replay")).json()["before"] == "cancelled"
    assert (await http.request("DELETE", url)).json()["before"] == "pending"
    assert (await http.get(url)).status_code == 404


@all_engines
async def test_changes_by_filter_are_made_by_the_server_itself(client, app):  # A5
    http = await client("admin")
    await http.post(f"{API}/jobs/bulk", json=[{"type": "add", "delay": 3600}] * 20)
    dry = await http.post(f"{API}/jobs/cancel", json={"filter": {"type": ["add"]}, "dry_run": True})
    assert (dry.status_code, dry.json()["matching"]) == (200, 20)
    accepted = await http.post(f"{API}/jobs/cancel", json={"filter": {"type": ["add"]}})
    assert accepted.status_code == 202
    assert (await finished(http, accepted.json()["id"]))["changed"] == 20
    records = (await http.get(f"{API}/audit", params={"action": "jobs.cancel_many"})).json()["items"]
    assert [record["count"] for record in records] == [20]


@each_engine
async def test_exports_are_safe_to_open(client, server, case):  # X6, S6
    http = await client("operator")
    formula = '=HYPERLINK("http://evil","x")'
    await http.post(f"{API}/jobs", json={"type": "send", "payload": {"to": formula, "password": CANARY}, "org_id": "a"})
    await http.post("/api/jobs/tick")
    text = (await http.get(f"{API}/jobs/export", params={"format": "csv", "type": "send"})).text
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["status"] == case.capabilities.shown(JobStatus.DEAD_LETTER)
    assert all(not cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row.values())
    lines = (await http.get(f"{API}/jobs/export", params={"type": "send"})).text.splitlines()
    assert len(lines) == 1
    assert CANARY not in text + "".join(lines)


@pytest.mark.parametrize(
    ("text", "cell"),
    [("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@x", "'@x"), ("  =1", "'  =1"), ("\t=1", "'\t=1"), ("a", "a"),
     (None, ""), (5, "5"), (-5, "'-5")],
)  # fmt: skip
def test_a_cell_is_no_formula(text, cell):  # X6
    assert export.cell(text) == cell


@each_engine
async def test_queues(client, app, case):  # A2
    http = await client("admin")
    await http.post(f"{API}/jobs", json={"type": "send", "payload": {"to": "x"}, "org_id": "a"})
    queue = f"{API}/queues/mail~2fa"
    assert (await http.get(queue)).json()["counts"] == {"pending": 1}
    paused = (await http.post(f"{queue}/pause", json={"reason": "the provider is down"})).json()
    assert (paused["paused"], paused["pause_reason"]) == (True, "the provider is down")
    assert paused["paused_by"].startswith("token:test-admin")
    assert (await http.post(f"{queue}/resume")).json()["paused"] is False
    changed = await http.patch(queue, json={"rate": "600/min", "retention": {"completed": 60}, "lease": 90})
    assert changed.json()["rate"] == {"count": 600, "period": 60.0, "burst": 1}
    assert (changed.json()["retention"]["completed"], changed.json()["lease"]) == (60.0, 90.0)
    assert (await http.patch(queue, json={"rate": None})).json()["rate"] is None
    assert [one["name"] for one in (await http.get(f"{API}/queues")).json()["items"]] == ["mail/a"]


@each_engine
async def test_schedules(client):  # A2
    http = await client("admin")
    schedule = f"{API}/schedules/{encode_name('nightly/report')}"
    made = await http.put(schedule, json={"job": {"type": "add"}, "cron": "0 3 * * *", "timezone": "Europe/Berlin"})
    assert (made.json()["cron"], made.json()["paused"]) == ("0 3 * * *", False)
    assert (await http.post(f"{schedule}/pause")).json()["next_at"] is None
    assert (await http.post(f"{schedule}/resume")).json()["paused"] is False
    assert (await http.post(f"{schedule}/run")).status_code == 201
    assert (await http.delete(schedule)).status_code == 204
    assert (await http.get(schedule)).status_code == 404


@each_engine
async def test_batches(client, app, case):  # A2, A7
    http = await client("admin")
    if not case.capabilities.has(Feature.BATCHES):
        answer = await http.get(f"{API}/batches")
        assert answer.status_code == 501
        assert case.capabilities.features[Feature.BATCHES].note in answer.json()["detail"]
        return
    batch = f"{API}/batches/import"
    steps = [{"job": {"type": "add"}}, {"job": {"type": "add"}, "after": [0]}]
    added = await http.post(batch, json={"jobs": steps, "queue": "imports", "sealed": True})
    assert len(added.json()["items"]) == 2
    assert len((await http.get(f"{batch}/graph")).json()["items"]) == 1
    assert (await http.post(f"{batch}/pause")).status_code == 200
    assert (await http.post(f"{batch}/resume")).status_code == 200
    assert (await http.delete(batch)).status_code == 409
    assert (await http.post(f"{batch}/cancel")).json() == {"cancelled": 2}
    assert len((await http.get(f"{batch}/jobs")).json()["items"]) == 2
    assert (await http.get(batch)).json()["progress"] == 100
    await app.tick()  # on PostgreSQL, a leader records the end of a batch
    assert (await http.delete(batch)).status_code == 204


@all_engines
async def test_the_rest_answers(client, app, case):  # A2, A7
    http = await client("admin")
    await http.post(f"{API}/jobs", json={"type": "send", "payload": {"to": "x"}, "org_id": "a"})
    await app.tick()
    shown = case.capabilities.shown(JobStatus.DEAD_LETTER)
    assert (await http.get(f"{API}/dead")).json()["items"][0]["status"] == shown
    assert (await http.get(f"{API}/dead/count")).json()["total"] == 1
    for path, feature in {
        "workers": None,
        "archive": Feature.ARCHIVE,
        "archive/count": Feature.ARCHIVE,
        "usage": Feature.USAGE,
        "schedules": Feature.SCHEDULES,
        "batches": Feature.BATCHES,
        "capabilities": None,
        "doctor": None,
        "health": None,
        "operations": None,
        "queues": None,
        "audit": None,
        "tokens": None,
    }.items():
        answer = await http.get(f"{API}/{path}")
        if feature is None or case.capabilities.has(feature):
            assert answer.status_code == 200, answer.text
        else:
            assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (501, "unsupported")
            assert case.capabilities.features[feature].note in answer.json()["detail"]
            assert (await http.get(f"{API}/capabilities")).json()["features"][feature]["level"] == "absent"
    assert (await http.get("/metrics")).text.startswith("# HELP")
    nobody = await client(None)
    assert (await nobody.get("/healthz")).json() == {"ok": True}
    assert (await nobody.get("/readyz")).json() == {"ok": True}


@each_engine
async def test_a_tick_is_bounded_in_time(client, app):  # A6
    http = await client("operator")
    await http.post(f"{API}/jobs", json={"type": "wait"})
    report = (await http.get(f"{API}/tick", params={"timeout": 0.2, "limit": 5})).json()
    assert (report["timed_out"], report["claimed"], report["released"]) == (True, 1, 1)
    (job,) = (await app.jobs.list(type="wait")).items
    assert (job.status, job.attempts) == (JobStatus.PENDING, 0)
    twice = await asyncio.gather(*(http.get(f"{API}/tick", params={"timeout": 0.2}) for _ in range(2)))
    assert sum(each.json()["released"] for each in twice) >= 1


async def test_a_plugin_has_permissions_and_records(app):  # S3, S5
    import httpx  # noqa: PLC0415

    from onward.http import asgi  # noqa: PLC0415
    from onward.service.plugins import Plugin, PluginCall  # noqa: PLC0415
    from onward.service.values import TokenRequest  # noqa: PLC0415

    class Refund(msgspec.Struct, forbid_unknown_fields=True):
        amount: int

    plugin = Plugin("billing")

    @plugin.route("POST", "/refunds/{id}", permission="operate", body=Refund)
    async def refund(call: PluginCall) -> dict[str, object]:
        """Refund an order."""
        return {"id": call.path["id"], "amount": call.body.amount, "by": call.identity.actor}

    app.add_plugin(plugin)
    application = asgi(app)
    access = application.state.onward.services.access
    answer = httpx.Response(500)
    for request, expected in (
        (TokenRequest(name="viewer", role="viewer"), 403),
        (TokenRequest(name="limited", role="operator", orgs=("a",)), 403),
        (TokenRequest(name="operator", role="operator"), 200),
    ):
        token = (await access.create_token(ROOT, request)).secret
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost") as http:
            answer = await http.post(
                "/api/v1/plugins/billing/refunds/o~2f7",
                json={"amount": 5},
                headers={"Authorization": f"Bearer {token}"},
            )
            assert answer.status_code == expected
    assert answer.json() == {"id": "o/7", "amount": 5, "by": "token:operator"}
    from onward.engine.access import AuditQuery  # noqa: PLC0415

    services = application.state.onward.services
    records = (await services.audit.list(ROOT, AuditQuery(action="billing.refund"))).items
    assert [(one.actor, one.target) for one in records] == [("token:operator", "o/7")]
