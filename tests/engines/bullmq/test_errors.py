"""What is damaged, lost or restarted: a job is failed with a reason or given back, and the worker goes on."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from onward.bullmq import BullMQ
from onward.engine.values import JobFilter, MaintenanceResult, QueueChange
from onward.engines.bullmq.engine import BullMQEngine
from onward.errors import InvalidValue, StoreUnavailable
from onward.job import NewJob
from onward.lifecycle import MAX_CRASHES, Complete, Fail, Failure, JobStatus
from tests.engines.bullmq.queue import Queue
from tests.servers.redis import RedisServer

LEASE = timedelta(seconds=30)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"data": "{not json"}, "its data is no JSON"),
        ({"opts": "{not json"}, "its options cannot be read"),
        ({"opts": "[]"}, "its options cannot be read"),
        ({"defa": "child bull:mail:7 failed"}, "child bull:mail:7 failed"),
    ],
    ids=["data", "opts", "list", "deferred"],
)
async def test_what_cannot_be_run_is_failed_with_a_reason_and_the_next_comes(
    queue: Queue, fields: dict[str, str], says: str
):  # B5
    queue.add_as_node("bad", **fields)
    good = await queue.add()
    assert [claim.ref for claim in await queue.take(2)] == [good.ref]
    job = await queue.engine.get(queue.ref("bad"))
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert says in (job.last_error or "")


async def test_an_id_without_a_job_is_left_out(queue: Queue):
    await queue.add()
    queue.client.rpush(queue.key("wait"), "nobody")
    assert len(await queue.take(5)) == 1
    assert queue.client.llen(queue.key("active")) == 1


async def check_stalled(queue: Queue) -> MaintenanceResult:
    term = await queue.engine.elect("leader", lease=LEASE)
    assert term is not None
    batch = await queue.engine.rescue(term, lease=LEASE, max_crashes=MAX_CRASHES)
    await queue.engine.resign(term)
    return batch


async def rescued(queue: Queue) -> int:
    await check_stalled(queue)
    return (await check_stalled(queue)).changed


async def test_a_job_that_cannot_be_read_does_not_keep_lost_jobs_from_being_given_back(queue: Queue):  # X3
    for id in ("counted", "string"):
        queue.add_as_node(id)
    made = await queue.add()
    for claim in await queue.take(3):
        queue.client.delete(queue.key(f"{claim.ref.id}:lock"))
    queue.client.hset(queue.key("counted"), "stc", "often")
    queue.client.delete(queue.key("string"))
    queue.client.set(queue.key("string"), "mine")
    assert await rescued(queue) == 2
    assert {claim.ref.id for claim in await queue.take(3)} == {"counted", made.id}


async def test_a_job_without_a_lock_is_given_back_at_the_second_look_and_not_if_it_has_one_by_then(queue: Queue):  # B5
    made = await queue.add()
    await queue.take()
    lock = queue.key(f"{made.id}:lock")
    token = str(queue.client.get(lock))
    queue.client.delete(lock)
    first = await check_stalled(queue)
    assert (first.changed, first.next_in) == (0, 1.0)
    queue.client.set(lock, token)
    assert (await check_stalled(queue)).changed == 0
    queue.client.delete(lock)
    assert (await check_stalled(queue)).changed == 1
    assert queue.client.exists(queue.key("stalled")) == 0


async def test_a_job_lost_too_often_is_failed_by_whoever_takes_it_next(queue: Queue):  # B5, Counting
    made = await queue.add()
    for times in range(1, MAX_CRASHES + 1):
        assert len(await queue.take()) == 1
        queue.client.delete(queue.key(f"{made.id}:lock"))
        assert await rescued(queue) == 1
        assert queue.job(made.id)["stc"] == str(times)
        assert {"event": "stalled", "jobId": made.id} in queue.events()
    assert await queue.take() == ()
    job = await queue.engine.get(made.ref)
    assert job is not None
    assert (job.status, job.last_error) == (JobStatus.FAILED, "job stalled more than allowable limit")


async def test_a_server_that_has_forgotten_the_scripts_is_told_them(queue: Queue):
    await queue.add()
    queue.client.script_flush()
    assert len(await queue.engine.enqueue([NewJob(type="send", queue="mail")] * 500)) == 500
    queue.client.script_flush()
    (claim,) = await queue.take()
    queue.client.script_flush()
    assert await queue.settle(claim, Complete())


async def test_a_server_that_comes_back_has_every_job_that_was_taken_in():  # X3
    with RedisServer(appendonly="yes") as server:
        engine = BullMQEngine(server.url)
        await engine.open()
        try:
            (made,) = await engine.enqueue([NewJob(type="send")])
            server.kill()
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await engine.enqueue([NewJob(type="send")])
            with pytest.raises(StoreUnavailable):
                engine.enqueue_sync([NewJob(type="send")])
            server.start()
            job = await engine.get(made.ref)
            assert job is not None
            assert job.status is JobStatus.PENDING
        finally:
            await engine.close()


# Paused by BullMQ 5 ---------------------------------------------------------------------------------------------------


async def test_a_job_added_while_bullmq_5_has_paused_the_queue_is_not_lost_when_it_goes_on(queue: Queue):
    first = await queue.add()
    # As version 5 pauses: the list is renamed, and renamed back over whatever is there then.
    queue.client.hset(queue.key("meta"), mapping={"paused": 1, "version": "bullmq:5.81.5"})
    queue.client.rename(queue.key("wait"), queue.key("paused"))
    second = await queue.add()
    assert queue.client.lrange(queue.key("paused"), 0, -1) == [second.id, first.id]
    assert await queue.take(5) == ()
    assert [job.counts for job in await queue.engine.queues("mail")] == [{JobStatus.PENDING: 2}]
    queue.client.hdel(queue.key("meta"), "paused")
    queue.client.rename(queue.key("paused"), queue.key("wait"))
    assert [claim.ref for claim in await queue.take(5)] == [first.ref, second.ref]


async def test_jobs_of_both_lists_come_in_order_when_we_let_the_queue_go_on(queue: Queue):
    old, new = await queue.add(), await queue.add()
    queue.client.lrem(queue.key("wait"), 1, old.id)
    queue.client.lpush(queue.key("paused"), old.id)
    queue.client.hset(queue.key("meta"), "paused", 1)
    await queue.engine.configure("mail", QueueChange(paused=False))
    assert [claim.ref for claim in await queue.take(5)] == [old.ref, new.ref]


# Names ----------------------------------------------------------------------------------------------------------------


async def test_a_colon_in_a_queues_name_is_refused(queue: Queue):  # X5
    for ask in (
        lambda: queue.engine.enqueue([NewJob(type="send", queue="a:b")]),
        lambda: Queue(queue.engine, queue.client, queue.prefix, "a:b").take(),
    ):
        with pytest.raises(InvalidValue, match="must not contain ':'"):
            await ask()


async def test_a_name_that_exists_is_taken_as_it_is_and_a_new_one_must_keep_the_rule(queue: Queue):  # X5
    nodes = Queue(queue.engine, queue.client, queue.prefix, "Email Jobs")
    with pytest.raises(InvalidValue, match="lower-case"):
        await nodes.add()
    nodes.add_as_node("1")
    made = await nodes.add()
    assert {claim.ref for claim in await nodes.take(2)} == {made.ref, nodes.ref("1")}


async def test_a_queue_that_only_node_knows_is_found_by_a_pattern(queue: Queue):  # X5
    Queue(queue.engine, queue.client, queue.prefix, "mail/node").add_as_node("1")
    found = Queue(queue.engine, queue.client, queue.prefix, "mail/*")
    assert [claim.ref.queue for claim in await found.take()] == ["mail/node"]


# Flows ----------------------------------------------------------------------------------------------------------------


def family(queue: Queue, **parent: bool) -> None:
    """Leave a parent that waits for two children, as Node's FlowProducer does."""
    queue.add_as_node("parent", place="waiting-children")
    for child in ("one", "two"):
        parent_fields = {"id": "parent", "queueKey": f"{queue.prefix}:mail", **parent}
        queue.add_as_node(child, parentKey=queue.key("parent"), parent=json.dumps(parent_fields))
        queue.client.sadd(queue.key("parent:dependencies"), queue.key(child))


