"""BullMQ's own verbs from Python: what is refused, and what Redis has after."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import onward.bullmq as public
from onward import App
from onward.bullmq import BackoffOptions, BullMQ, Deduplication, Flow, bullmq_of
from onward.engine.values import JobFilter
from onward.engines.bullmq import native
from onward.engines.bullmq.engine import BullMQEngine
from onward.errors import InvalidValue, PayloadTooLarge
from onward.job import EnqueueStatus, JobRef
from onward.lifecycle import Complete, JobStatus
from tests.engines.bullmq.queue import Queue


@pytest.fixture
def bullmq(engine: BullMQEngine) -> BullMQ:
    return BullMQ(engine)


def test_the_public_module_has_every_native_name():
    assert public.__all__ == [*native.__all__, "bullmq_of"]
    for name in native.__all__:
        assert getattr(public, name) is getattr(native, name)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"job_id": "7"}, "job_id"),
        ({"job_id": "a:b"}, "job_id"),
        ({"delay": -1}, "delay"),
        ({"priority": 2**21}, "priority"),
        ({"attempts": 0}, "attempts"),
        ({"backoff": 0}, "backoff.delay"),
        ({"backoff": BackoffOptions(type="linear", delay=1)}, "backoff.type"),  # type: ignore[arg-type]
        ({"backoff": BackoffOptions(type="fixed", delay=1, jitter=2)}, "backoff.jitter"),
        ({"remove_on_complete": -1}, "remove_on_complete"),
        ({"deduplication": Deduplication(id="")}, "deduplication.id"),
        ({"deduplication": Deduplication(id="d", ttl=0)}, "deduplication.ttl"),
        ({"deduplication": Deduplication(id="d"), "parent": JobRef("mail", "p")}, "deduplication"),
        ({"fail_parent_on_failure": True, "ignore_dependency_on_failure": True}, "ignore_dependency_on_failure"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(
    bullmq: BullMQ, queue: Queue, options: dict[str, Any], field: str
):  # B3
    with pytest.raises(InvalidValue) as refused:
        await bullmq.add_bulk("mail", [("fine", {}, {}), ("send", {}, options)])
    assert refused.value.field == field
    assert list(queue.client.scan_iter(f"{queue.prefix}:*")) == []


async def test_a_name_data_and_a_size_keep_the_same_rules_as_a_task(engine: BullMQEngine):  # B3, B4
    small = BullMQ(engine, max_payload=100)
    with pytest.raises(InvalidValue, match="name"):
        await small.add("mail", " ")
    with pytest.raises(InvalidValue, match="NaN"):
        await small.add("mail", "send", {"n": float("nan")})
    with pytest.raises(PayloadTooLarge):
        await small.add("mail", "send", {"text": "x" * 100})


async def test_an_id_that_exists_adds_nothing(bullmq: BullMQ, queue: Queue):  # B3
    first = await bullmq.add("mail", "send", {"n": 1}, job_id="order")
    second = await bullmq.add("mail", "send", {"n": 2}, job_id="order")
    assert (first.enqueue_status, second.enqueue_status) == (EnqueueStatus.INSERTED, EnqueueStatus.SAME_KEY)
    assert queue.job("order")["data"] == '{"n":1}'


async def test_the_last_comes_first_where_it_is_told_to(bullmq: BullMQ, queue: Queue):
    for n, options in enumerate(({}, {}, {"lifo": True})):
        await bullmq.add("mail", "send", {"n": n}, **options)
    assert [claim.payload for claim in await queue.take(3)] == ['{"n":2}', '{"n":0}', '{"n":1}']


async def test_a_debounced_job_is_the_last_that_was_added(bullmq: BullMQ, queue: Queue):
    de = Deduplication(id="user-7", ttl=60_000, extend=True, replace=True)
    first = await bullmq.add("mail", "send", {"n": 1}, delay=60_000, deduplication=de)
    second = await bullmq.add("mail", "send", {"n": 2}, delay=60_000, deduplication=de)
    assert queue.client.exists(queue.key(first.id)) == 0
    assert queue.client.zrange(queue.key("delayed"), 0, -1) == [second.id]


async def test_a_throttled_job_is_the_first_and_may_be_let_go_by_hand(bullmq: BullMQ):
    de = Deduplication(id="user-7", ttl=60_000)
    first = await bullmq.add("mail", "send", deduplication=de)
    again = await bullmq.add("mail", "send", deduplication=de)
    assert (again.ref, again.enqueue_status) == (first.ref, EnqueueStatus.DEDUPED)
    assert await bullmq.remove_deduplication_key("mail", "user-7")
    assert (await bullmq.add("mail", "send", deduplication=de)).enqueue_status is EnqueueStatus.INSERTED


async def test_a_parent_that_is_not_there_is_refused_and_nothing_is_added(bullmq: BullMQ, queue: Queue):
    jobs: list[tuple[str, Any, dict[str, Any]]] = [
        ("fine", {}, {}),
        ("send", {}, {"parent": JobRef("mail", "nobody")}),
    ]
    with pytest.raises(InvalidValue, match="there is no job"):
        await bullmq.add_bulk("mail", jobs)
    assert queue.client.exists(queue.key("wait")) == 0


async def test_a_flow_is_added_whole_and_its_parent_comes_last(bullmq: BullMQ, queue: Queue):
    pages = [Flow("mail", "page", {"n": n}, [Flow("mail", "image")] if n else ()) for n in range(2)]
    tree = await bullmq.add_flow(Flow("mail", "book", {"title": "x"}, pages))
    assert [len(page.children) for page in tree.children] == [0, 1]
    seen = []
    while claims := await queue.take():
        seen.append(claims[0].type)
        await queue.settle(claims[0], Complete())
    assert seen == ["page", "image", "page", "book"]
    book = await queue.engine.get(tree.ref)
    assert book is not None
    assert book.status is JobStatus.COMPLETED


async def test_a_job_may_get_a_parent_that_waits_already(bullmq: BullMQ, queue: Queue):
    tree = await bullmq.add_flow(Flow("mail", "book", {}, [Flow("mail", "page")]))
    await bullmq.add("mail", "late page", parent=tree.ref)
    for claim in await queue.take(2):
        assert await queue.engine.get(tree.ref) is not None
        await queue.settle(claim, Complete())
    assert [claim.type for claim in await queue.take()] == ["book"]


async def test_a_parent_whose_id_has_colons_is_woken_by_its_last_child(bullmq: BullMQ, queue: Queue):  # B1
    parent = "repeat:daily:1700000000000"
    queue.add_as_node(parent, place="waiting-children")
    for name in ("page", "cover"):
        await bullmq.add("mail", name, parent=JobRef("mail", parent))
    page, cover = await queue.take(2)
    await queue.settle(page, Complete())
    assert queue.client.zrange(queue.key("waiting-children"), 0, -1) == [parent]
    await queue.settle(cover, Complete())
    assert queue.client.lrange(queue.key("wait"), 0, -1) == [parent]


async def test_a_parent_of_another_prefix_is_woken_by_its_last_child(bullmq: BullMQ, queue: Queue):  # B1
    there = f"{queue.prefix}:other"  # below the engine's prefix, so that the fixture removes its keys
    parent = "repeat:daily:1700000000000"
    queue.client.hset(f"{there}:books:{parent}", mapping={"name": "book", "priority": 0, "delay": 0})
    queue.client.zadd(f"{there}:books:waiting-children", {parent: 1})
    child = await bullmq.add("mail", "page")
    queue.client.sadd(f"{there}:books:{parent}:dependencies", queue.key(child.ref.id))
    parent_json = json.dumps({"id": parent, "queueKey": f"{there}:books"})
    queue.client.hset(queue.key(child.ref.id), mapping={"parentKey": f"{there}:books:{parent}", "parent": parent_json})
    (page,) = await queue.take()
    await queue.settle(page, Complete())
    assert queue.client.lrange(f"{there}:books:wait", 0, -1) == [parent]


async def test_a_parent_whose_id_has_colons_is_woken_when_its_last_child_is_removed(bullmq: BullMQ, queue: Queue):
    parent = "repeat:daily:1700000000000"  # B1
    queue.add_as_node(parent, place="waiting-children")
    child = await bullmq.add("mail", "page", parent=JobRef("mail", parent))
    await queue.engine.delete(JobFilter(refs=(child.ref,)))
    assert queue.client.lrange(queue.key("wait"), 0, -1) == [parent]


async def test_a_parent_whose_id_has_colons_is_woken_by_a_child_that_had_completed(bullmq: BullMQ, queue: Queue):
    await bullmq.add("mail", "page", job_id="page")  # B1
    (page,) = await queue.take()
    await queue.settle(page, Complete())
    parent = "repeat:daily:1700000000000"
    queue.add_as_node(parent, place="waiting-children")
    await bullmq.add("mail", "page", job_id="page", parent=JobRef("mail", parent))
    assert queue.client.lrange(queue.key("wait"), 0, -1) == [parent]


async def test_a_child_whose_id_has_colons_is_removed_with_its_parent(bullmq: BullMQ, queue: Queue):  # B1
    child = "repeat:daily:1700000000000"
    parent = await bullmq.add("mail", "book", job_id="book")
    queue.add_as_node(child)
    queue.client.sadd(queue.key("book:dependencies"), queue.key(child))
    await queue.engine.delete(JobFilter(refs=(parent.ref,)))
    assert queue.client.lrange(queue.key("wait"), 0, -1) == []
    assert queue.job(child) == {}


async def test_a_scheduler_is_made_changed_listed_and_ended(bullmq: BullMQ, queue: Queue):
    first = await bullmq.upsert_job_scheduler("mail", "daily", pattern="0 6 * * *", tz="Europe/Berlin", data={"n": 1})
    await bullmq.upsert_job_scheduler("mail", "daily", pattern="0 7 * * *", tz="Europe/Berlin", name="send")
    (known,) = await bullmq.job_schedulers("mail")
    assert (known.id, known.name, known.pattern, known.tz) == ("daily", "send", "0 7 * * *", "Europe/Berlin")
    assert queue.client.exists(queue.key(first.id)) == 0
    assert queue.client.zrange(queue.key("delayed"), 0, -1) == [f"repeat:daily:{known.next}"]
    assert await bullmq.remove_job_scheduler("mail", "daily")
    assert not await bullmq.remove_job_scheduler("mail", "daily")
    assert queue.client.exists(queue.key("delayed")) == 0


@pytest.mark.parametrize(
    ("repeat", "field"),
    [
        ({}, "every"),
        ({"every": 1000, "pattern": "* * * * *"}, "every"),
        ({"every": 0}, "every"),
        ({"pattern": "often"}, "pattern"),
        ({"pattern": "* * * * *", "tz": "Mars/Olympus"}, "tz"),
        ({"every": 1000, "end_date": datetime(2020, 1, 1, tzinfo=UTC)}, "end_date"),
        ({"every": 1000, "options": {"job_id": "mine"}}, "job_id"),
    ],
)
async def test_what_is_no_schedule_is_refused(bullmq: BullMQ, queue: Queue, repeat: dict[str, Any], field: str):
    with pytest.raises(InvalidValue) as refused:
        await bullmq.upsert_job_scheduler("mail", "tick", **repeat)
    assert refused.value.field == field
    assert queue.client.exists(queue.key("repeat")) == 0


async def test_a_queue_with_active_jobs_is_not_obliterated_unless_forced(bullmq: BullMQ, queue: Queue):
    await queue.add(idempotency_key="k")
    await queue.take()
    with pytest.raises(InvalidValue, match="active"):
        await bullmq.obliterate("mail")
    await bullmq.obliterate("mail", force=True)
    keys = {*queue.client.scan_iter(f"{queue.prefix}:*"), *queue.client.scan_iter(f"onward:{queue.prefix}:*")}
    assert keys == {f"onward:{queue.prefix}:generation"}


async def test_more_jobs_than_one_call_takes_are_drained_and_cleaned(bullmq: BullMQ, queue: Queue):
    await bullmq.add_bulk("mail", [("send", {}, {})] * 1200)
    assert await bullmq.drain("mail") == 1200
    await bullmq.add_bulk("mail", [("send", {}, {"delay": 1000 * (n % 2)}) for n in range(1200)])
    assert len(await bullmq.clean("mail", state="waiting")) == 600
    assert len(await bullmq.clean("mail", state="delayed", limit=550)) == 550


async def test_the_next_job_of_a_schedule_is_neither_drained_nor_cleaned(bullmq: BullMQ, queue: Queue):
    made = await bullmq.upsert_job_scheduler("mail", "tick", every=60_000)
    assert await bullmq.drain("mail", delayed=True) == 0
    assert await bullmq.clean("mail", state="delayed") == []
    assert queue.client.exists(queue.key(made.id)) == 1


async def test_what_is_held_is_not_cleaned(bullmq: BullMQ, queue: Queue):
    held, lost = await queue.add(), await queue.add()
    await queue.take(2)
    queue.client.delete(queue.key(f"{lost.id}:lock"))
    assert await bullmq.clean("mail", state="active") == [lost.id]
    assert queue.client.lrange(queue.key("active"), 0, -1) == [held.id]


async def test_events_are_kept_as_many_as_told(bullmq: BullMQ, queue: Queue):  # B7
    await bullmq.set_max_events("mail", 100)
    await bullmq.add_bulk("mail", [("send", {}, {})] * 600)
    assert len(queue.events()) < 400
    assert await bullmq.trim_events("mail", 0) > 0


def test_an_app_on_another_store_has_no_such_verbs():
    with pytest.raises(InvalidValue, match="must be on BullMQ"):
        bullmq_of(App("sqlite://"))
