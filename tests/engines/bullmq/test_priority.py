"""Priorities point the other way in BullMQ (B9): nothing is reordered in silence."""

from __future__ import annotations

import pytest

from onward.engines.bullmq.engine import BullMQEngine
from onward.errors import InvalidValue
from onward.job import NewJob
from tests.engines.bullmq.queue import Queue
from tests.servers.redis import redis_url


async def test_a_priority_is_refused_where_the_queue_is_not_told_to_have_them(queue: Queue):  # B9, B3
    with pytest.raises(InvalidValue, match=r"priority = 5: .*\?prioritized=mail") as refusal:
        await queue.engine.enqueue([NewJob(type="send", queue="mail"), NewJob(type="send", queue="mail", priority=5)])
    assert refusal.value.field == "priority"
    assert queue.client.exists(queue.key("wait")) == 0


async def test_every_job_of_a_prioritized_queue_has_a_priority_the_plain_ones_too(queue: Queue, prefix: str):  # B9
    engine = BullMQEngine(redis_url(), prefix=prefix, prioritized=["mail"])
    await engine.open()
    try:
        urgent = Queue(engine, queue.client, prefix, "mail")
        ids = [(await urgent.add(priority=priority)).id for priority in (0, 1_000_000, 7)]
        assert [urgent.job(id)["priority"] for id in ids] == [str(2**20), str(2**20 - 1_000_000), str(2**20 - 7)]
        assert queue.client.exists(queue.key("wait")) == 0
        assert [claim.ref.id for claim in await urgent.take(3)] == [ids[1], ids[2], ids[0]]
        elsewhere = Queue(engine, queue.client, prefix, "other")
        await elsewhere.add()
        assert queue.client.llen(elsewhere.key("wait")) == 1
    finally:
        await engine.close()


async def test_who_opens_later_knows_which_queues_are_prioritized(queue: Queue, prefix: str):  # B9
    first = BullMQEngine(redis_url(), prefix=prefix, prioritized=["mail"])
    await first.open()
    await first.close()
    await queue.engine.open()
    made = await queue.add()
    assert queue.job(made.id)["priority"] == str(2**20)


async def test_jobs_from_node_keep_the_order_that_node_gave_them(queue: Queue):  # B9
    queue.add_as_node("ten", place="prioritized", priority=10)
    queue.add_as_node("one", place="prioritized", priority=1)
    queue.add_as_node("none")
    assert [claim.ref.id for claim in await queue.take(3)] == ["none", "one", "ten"]