async def test_a_parent_is_ready_when_its_last_child_is_done_and_has_their_results(queue: Queue):
    family(queue)
    one, two = await queue.take(2)
    assert await queue.settle(one, Complete('"1"'))
    assert await queue.take() == ()
    assert await queue.settle(two, Complete('"2"'))
    assert [claim.ref.id for claim in await queue.take()] == ["parent"]
    assert queue.client.hgetall(queue.key("parent:processed")) == {queue.key("one"): '"1"', queue.key("two"): '"2"'}


async def test_a_child_that_fails_its_parent_has_it_failed_without_running(queue: Queue):
    family(queue, fpof=True)
    one, two = await queue.take(2)
    assert await queue.settle(one, Fail(Failure("ValueError", "boom")))
    assert await queue.take() == ()
    parent = await queue.engine.get(queue.ref("parent"))
    assert parent is not None
    assert (parent.status, parent.last_error) == (JobStatus.FAILED, f"child {queue.key('one')} failed")
    assert await queue.settle(two, Complete())


async def test_a_parent_that_is_deleted_takes_its_children_with_it(queue: Queue):
    family(queue)
    await queue.settle((await queue.take())[0], Complete())
    (gone,) = await queue.engine.delete(JobFilter(refs=(queue.ref("parent"),)))
    assert gone.ref == queue.ref("parent")
    assert queue.client.exists(*map(queue.key, ("parent", "one", "two", "wait", "completed", "waiting-children"))) == 0


