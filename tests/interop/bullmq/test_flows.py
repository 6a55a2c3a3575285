"""Flows: parents in one language, children in the other (B1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import App, ClaimLost, JobContext, JobNotFound
from onward.bullmq import bullmq_of
from onward.job import JobRef
from onward.lifecycle import JobStatus
from tests.interop.bullmq.peer import NodePeer
from tests.worker.harness import eventually


def flow(name: str, children: list[dict[str, Any]], **parent: Any) -> dict[str, Any]:
    return {"name": "sum", "queueName": f"{name}-parents", "children": children, **parent}


def child(name: str, n: int, **opts: Any) -> dict[str, Any]:
    return {"name": "child", "queueName": f"{name}-children", "data": {"n": n}, "opts": opts}


async def test_a_flow_started_in_node_is_run_by_us(app: App, either: NodePeer, name: str):  # B1
    ran: list[str] = []

    @app.task(name="child", queue=f"{name}-children")
    async def one(n: int) -> int:
        ran.append(f"child {n}")
        return n

    @app.task(name="sum", queue=f"{name}-parents")
    async def total(context: JobContext) -> str:
        ran.append("parent")
        return context.id

    parents, events = either.queue(f"{name}-parents"), either.events(f"{name}-parents")
    tree = await either.request_async(
        "call", handle=either.flows(), method="add", args=[flow(name, [child(name, n) for n in range(3)])]
    )
    id = tree["job"]["id"]
    assert (await app.jobs.get(JobRef(f"{name}-parents", id))).status is JobStatus.BLOCKED
    async with app.worker(queues=[f"{name}-parents", f"{name}-children"], concurrency=1):
        assert await parents.finished(id, events) == id
    assert ran == ["child 0", "child 1", "child 2", "parent"]
    values = parents.job(id, "getChildrenValues")
    assert sorted(values.values()) == [0, 1, 2]


async def test_our_children_wake_a_parent_that_node_runs(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="child", queue=f"{name}-children")
    async def one(n: int) -> dict[str, int]:
        return {"n": n}

    parents, events = either.queue(f"{name}-parents"), either.events(f"{name}-parents")
    tree = flow(name, [child(name, n) for n in range(3)], data={"steps": [["children"]]})
    with either.working(f"{name}-parents"):
        added = await either.request_async("call", handle=either.flows(), method="add", args=[tree])
        async with app.worker(queues=[f"{name}-children"]):
            values = await parents.finished(added["job"]["id"], events)
    assert sorted(value["n"] for value in values.values()) == [0, 1, 2]


async def test_nodes_children_wake_a_parent_that_we_run(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="sum", queue=f"{name}-parents")
    async def total() -> str:
        return "done"

    parents, events = either.queue(f"{name}-parents"), either.events(f"{name}-parents")
    async with app.worker(queues=[f"{name}-parents"]):
        with either.working(f"{name}-children"):
            tree = flow(name, [child(name, n) for n in range(3)])
            added = await either.request_async("call", handle=either.flows(), method="add", args=[tree])
            assert await parents.finished(added["job"]["id"], events) == "done"


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ("failParentOnFailure", "failed"),
        ("ignoreDependencyOnFailure", "completed"),
        ("removeDependencyOnFailure", "completed"),
        ("continueParentOnFailure", "completed"),
    ],
)
async def test_a_child_that_fails_here_does_to_its_parent_what_node_asked(
    app: App, either: NodePeer, name: str, policy: str, outcome: str
):  # B1
    @app.task(name="child", queue=f"{name}-children")
    async def one(n: int) -> int:
        if n == 1:
            raise ValueError("this one")
        return n

    @app.task(name="sum", queue=f"{name}-parents")
    async def total() -> str:
        return "done"

    parents, events = either.queue(f"{name}-parents"), either.events(f"{name}-parents")
    tree = flow(name, [child(name, 0), child(name, 1, **{policy: True})])
    added = await either.request_async("call", handle=either.flows(), method="add", args=[tree])
    id = added["job"]["id"]
    async with app.worker(queues=[f"{name}-parents", f"{name}-children"]):
        if outcome == "completed":
            assert await parents.finished(id, events) == "done"
        else:
            with pytest.raises(Exception, match="failed"):
                await parents.finished(id, events)
    assert parents.job(id, "getState") == outcome


async def test_our_child_wakes_a_scheduled_job_of_nodes_that_waits_for_it(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="child", queue=f"{name}-children")
    async def one(n: int) -> int:
        return n

    parents, children = either.queue(f"{name}-parents"), either.queue(f"{name}-children")
    parents("upsertJobScheduler", "daily:report", {"every": 3_600_000}, {"name": "sum"})
    worker = either.handle()
    await either.request_async("make", handle=worker, kind="Worker", queue=f"{name}-parents", options={})
    held = await either.request_async("claim", handle=worker, token="t")
    parent = {"id": held["id"], "queue": f"bull:{name}-parents"}
    added = children.add("child", {"n": 1}, parent=parent)
    await either.request_async("callJob", handle=worker, id=held["id"], method="moveToWaitingChildren", args=["t"])
    assert parents.job(held["id"], "getState") == "waiting-children"
    async with app.worker(queues=[f"{name}-children"]):
        assert await children.finished(added["id"], either.events(f"{name}-children")) == 1
    assert parents.job(held["id"], "getState") == "waiting"
    assert list(parents.job(held["id"], "getChildrenValues").values()) == [1]
    await either.request_async("close", handle=worker)
    parents("removeJobScheduler", "daily:report")


async def test_a_handler_of_ours_adds_children_waits_for_nodes_and_reads_their_values(
    app: App, either: NodePeer, name: str
):  # B1
    bullmq = bullmq_of(app)
    runs: list[str] = []

    @app.task(name="sum", queue=f"{name}-parents", max_attempts=1)
    async def total(context: JobContext, step: str = "first") -> int:
        runs.append(step)
        if step == "first":
            for n in range(3):
                await bullmq.add(f"{name}-children", "child", {"steps": [["return", n]]}, parent=context.ref)
            await bullmq.update_data(context.ref, {"step": "second"})
            assert await bullmq.wait_for_children(context)
            return -1  # is not recorded: the job waits
        assert not await bullmq.wait_for_children(context), "all have ended"
        return int(sum((await bullmq.children_values(context.ref)).values()))

    parents, events = either.queue(f"{name}-parents"), either.events(f"{name}-parents")
    job = await total.enqueue()
    async with app.worker(queues=[f"{name}-parents"]):

        async def waits() -> bool:
            return bool(parents("getWaitingChildrenCount") == 1)

        await eventually(waits)
        assert parents.job(job.id)["data"] == {"step": "second"}
        with either.working(f"{name}-children"):
            assert await parents.finished(job.id, events) == 3
    assert runs == ["first", "second"]
    assert parents.job(job.id)["attemptsMade"] == 1, "waiting costs no attempt"


async def test_a_handler_whose_child_has_failed_does_not_wait(app: App, either: NodePeer, name: str):  # B1
    bullmq = bullmq_of(app)
    ready = asyncio.Event()

    @app.task(name="sum", queue=f"{name}-parents", max_attempts=1)
    async def total(context: JobContext) -> None:
        steps = {"steps": [["throw", "boom"]]}
        await bullmq.add(f"{name}-children", "child", steps, parent=context.ref, fail_parent_on_failure=True)
        await ready.wait()
        await bullmq.wait_for_children(context)

    children = either.queue(f"{name}-children")
    job = await total.enqueue()
    async with app.worker(queues=[f"{name}-parents"]):
        with either.working(f"{name}-children"):
            await eventually(lambda: children("getFailedCount") == 1)
        ready.set()

        async def failed() -> bool:
            return (await app.jobs.get(job.ref)).status is JobStatus.FAILED

        await eventually(failed)
    assert "has failed" in str((await app.jobs.get(job.ref)).last_error)


@pytest.mark.parametrize(
    "value", [{"done": 3, "of": 9}, [1, "two"], "half-way", 41.5], ids=["object", "list", "text", "number"]
)
async def test_progress_of_any_shape_is_seen_by_both_sides(app: App, either: NodePeer, name: str, value: Any):  # B1
    bullmq = bullmq_of(app)
    queue, events = either.queue(name), either.events(name)

    @app.task(name="mine", queue=name)
    async def mine(context: JobContext) -> None:
        await bullmq.update_progress(context.ref, value)

    job = await mine.enqueue()
    async with app.worker(queues=[name]):
        await queue.finished(job.id, events)
    assert queue.job(job.id)["progress"] == value
    event = await either.receive_async("event", handle=events, event="progress")
    assert event["fields"]["data"] == value
    theirs = queue.add("theirs", {"steps": [["progress", value]]})
    with either.working(name):
        await queue.finished(theirs["id"], events)
    assert await bullmq.progress(JobRef(name, theirs["id"])) == value


async def test_native_verbs_refuse_a_job_that_does_not_exist(app: App, name: str):
    for verb in (bullmq_of(app).update_data, bullmq_of(app).update_progress):
        with pytest.raises(JobNotFound, match="there is no job"):
            await verb(JobRef(name, "404"), {"a": 1})


async def test_a_handler_that_lost_its_job_cannot_let_it_wait(app: App, name: str):  # B5, X3
    bullmq, engine = bullmq_of(app), app._core.engine
    found: list[type[BaseException]] = []

    @app.task(name="sum", queue=f"{name}-parents")
    async def total(context: JobContext) -> None:
        await bullmq.add(f"{name}-children", "child", {}, parent=context.ref)
        client = engine.inner._connections.for_threads()  # type: ignore[attr-defined]
        client.set(f"bull:{name}-parents:{context.id}:lock", "another worker")
        try:
            await bullmq.wait_for_children(context)
        except ClaimLost:
            found.append(ClaimLost)

    job = await total.enqueue()
    async with app.worker(queues=[f"{name}-parents"]):
        await eventually(lambda: found)
    assert (await app.jobs.get(job.ref)).status is JobStatus.RUNNING, "the other worker's"
