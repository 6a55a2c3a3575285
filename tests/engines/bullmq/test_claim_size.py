"""Long payloads and unreadable jobs: a claim takes what it can, and neither stops the queue nor its neighbours."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from onward.engine.values import ClaimRequest, Settlement
from onward.engines.bullmq import claims
from onward.job import NewJob
from onward.lifecycle import Complete, Fail, Failure, JobStatus
from tests.engines.bullmq.queue import Queue

BOOM = Failure("ValueError", "boom")


@pytest.fixture(autouse=True)
def small_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach."""
    monkeypatch.setattr(claims, "MAX_BATCH_BYTES", 2000)


def payload(length: int) -> str:
    return '"' + "x" * (length - 2) + '"'


@pytest.mark.parametrize("place", ["wait", "prioritized"])
async def test_a_claim_is_bounded_by_the_size_of_its_jobs_and_keeps_their_order(queue: Queue, place: str):  # O3
    for number in range(10):
        queue.add_as_node(str(number), place=place, data=payload(700), priority=number + 1)
    request = ClaimRequest(worker_id="w", queues=(queue.name,), slots=20)
    taken: list[str] = []
    while len(taken) < 10:
        claimed = await queue.engine.claim(request)
        assert 1 <= len(claimed.claims) <= 2
        taken += [claim.ref.id for claim in claimed.claims]
        assert len(taken) == 10 or claimed.retry_after == 0  # more waits: the worker asks again at once
    assert taken == [str(number) for number in range(10)]
    assert queue.client.llen(queue.key("active")) == 10


async def test_a_job_longer_than_a_claim_comes_alone(queue: Queue):  # O3
    for length in (50, 5000, 50, 5000):
        await queue.add(payload=payload(length))
    sizes = [[len(claim.payload) for claim in await queue.take(9)] for _ in range(4)]
    assert sizes == [[50], [5000], [50], [5000]]
    assert await queue.take(9) == ()


async def test_long_jobs_of_one_queue_do_not_starve_another(queue: Queue):  # H9
    names = [f"{queue.name}-a", f"{queue.name}-b"]
    await queue.engine.enqueue([NewJob(type="t", queue=names[0], payload=payload(1900)) for _ in range(20)])
    await queue.engine.enqueue([NewJob(type="t", queue=names[1])])
    request = ClaimRequest(worker_id="w", queues=tuple(names), slots=4)
    taken = [claim.ref.queue for _ in range(3) for claim in (await queue.engine.claim(request)).claims]
    assert names[1] in taken


@pytest.mark.parametrize("name", ["atm", "stc", "priority", "timestamp", "processedOn"])
@pytest.mark.parametrize("value", ["many", "nan", "1e999"])
async def test_a_job_whose_number_is_none_is_failed_and_the_rest_goes_on(queue: Queue, name: str, value: str):  # X3
    queue.add_as_node("bad")
    queue.client.hset(queue.key("bad"), name, value)
    good = await queue.add()
    assert [claim.ref for claim in await queue.take(9)] == [good.ref]
    job = await queue.engine.get(queue.ref("bad"))
    assert job is not None
    assert (job.status, job.last_error) == (
        JobStatus.FAILED,
        f"the job cannot be read: its {name} is no number: '{value}'",
    )


@pytest.mark.parametrize("kind", ["string", "list"])
async def test_a_key_that_is_no_hash_is_taken_off_the_queue_and_the_rest_goes_on(
    queue: Queue, kind: str, caplog: pytest.LogCaptureFixture
):  # X3
    first = await queue.add()
    if kind == "string":
        queue.client.set(queue.key("bad"), "mine")
    else:
        queue.client.rpush(queue.key("bad"), "mine")
    queue.client.lpush(queue.key("wait"), "bad")
    last = await queue.add()
    with caplog.at_level(logging.ERROR):
        taken = await queue.take(9)
    assert [claim.ref for claim in taken] == [first.ref, last.ref]
    assert "no hash" in caplog.text
    assert queue.client.llen(queue.key("wait")) == 0
    assert await queue.engine.get(queue.ref("bad")) is None
    assert not await queue.engine.settle([Settlement(claim, Complete()) for claim in taken])


@pytest.mark.parametrize(
    "fields",
    [
        {"stacktrace": "{no json", "opts": '{"attempts": 1, "stackTraceLimit": 3}'},
        {"stacktrace": "7", "opts": '{"attempts": 1, "stackTraceLimit": 3}'},
        {"parentKey": "bull:q:1", "parent": "{no json"},
        {"parentKey": "bull:q:1", "parent": "7"},
        {"parentKey": "bull:q:1", "parent": '{"id": 7, "queueKey": 8}'},
        {"opts": None},
        {"data": None},
    ],
)
@pytest.mark.parametrize("outcome", [Complete('"done"'), Fail(BOOM)])
async def test_what_stands_beside_a_job_and_makes_no_sense_does_not_lose_its_outcome(
    queue: Queue, fields: dict[str, Any], outcome: Any
):  # X3
    queue.add_as_node("odd")
    for name, value in fields.items():
        queue.client.hdel(queue.key("odd"), name)
        if value is not None:
            queue.client.hset(queue.key("odd"), name, value)
    await queue.add()
    taken = await queue.take(9)
    ended = [Settlement(claim, outcome) for claim in taken]
    assert not await queue.engine.settle(ended)
    job = await queue.engine.get(queue.ref("odd"))
    assert job is not None
    assert job.status in {JobStatus.COMPLETED, JobStatus.FAILED}
    assert queue.client.llen(queue.key("active")) == 0
