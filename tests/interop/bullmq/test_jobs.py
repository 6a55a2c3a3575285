"""Jobs added in one language and run in the other (B1): what each side says of them, and what both then see."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from onward import App, Backoff, DoNotRetry, JobContext, JobStatus
from onward.context import trace_of
from onward.errors import JobFailed
from onward.job import JobRef
from tests.interop.bullmq.peer import NodePeer
from tests.worker.harness import eventually

# Node adds, we run ----------------------------------------------------------------------------------------------------


async def test_node_awaits_what_our_handler_returns(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="double", queue=name)
    async def double(n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    queue, events = either.queue(name), either.events(name)
    ids = [queue.add("double", {"n": n})["id"] for n in range(20)]
    async with app.worker(queues=[name]):
        assert [await queue.finished(id, events) for id in ids] == [{"twice": 2 * n} for n in range(20)]
    seen = queue.job(ids[3])
    assert seen["returnvalue"] == {"twice": 6}
    assert seen["attemptsMade"] == 1
    assert seen["attemptsStarted"] == 1
    assert seen["failedReason"] is None
    assert queue.getJobCounts()["completed"] == 20


async def test_node_sees_who_ran_its_job(app: App, node6: NodePeer, name: str):  # B2
    @app.task(name="greet", queue=name)
    async def greet() -> None: ...

    queue, events = node6.queue(name), node6.events(name)
    added = queue.add("greet", {})
    async with app.worker(queues=[name]):
        await queue.finished(added["id"], events)
        assert queue.job(added["id"])["processedBy"] in {worker.id for worker in await app._core.engine.workers()}


async def test_traces_stand_where_nodes_telemetry_has_them(app: App, either: NodePeer, name: str):  # B1
    seen: list[str | None] = []
    headers = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'

    @app.task(name="note", queue=name)
    async def note(context: JobContext) -> None:
        seen.append(trace_of(context))

    queue = either.queue(name)
    queue.add("note", {}, telemetry={"metadata": headers})
    (ours,) = await app._core.engine.enqueue([replace(note.job(), trace=headers)])
    assert queue.job(ours.id)["opts"]["telemetry"] == {"metadata": headers}
    async with app.worker(queues=[name]):
        await eventually(lambda: len(seen) == 2)
    assert seen == [headers, headers]


async def test_jobs_run_in_the_order_that_node_gave_them(app: App, either: NodePeer, name: str):  # B9
    ran: list[str] = []

    @app.task(name="note", queue=name)
    async def note(who: str) -> None:
        ran.append(who)

    queue = either.queue(name)
    queue.add("note", {"who": "second, priority 10"}, priority=10)
    queue.add("note", {"who": "first, priority 1"}, priority=1)
    queue.add("note", {"who": "none"})
    queue.add("note", {"who": "none, but to the front"}, lifo=True)
    async with app.worker(queues=[name], concurrency=1):
        await eventually(lambda: len(ran) == 4)
    assert ran == ["none, but to the front", "none", "first, priority 1", "second, priority 10"]


async def test_a_delayed_job_of_nodes_runs_when_it_is_due(app: App, either: NodePeer, name: str):  # B1
    ran: list[int] = []

    @app.task(name="note", queue=name)
    async def note(n: int) -> None:
        ran.append(n)

    queue, events = either.queue(name), either.events(name)
    async with app.worker(queues=[name]):
        late = queue.add("note", {"n": 2}, delay=600)
        prefetch_started = queue.add("note", {"n": 1}, delay=200)
        for added in (prefetch_started, late):
            await queue.finished(added["id"], events)
    assert ran == [1, 2]
    for added in (prefetch_started, late):
        seen = queue.job(added["id"])
        assert seen["processedOn"] - seen["timestamp"] >= added["delay"]


async def test_node_sees_a_failure_its_stack_and_the_retries(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="fail", queue=name)
    async def fail() -> None:
        raise ValueError("no such thing")

    queue, events = either.queue(name), either.events(name)
    added = queue.add("fail", {}, attempts=3, backoff={"type": "exponential", "delay": 20})
    async with app.worker(queues=[name]):
        with pytest.raises(Exception, match="no such thing"):
            await queue.finished(added["id"], events)
    seen = queue.job(added["id"])
    assert seen["attemptsMade"] == 3
    assert "no such thing" in seen["failedReason"]
    assert len(seen["stacktrace"]) == 3
    assert "ValueError" in seen["stacktrace"][0]
    assert queue.job(added["id"], "getState") == "failed"
    either.receive("event", handle=events, event="retries-exhausted")


async def test_do_not_retry_ends_nodes_job_at_once(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="fail", queue=name)
    async def fail() -> None:
        raise DoNotRetry("there is no such account")

    queue, events = either.queue(name), either.events(name)
    added = queue.add("fail", {}, attempts=5, backoff=10)
    async with app.worker(queues=[name]):
        with pytest.raises(Exception, match="no such account"):
            await queue.finished(added["id"], events)
    assert queue.job(added["id"])["attemptsMade"] == 1


async def test_node_hears_progress_and_reads_log_lines(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="report", queue=name)
    async def report(context: JobContext) -> None:
        context.set_progress(40)
        context.log("one")
        context.log("two")

    queue, events = either.queue(name), either.events(name)
    added = queue.add("report", {})
    async with app.worker(queues=[name]):
        await queue.finished(added["id"], events)
    notification = await either.receive_async("event", handle=events, event="progress")
    assert notification["fields"]["data"] == 40
    assert queue.job(added["id"])["progress"] == 40
    logs = queue.getJobLogs(added["id"])
    assert logs["count"] == 2
    assert [line.rsplit(" ", 1)[-1] for line in logs["logs"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("kept", "left"),
    [(True, 0), (False, 6), (2, 2), ({"count": 3}, 3), ({"age": 3600}, 6)],
    ids=["true", "false", "a number", "a count", "an age"],
)
async def test_finished_jobs_are_kept_as_node_asked(app: App, either: NodePeer, name: str, kept: Any, left: int):  # B3
    ran: list[int] = []

    @app.task(name="note", queue=name)
    async def note(n: int) -> None:
        ran.append(n)

    queue = either.queue(name)
    for n in range(6):
        queue.add("note", {"n": n}, removeOnComplete=kept)
    async with app.worker(queues=[name]):
        await eventually(lambda: len(ran) == 6)
    assert queue.getJobCounts("completed") == {"completed": left}


async def test_a_job_that_is_not_ours_to_run_fails_with_a_reason_and_the_worker_goes_on(
    app: App, node6: NodePeer, name: str
):  # O8
    @app.task(name="known", queue=name)
    async def known(n: int) -> int:
        return n

    queue, events = node6.queue(name), node6.events(name)
    unknown = queue.add("unknown", {}, attempts=3)
    unfit = queue.add("known", {"n": "not a number"}, attempts=3)
    nothing = queue.add("known", None)
    fit = queue.add("known", {"n": 7})
    async with app.worker(queues=[name]):
        assert await queue.finished(fit["id"], events) == 7
        for added, attempts in ((unknown, 1), (unfit, 3), (nothing, 1)):  # what does not validate is retried by policy
            with pytest.raises(Exception, match=r"."):
                await queue.finished(added["id"], events)
            seen = queue.job(added["id"])
            assert seen["failedReason"]
            assert seen["attemptsMade"] == attempts


async def test_damaged_jobs_fail_with_a_reason_and_the_worker_goes_on(
    app: App, node6: NodePeer, client: Any, name: str
):
    @app.task(name="known", queue=name)
    async def known(n: int) -> int:
        return n

    queue, events = node6.queue(name), node6.events(name)
    broken, odd = queue.add("known", {"n": 1}), queue.add("known", {"n": 2})
    client.hset(f"bull:{name}:{broken['id']}", "data", "{no json")
    client.hset(f"bull:{name}:{odd['id']}", "opts", "neither")
    fit = queue.add("known", {"n": 3})
    async with app.worker(queues=[name]):
        assert await queue.finished(fit["id"], events) == 3
        await eventually(lambda: queue.getJobCounts("failed") == {"failed": 2})
    for added in (broken, odd):
        assert client.hget(f"bull:{name}:{added['id']}", "failedReason")


# We add, Node runs ----------------------------------------------------------------------------------------------------


async def test_we_await_what_nodes_handler_returns(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="double", queue=name)
    async def double(n: int, steps: list[Any]) -> dict[str, int]:
        raise AssertionError("Node runs it")

    handles = [await double.enqueue(n=n, steps=[["twice"]]) for n in range(20)]
    with either.working(name, concurrency=5):
        assert [await handle.result(timeout=20) for handle in handles] == [{"twice": 2 * n} for n in range(20)]
    job = await handles[3].info()
    assert job.status is JobStatus.COMPLETED
    assert job.attempts == 1


async def test_node_runs_what_we_add_in_bulk_in_our_order(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="note", queue=name)
    async def note(n: int, steps: list[Any]) -> int:
        raise AssertionError("Node runs it")

    handles = await note.enqueue_many([{"n": n, "steps": [["return", n]]} for n in range(300)])
    with either.working(name):
        ids = [(await either.receive_async("completed", queue=name))["id"] for _ in range(300)]
    assert ids == [handle.id for handle in handles]


async def test_node_tries_our_job_as_often_as_we_said(app: App, either: NodePeer, name: str):  # B6
    @app.task(name="fail", queue=name, max_attempts=3, backoff=Backoff.fixed(0.02))
    async def fail(steps: list[Any]) -> None:
        raise AssertionError("Node runs it")

    handle = await fail.enqueue(steps=[["throw", "not today"]])
    with either.working(name), pytest.raises(JobFailed, match="not today"):
        await handle.result(timeout=20)
    job = await handle.info()
    assert job.attempts == 3
    assert job.last_error == "not today"


async def test_unrecoverable_ends_our_job_at_once(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="fail", queue=name)
    async def fail(steps: list[Any]) -> None:
        raise AssertionError("Node runs it")

    handle = await fail.enqueue(steps=[["unrecoverable", "never"]])
    with either.working(name), pytest.raises(JobFailed, match="never"):
        await handle.result(timeout=20)
    job = await handle.info()
    assert job.status is JobStatus.FAILED
    assert job.attempts == 1


async def test_node_waits_until_our_delayed_job_is_due(app: App, either: NodePeer, name: str):  # B1
    @app.task(name="note", queue=name)
    async def note(steps: list[Any]) -> int:
        raise AssertionError("Node runs it")

    steps = [["return", 1]]
    with either.working(name):
        late = await note.using(delay=timedelta(seconds=0.5)).enqueue(steps=steps)
        prefetch_started = await note.using(delay=timedelta(seconds=0.2)).enqueue(steps=steps)
        first = await either.receive_async("started", queue=name)
        second = await either.receive_async("started", queue=name)
    assert [first["id"], second["id"]] == [prefetch_started.id, late.id]
    seen = either.queue(name).job(late.id)
    assert seen["processedOn"] - seen["timestamp"] >= 500


async def test_we_see_nodes_progress_and_log(app: App, either: NodePeer, name: str):  # B1, B8
    @app.task(name="report", queue=name)
    async def report(steps: list[Any]) -> int:
        raise AssertionError("Node runs it")

    handle = await report.enqueue(steps=[["progress", 30], ["log", "one line"], ["return", 1]])
    with either.working(name):
        assert await handle.result(timeout=20) == 1
    assert (await handle.info()).progress == 30
    (line,) = await app.jobs.logs(handle.ref)
    assert line.line == "one line"


# The same job, seen by both -------------------------------------------------------------------------------------------


async def test_a_custom_id_of_nodes_is_one_job_for_both(app: App, node6: NodePeer, name: str):  # B3
    queue = node6.queue(name)
    first = queue.add("note", {"n": 1}, jobId="order-7")
    again = queue.add("note", {"n": 2}, jobId="order-7")
    assert first["id"] == again["id"] == "order-7"
    job = await app.jobs.get(JobRef(name, "order-7"))
    assert job is not None
    assert job.payload == {"n": 1}


async def test_a_deduplicated_job_is_one_for_both(app: App, either: NodePeer, name: str):  # H5
    @app.task(name="note", queue=name)
    async def note(n: int) -> int:
        return n

    queue = either.queue(name)
    ours = await note.using(dedupe_key="once").enqueue(n=1)
    theirs = queue.add("note", {"n": 2}, deduplication={"id": "once"})
    again = await note.using(dedupe_key="once").enqueue(n=3)
    assert ours.id == theirs["id"] == again.id
    assert not again.is_new
    async with app.worker(queues=[name]):
        assert await ours.result(timeout=20) == 1
    assert queue.add("note", {"n": 4}, deduplication={"id": "once"})["id"] != ours.id