async def test_a_parent_stays_as_long_as_a_child_of_it_is_held(queue: Queue):
    family(queue)
    await queue.take()
    assert await queue.engine.delete(JobFilter(refs=(queue.ref("parent"),))) == []
    assert queue.client.exists(queue.key("parent"), queue.key("one"), queue.key("two")) == 3


async def test_a_parent_that_is_taken_back_takes_the_children_that_wait_with_it(queue: Queue):
    family(queue)
    (held,) = await queue.take()
    await queue.engine.cancel(JobFilter(refs=(queue.ref("parent"),)))
    assert queue.client.exists(queue.key("parent"), queue.key("two")) == 0
    assert await queue.settle(held, Complete())


async def test_the_next_job_of_a_schedule_goes_only_with_the_schedule(queue: Queue):
    bullmq = BullMQ(queue.engine)
    made = await bullmq.upsert_job_scheduler("mail", "tick", every=60_000)
    for verb in (queue.engine.delete, queue.engine.cancel):
        assert await verb(JobFilter(refs=(made.ref,))) == []
    assert await bullmq.remove_job_scheduler("mail", "tick")


async def test_a_job_that_is_replayed_keeps_the_traces_of_its_failures(queue: Queue):  # O8
    made = await queue.add()
    await queue.settle((await queue.take())[0], Fail(Failure("ValueError", "boom", "Traceback: boom")))
    assert len(await queue.engine.replay(JobFilter(refs=(made.ref,)))) == 1
    job = queue.job(made.id)
    assert job["stacktrace"] == '["Traceback: boom"]'
    assert not {"failedReason", "atm", "ats"} & job.keys()


# Schedules ------------------------------------------------------------------------------------------------------------


async def test_picking_up_the_job_of_a_schedule_makes_the_next_one(queue: Queue):
    due = 1_700_000_000_000
    opts = {"attempts": 0, "repeat": {"every": 60_000, "count": 1}, "repeatJobKey": "tick"}
    queue.client.zadd(queue.key("repeat"), {"tick": due})
    queue.client.hset(queue.key("repeat:tick"), mapping={"name": "send", "data": '{"n":1}', "every": 60_000, "ic": 1})
    queue.add_as_node(f"repeat:tick:{due}", opts=opts, rjk="tick")
    (claim,) = await queue.take()
    assert claim.ref.id == f"repeat:tick:{due}"
    (following,) = queue.client.zrange(queue.key("delayed"), 0, -1)
    next_due = int(queue.client.zscore(queue.key("repeat"), "tick") or 0)
    assert following == f"repeat:tick:{next_due}"
    assert next_due % 60_000 == 0
    job = queue.job(following)
    assert (job["rjk"], job["data"], json.loads(job["opts"])["repeat"]["count"]) == ("tick", '{"n":1}', 2)
    assert queue.client.hget(queue.key("repeat:tick"), "ic") == "2"


async def test_a_job_of_a_schedule_that_has_gone_on_since_makes_no_other(queue: Queue):
    due = 1_700_000_000_000
    opts = {"attempts": 0, "repeat": {"every": 60_000, "count": 1}, "repeatJobKey": "tick"}
    queue.client.zadd(queue.key("repeat"), {"tick": due + 60_000})
    queue.client.hset(queue.key("repeat:tick"), mapping={"name": "send", "every": 60_000, "ic": 2})
    queue.add_as_node(f"repeat:tick:{due}", opts=opts, rjk="tick")
    assert len(await queue.take()) == 1
    assert queue.client.exists(queue.key("delayed")) == 0
    assert queue.client.zscore(queue.key("repeat"), "tick") == due + 60_000
