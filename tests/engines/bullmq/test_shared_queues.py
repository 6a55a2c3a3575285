"""Queues that others use too, or no longer: what the leader looks after, what it removes, and what it counts."""

from __future__ import annotations

from datetime import timedelta
from time import time
from typing import Any

import pytest

from onward.engine.values import QueueChange, Retention, Term
from onward.engines.bullmq.engine import BullMQEngine
from onward.lifecycle import Complete, Fail, Failure
from tests.engines.bullmq.queue import Queue

LEASE = timedelta(seconds=30)
OLD = 1_000_000


@pytest.fixture
async def term(engine: BullMQEngine) -> Term:
    term = await engine.elect("leader", lease=LEASE)
    assert term is not None
    return term


def registered(queue: Queue) -> set[Any]:
    found: Any = queue.client.smembers(f"onward:{queue.prefix}:queues")
    return set(found)


async def rescue(engine: BullMQEngine, term: Term) -> int:
    results = [await engine.rescue(term, lease=LEASE, max_crashes=3) for _ in range(2)]
    return sum(result.changed for result in results)


async def test_a_queue_without_jobs_leaves_the_registry(engine: BullMQEngine, queue: Queue, term: Term):  # B5
    job = await queue.add()
    (claim,) = await queue.take()
    await engine.prune(term)
    assert registered(queue) == {"mail"}
    await queue.settle(claim, Complete())
    await engine.prune(term)
    assert registered(queue) == {"mail"}  # its job is kept
    queue.client.delete(queue.key("completed"), queue.key(job.id))
    await engine.prune(term)
    assert registered(queue) == set()
    assert [info.name for info in await engine.queues()] == ["mail"]
    await queue.add()
    assert registered(queue) == {"mail"}


async def test_a_queue_with_settings_or_a_schedule_stays_registered(engine: BullMQEngine, queue: Queue, term: Term):
    await engine.configure("mail", QueueChange(weight=3))
    queue.client.zadd(f"{queue.prefix}:reports:repeat", {"daily": 1})
    queue.client.hset(f"{queue.prefix}:reports:meta", "opts.maxLenEvents", 10000)
    queue.client.sadd(f"onward:{queue.prefix}:queues", "reports")
    await engine.prune(term)
    assert registered(queue) == {"mail", "reports"}


async def test_a_job_of_nodes_in_a_queue_that_left_the_registry_is_rescued(
    engine: BullMQEngine, queue: Queue, term: Term
):  # B5
    queue.add_as_node("1")
    await queue.take()
    queue.client.delete(queue.key("active"), queue.key("1"), queue.key("1:lock"))
    await engine.prune(term)
    assert registered(queue) == set()
    queue.add_as_node("2")
    await queue.take()  # by an engine that has seen the queue before
    queue.client.delete(queue.key("2:lock"))
    assert await rescue(engine, term) == 1


async def test_a_job_that_a_dead_worker_of_nodes_held_is_rescued_by_who_serves_the_queue(
    engine: BullMQEngine, queue: Queue, term: Term
):  # B5
    queue.add_as_node("1", place="active")
    assert await rescue(engine, term) == 0
    assert await queue.take() == ()  # an idle worker, which has claimed nothing there
    assert await rescue(engine, term) == 1


async def test_only_jobs_of_ours_are_pruned_where_nobody_has_said_how_long(
    engine: BullMQEngine, queue: Queue, term: Term
):  # B1
    ours = await queue.add()
    (claim,) = await queue.take()
    await queue.settle(claim, Complete())
    queue.client.zadd(queue.key("completed"), {ours.id: OLD})
    queue.add_as_node("theirs", place="completed")  # as BullMQ's client for Python leaves it: no version in meta
    queue.client.zadd(queue.key("completed"), {"theirs": OLD})
    assert (await engine.prune(term)).changed == 1
    assert queue.client.zrange(queue.key("completed"), 0, -1) == ["theirs"]
    await engine.configure("mail", QueueChange(retention=Retention(completed=timedelta(days=1))))
    assert (await engine.prune(term)).changed == 1
    assert queue.client.exists(queue.key("completed"), queue.key("theirs")) == 0


async def test_jobs_of_others_do_not_keep_ours_behind_them_from_being_pruned(
    engine: BullMQEngine, queue: Queue, term: Term
):  # B1
    for n in range(5):
        queue.add_as_node(f"theirs-{n}", place="completed")
        queue.client.zadd(queue.key("completed"), {f"theirs-{n}": OLD + n})
    ours = await queue.add()
    (claim,) = await queue.take()
    await queue.settle(claim, Complete())
    queue.client.zadd(queue.key("completed"), {ours.id: OLD + 9})
    pruned = [(await engine.prune(term, limit=2)).changed for _ in range(6)]
    assert sum(pruned) == 1
    assert queue.client.zrange(queue.key("completed"), 0, -1) == [f"theirs-{n}" for n in range(5)]


async def test_metrics_are_counted_where_nodes_workers_count_them(queue: Queue):  # B1
    await queue.add()
    await queue.add()
    first, second = await queue.take(2)
    await queue.settle(first, Complete())
    assert queue.client.exists(queue.key("metrics:completed")) == 0
    minute_ago = int(time() * 1000) - 60_000
    queue.client.hset(queue.key("metrics:completed"), mapping={"count": 5, "prevTS": minute_ago, "prevCount": 3})
    queue.client.lpush(queue.key("metrics:completed:data"), 3)
    await queue.settle(second, Complete())
    assert queue.client.hget(queue.key("metrics:completed"), "count") == "6"
    assert queue.client.lrange(queue.key("metrics:completed:data"), -2, -1) == ["2", "3"]
    await queue.add()
    (third,) = await queue.take()
    await queue.settle(third, Fail(Failure("ValueError", "no")))
    assert queue.client.hget(queue.key("metrics:failed"), "count") == "1"


async def test_a_limiter_that_has_lost_its_end_does_not_stop_its_queue(queue: Queue):  # B8
    queue.client.hset(queue.key("meta"), mapping={"max": 2, "duration": 60_000})
    queue.client.set(queue.key("limiter"), 2)
    for _ in range(3):
        await queue.add()
    assert len(await queue.take(3)) == 2
    assert 0 < int(queue.client.pttl(queue.key("limiter"))) <= 60_000
    assert await queue.take(3) == ()
