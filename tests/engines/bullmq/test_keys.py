"""What is in Redis is what BullMQ would have there (B2). Key by key against the real one: tests/interop/bullmq."""

from __future__ import annotations

import json
from datetime import timedelta

from onward.engine.values import ClaimRequest, Exchange, Settlement
from onward.engines.bullmq.engine import BullMQEngine
from onward.job import NewJob
from onward.lifecycle import Bury, Complete, Failure, Retry
from onward.validation import MAX_LOG_LINES
from tests.engines.bullmq.queue import Queue
from tests.servers.redis import redis_url

BOOM = Failure("ValueError", "boom", "Traceback: boom")


async def test_a_plain_job_is_a_hash_in_the_wait_list_with_its_events_and_a_marker(queue: Queue):  # B2
    made = await queue.add(payload='{"to":"ada"}', max_attempts=3)
    job = queue.job(made.id)
    assert set(job) == {"name", "data", "opts", "timestamp", "delay", "priority"}
    assert (job["name"], job["data"], job["delay"], job["priority"]) == ("send", '{"to":"ada"}', "0", "0")
    opts = json.loads(job["opts"])
    assert (opts["attempts"], opts["backoff"]) == (3, {"type": "exponential", "delay": 1000})
    assert opts["kl"] == MAX_LOG_LINES  # B8
    assert queue.client.lrange(queue.key("wait"), 0, -1) == [made.id]
    assert [event["event"] for event in queue.events()] == ["added", "waiting"]
    assert queue.client.zrange(queue.key("marker"), 0, -1, withscores=True) == [("0", 0.0)]


async def test_a_delayed_jobs_score_is_its_time_and_its_turn_within_the_millisecond(queue: Queue):  # B2
    made = [await queue.add(delay=timedelta(hours=1)) for _ in range(2)]
    scores = [queue.client.zscore(queue.key("delayed"), one.id) for one in made]
    due = [int(queue.job(one.id)["timestamp"]) + 3_600_000 for one in made]
    assert [score // 4096 for score in scores if score is not None] == due
    assert json.loads(queue.job(made[0].id)["opts"])["delay"] == 3_600_000


async def test_a_held_job_is_active_locked_and_says_who_holds_it(queue: Queue):  # B2, B5
    made = await queue.add()
    (claim,) = await queue.take()
    assert queue.client.lrange(queue.key("active"), 0, -1) == [made.id]
    assert queue.client.get(queue.key(f"{made.id}:lock")) == claim.token[2]
    left = queue.client.pttl(queue.key(f"{made.id}:lock"))
    assert isinstance(left, int)
    assert 0 < left <= 30_000
    job = queue.job(made.id)
    assert (job["ats"], job["pb"]) == ("1", "worker-1")


async def test_attempts_are_counted_as_bullmq_counts_them(queue: Queue):  # B2, Counting
    made = await queue.add(max_attempts=2)
    (claim,) = await queue.take()
    assert await queue.settle(claim, Retry(timedelta(0), BOOM))
    assert queue.job(made.id)["atm"] == "1"
    (claim,) = await queue.take()
    assert claim.attempts == 2
    assert await queue.settle(claim, Bury(BOOM))
    job = queue.job(made.id)
    assert (job["atm"], job["ats"], job["failedReason"]) == ("2", "2", "ValueError: boom")
    assert json.loads(job["stacktrace"]) == ["Traceback: boom"] * 2
    assert queue.events()[-3:] == [
        {"event": "failed", "jobId": made.id, "failedReason": "ValueError: boom", "prev": "active"},
        {"event": "retries-exhausted", "jobId": made.id, "attemptsMade": "2"},
        {"event": "drained"},
    ]


async def test_a_worker_whose_lock_is_gone_cannot_complete_the_job(queue: Queue):  # B5
    made = await queue.add()
    (claim,) = await queue.take()
    queue.client.delete(queue.key(f"{made.id}:lock"))
    before = queue.job(made.id)
    assert not await queue.settle(claim, Complete())
    assert queue.job(made.id) == before
    queue.client.set(queue.key(f"{made.id}:lock"), "somebody else's")
    assert not await queue.settle(claim, Complete())
    assert queue.client.lrange(queue.key("active"), 0, -1) == [made.id]


async def test_finished_jobs_are_kept_as_the_jobs_own_options_say(queue: Queue):  # B3
    kept: list[tuple[str, object, set[str]]] = [
        ("a", True, set()),
        ("b", 0, set()),
        ("c", False, {"c"}),
        ("d", 1, {"d"}),
        ("e", {"count": 2}, {"d", "e"}),
    ]
    for id, keep, left in kept:
        queue.add_as_node(id, opts={"attempts": 1, "removeOnComplete": keep})
        (claim,) = await queue.take()
        assert await queue.settle(claim, Complete())
        assert set(queue.client.zrange(queue.key("completed"), 0, -1)) == left, id
        assert queue.client.exists(queue.key(id)) == (id in left)


async def test_metrics_are_kept_where_they_are_asked_for(queue: Queue, prefix: str):
    engine = BullMQEngine(redis_url(), prefix=prefix, metrics=10)
    await engine.open()
    try:
        await queue.add()
        counted = Queue(engine, queue.client, prefix, queue.name)
        (claim,) = (await engine.claim(ClaimRequest(worker_id="w", queues=(queue.name,)))).claims
        assert await counted.settle(claim, Complete())
    finally:
        await engine.close()
    found = queue.client.hgetall(queue.key("metrics:completed"))
    assert isinstance(found, dict)
    assert (found["count"], found["prevCount"]) == ("1", "0")


async def test_a_large_exchange_is_moved_in_several_goes_and_answered_as_one(queue: Queue):  # B10
    await queue.engine.enqueue([NewJob(type="send", queue="mail", payload=str(n)) for n in range(400)])
    held = await queue.take(180)
    assert [claim.payload for claim in held] == [str(n) for n in range(180)]
    queue.client.delete(queue.key(f"{held[70].ref.id}:lock"))
    answer = await queue.engine.exchange(
        Exchange(
            settlements=tuple(Settlement(claim, Complete()) for claim in held),
            request=ClaimRequest(worker_id="worker-1", queues=("mail",), slots=20, prefetch_started=140),
        )
    )
    assert answer.lost == {held[70].token}
    assert [claim.payload for claim in answer.claimed.claims] == [str(n) for n in range(180, 340)]
    assert len({claim.token for claim in answer.claimed.claims}) == 160
    assert queue.client.zcard(queue.key("completed")) == 179
    assert queue.client.llen(queue.key("active")) == 161
