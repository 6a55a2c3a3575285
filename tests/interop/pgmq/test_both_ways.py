"""Onward and another client of PGMQ's on the same queue: each sees what the other does (G1)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from onward import App, DoNotRetry
from onward.engine.values import Claim, ClaimRequest, Settlement
from onward.job import Job, JobRef, NewJob
from onward.lifecycle import Complete, JobStatus
from onward.validation import encode_json
from tests.interop.pgmq.conftest import Client

BODIES: list[Any] = [{}, {"to": "ada", "n": 3, "ok": True, "nothing": None}, {"text": "naïve – 東京 – 🚀 \\ \" '"}]


async def job_of(app: App, queue: str, msg_id: int) -> Job:
    job = await app._core.engine.get(JobRef(queue, str(msg_id)))
    assert job is not None
    return job


async def claim_job(app: App, queue: str) -> Claim:
    (claim,) = (await app._core.engine.claim(ClaimRequest(worker_id="w", queues=(queue,)))).claims
    return claim


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
async def test_what_another_sends_runs_here(app: App, client: Client, queue: str, body: dict[str, Any]):  # G1
    seen = []

    @app.task(name=queue, queue=queue)
    async def handle(to: str = "", n: int = 0, ok: bool = False, nothing: None = None, text: str = "") -> str:
        seen.append({"to": to, "n": n, "ok": ok, "nothing": nothing, "text": text})
        return "done"

    msg_id = client.send(queue, body)
    await app.tick()
    assert {name: value for name, value in seen[0].items() if name in body} == body
    job = await job_of(app, queue, msg_id)
    assert (job.status, job.result) == (JobStatus.COMPLETED, "done")
    assert client.lengths(queue)[0] == 0
    assert not client.archive(queue, msg_id)


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
async def test_what_is_enqueued_here_is_plain_to_another(
    app: App, client: Client, queue: str, body: dict[str, Any]
):  # G1
    (added,) = await app._core.engine.enqueue([NewJob(type="greet", queue=queue, payload=encode_json(body))])
    found = client.read(queue, 30)
    assert found == {"id": int(added.id), "reads": 1, "body": body}
    assert (await job_of(app, queue, found["id"])).status is JobStatus.RUNNING
    assert client.archive(queue, found["id"])
    assert (await job_of(app, queue, found["id"])).status is JobStatus.COMPLETED


async def test_what_another_holds_is_not_taken_here(app: App, client: Client, queue: str):  # G2
    msg_id = client.send(queue, {})
    assert client.read(queue, 30) is not None
    request = ClaimRequest(worker_id="w", queues=(queue,))
    assert (await app._core.engine.claim(request)).claims == ()
    client.set_vt(queue, msg_id, 0)
    assert (await claim_job(app, queue)).ref.id == str(msg_id)


async def test_what_is_held_here_is_not_taken_by_another(app: App, client: Client, queue: str):  # G2
    msg_id = client.send(queue, {})
    claim = await claim_job(app, queue)
    assert client.read(queue, 30) is None
    client.set_vt(queue, msg_id, 0)
    found = client.read(queue, 30)
    assert found is not None
    assert found["reads"] == 2
    assert await app._core.engine.settle([Settlement(claim, Complete())]) == {claim.token}


async def test_what_another_delays_is_scheduled_here(app: App, client: Client, queue: str):  # O1
    msg_id = client.send(queue, {}, delay=60)
    assert (await job_of(app, queue, msg_id)).status is JobStatus.SCHEDULED
    assert client.delete(queue, msg_id)
    assert await app._core.engine.get(JobRef(queue, str(msg_id))) is None


async def test_what_fails_here_is_archived_with_the_reason(app: App, client: Client, queue: str, url: str):  # G1, O8
    @app.task(name=queue, queue=queue)
    async def handle() -> None:
        raise DoNotRetry("no such page")

    msg_id = client.send(queue, {})
    await app.tick()
    assert client.lengths(queue) == (0, 1)
    with psycopg.connect(url) as connection:
        ((headers,),) = connection.execute(f"select headers from pgmq.a_{queue}").fetchall()
    assert headers["onward"]["status"] == "failed"
    assert "no such page" in headers["onward"]["error"]
    assert (await job_of(app, queue, msg_id)).attempts == 1


async def test_a_message_that_another_keeps_dropping_is_poison_here(app: App, client: Client, queue: str):  # G3
    msg_id = client.send(queue, {})
    for _ in range(3):
        assert client.read(queue, 30) is not None
        client.set_vt(queue, msg_id, 0)
    assert (await app._core.engine.claim(ClaimRequest(worker_id="w", queues=(queue,)))).claims == ()
    job = await job_of(app, queue, msg_id)
    assert (job.status, job.last_error) == (JobStatus.FAILED, "PoisonPill: read 3 times without an outcome")
    assert client.read(queue, 30) is None


async def test_lengths_agree(app: App, client: Client, queue: str):
    for _ in range(5):
        client.send(queue, {})
    claim = await claim_job(app, queue)
    assert await app._core.engine.settle([Settlement(claim, Complete())]) == frozenset()
    (info,) = await app._core.engine.queues(queue)
    assert info.counts == {JobStatus.PENDING: 4, JobStatus.COMPLETED: 1}
    assert client.lengths(queue) == (4, 5)
