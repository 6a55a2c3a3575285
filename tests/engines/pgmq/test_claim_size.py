"""Long messages and unreadable ones: a claim takes what it can, and neither stops the queue nor its neighbours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import ClaimRequest, QueueChange
from onward.engines.pgmq import claims
from onward.job import JobRef, NewJob
from onward.lifecycle import Complete, JobStatus
from tests.engines.pgmq.conftest import claim_jobs, settle

Sql = Callable[..., list[Any]]
Opened = Callable[..., Awaitable[CheckedEngine]]


def payload(length: int) -> str:
    return '"' + "x" * (length - 2) + '"'


@pytest.fixture
def small_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that a test can reach."""
    monkeypatch.setattr(claims, "MAX_CLAIM_BYTES", 1000)


@pytest.mark.parametrize("read", ["ready", "fifo", "grouped"])
async def test_a_claim_is_bounded_by_the_size_of_its_messages(
    opened: Opened, queue: str, small_claims: None, read: str
):  # O3
    engine = await opened(read_modes={queue: read})
    jobs = [NewJob(type="t", queue=queue, payload=payload(300), org_id=str(number)) for number in range(10)]
    sent = [made.ref for made in await engine.enqueue(jobs)]
    request = ClaimRequest(worker_id="w", queues=(queue,), slots=20)
    taken: list[JobRef] = []
    while len(taken) < 10:
        claimed = await engine.claim(request)
        assert 1 <= len(claimed.claims) <= 3
        taken += [claim.ref for claim in claimed.claims]
        assert len(taken) == 10 or claimed.retry_after == 0  # more waits: the worker asks again at once
        assert {claim.put_backs for claim in claimed.claims} == {0}  # no message was read for nothing
    assert taken == sent


@pytest.mark.parametrize("read", ["ready", "fifo", "grouped"])
async def test_a_message_longer_than_a_claim_comes_alone_and_compressed_ones_are_counted_too(
    opened: Opened, queue: str, small_claims: None, read: str
):  # O3
    engine = await opened(read_modes={queue: read})
    for number, length in enumerate((50, 20_000, 50, 100_000)):
        await engine.enqueue([NewJob(type="t", queue=queue, payload=payload(length), org_id=str(number))])
    sizes = [[len(claim.payload) for claim in await claim_jobs(engine, queue)] for _ in range(5)]
    assert sizes == [[50], [20_000], [50], [100_000], []]


async def test_long_messages_of_one_queue_do_not_starve_another(
    engine: CheckedEngine, queue: str, small_claims: None
):  # H9
    await engine.configure(f"{queue}b", QueueChange())
    await engine.enqueue([NewJob(type="t", queue=queue, payload=payload(1200)) for _ in range(9)])
    await engine.enqueue([NewJob(type="t", queue=f"{queue}b")])
    request = ClaimRequest(worker_id="w", queues=(queue, f"{queue}b"), slots=4)
    taken = [claim.ref.queue for _ in range(3) for claim in (await engine.claim(request)).claims]
    assert f"{queue}b" in taken


async def test_queues_with_a_long_message_each_share_the_bound(
    engine: CheckedEngine, queue: str, small_claims: None
):  # O3
    names = [f"{queue}{letter}" for letter in "abcde"]
    for name in names:
        await engine.configure(name, QueueChange())
        await engine.enqueue([NewJob(type="t", queue=name, payload=payload(900))])
    request = ClaimRequest(worker_id="w", queues=tuple(names), slots=9)
    claimed = [await engine.claim(request) for _ in range(3)]
    assert [len(each.claims) for each in claimed] == [2, 2, 1]
    assert [each.retry_after for each in claimed] == [0, 0, None]


UNREADABLE = {
    "a number of too many digits": """{"n": 1e5000}""",
    "nested too deep": '{"n": 12345678901234567890, "l": ' + "[" * 3000 + "]" * 3000 + "}",
}


@pytest.mark.parametrize("message", UNREADABLE.values(), ids=list(UNREADABLE))
async def test_a_message_that_cannot_be_read_is_failed_and_the_rest_goes_on(
    engine: CheckedEngine, queue: str, sql: Sql, message: str
):  # X3
    headers = """{"onward": {"type": "t"}}"""
    ((bad,),) = sql("select pgmq.send(%s, %s::jsonb, %s::jsonb)", queue, message, headers)
    (good,) = await engine.enqueue([NewJob(type="t", queue=queue)])
    claimed = await engine.claim(ClaimRequest(worker_id="w", queues=(queue,), slots=9))
    assert [claim.ref for claim in claimed.claims] == [good.ref]
    assert claimed.retry_after == 0
    ((status, error),) = sql(
        f"select headers #>> '{{onward,status}}', headers #>> '{{onward,error}}' from pgmq.a_{queue} where msg_id = %s",
        bad,
    )
    assert status == "failed"
    assert "UnreadableJob: its message cannot be read" in error
    job = await engine.get(JobRef(queue, str(bad)))
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert await settle(engine, claimed.claims[0], Complete())


async def test_a_backoff_of_a_queue_that_makes_no_sense_counts_as_not_said(
    engine: CheckedEngine, queue: str, sql: Sql
):  # X3
    await engine.enqueue([NewJob(type="t", queue=queue)])
    sql("update onward_pgmq.queue set backoff = %s where name = %s", "{no json", queue)
    (claim,) = await claim_jobs(engine, queue)
    assert claim.backoff is None
