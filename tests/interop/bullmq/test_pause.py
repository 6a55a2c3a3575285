"""Pause and resume across languages, and across BullMQ 5 and 6, which keep paused jobs in different lists (B1, B8)."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from onward import App
from onward.engine.values import ClaimRequest, Settlement
from onward.lifecycle import Failure, Outcome, Release, Retry
from tests.interop.bullmq.peer import NodePeer
from tests.worker.harness import eventually


async def taken(app: App, name: str) -> list[str]:
    claims = (await app._core.engine.claim(ClaimRequest(worker_id="w", queues=(name,), slots=10))).claims
    return [claim.ref.id for claim in claims]


async def test_our_pause_holds_nodes_worker_and_nodes_resume_lets_ours_go_on(app: App, either: NodePeer, name: str):
    ran: list[int] = []

    @app.task(name="note", queue=name)
    async def note(n: int) -> None:
        ran.append(n)

    queue = either.queue(name)
    await app.queues.pause(name)
    assert queue("isPaused") is True
    for n in range(3):
        await note.enqueue(n=n)
    queue.add("note", {"n": 3})
    async with app.worker(queues=[name]):
        with either.working(name):
            queue("resume")
            await eventually(lambda: queue.getJobCounts("completed") == {"completed": 4})
    assert (await app.queues.get(name)).settings.paused is False


async def test_a_queue_that_node_has_paused_gives_us_nothing(app: App, either: NodePeer, name: str):  # B8
    @app.task(name="note", queue=name)
    async def note(n: int) -> None: ...

    queue = either.queue(name)
    queue("pause")
    await note.enqueue(n=1)
    queue.add("note", {"n": 2})
    assert await taken(app, name) == []
    assert (await app.queues.get(name)).settings.paused is True
    await app.queues.resume(name)
    assert queue("isPaused") is False
    assert await taken(app, name) == ["1", "2"]


# Between Node's 5 and 6 jobs get lost without us, and that is theirs to mend.
@pytest.mark.parametrize(
    ("pauses", "resumes"),
    [
        ("onward", "onward"),
        ("node5", "node5"),
        ("node5", "onward"),
        ("onward", "node5"),
        ("node6", "node6"),
        ("node6", "onward"),
        ("onward", "node6"),
    ],
)
async def test_no_job_is_lost_whoever_pauses_adds_and_resumes(
    app: App, node5: NodePeer, node6: NodePeer, client: redis.Redis, name: str, pauses: str, resumes: str
):  # B1: v5 puts its list of paused jobs over the other when it goes on
    ran: list[int] = []

    @app.task(name="note", queue=name)
    async def note(n: int) -> None:
        ran.append(n)

    nodes = {"node5": node5, "node6": node6}
    peers = {who: nodes[who].queue(name) for who in {pauses, resumes} if who in nodes}

    async def do(who: str, verb: str) -> None:
        if who == "onward":
            await getattr(app.queues, verb)(name)
        else:
            peers[who](verb)

    n = 0
    for moment in ("before", "while paused", "after"):
        if moment == "while paused":
            await do(pauses, "pause")
        elif moment == "after":
            await do(resumes, "resume")
        for _ in range(2):
            await note.enqueue(n=n)
            n += 1
        await note.using(priority=0).enqueue_many([{"n": n}, {"n": n + 1}])
        n += 2
        for queue in peers.values():
            queue.add("note", {"n": n})
            n += 1
    assert client.llen(f"bull:{name}:wait") == n
    assert client.exists(f"bull:{name}:paused") == 0
    async with app.worker(queues=[name], concurrency=1):
        await eventually(lambda: len(ran) == n)
    assert ran == list(range(n))


async def test_a_job_given_back_or_tried_again_while_node_5_has_paused_is_not_lost(
    app: App, node5: NodePeer, name: str
):  # B1
    queue = node5.queue(name)
    for n in range(3):
        queue.add("note", {"n": n}, attempts=3)
    claims = (await app._core.engine.claim(ClaimRequest(worker_id="w", queues=(name,), slots=3))).claims
    queue("pause")
    failure = Failure("ValueError", "boom")
    outcomes: list[Outcome] = [Release(), Retry(timedelta(0), failure), Retry(timedelta(milliseconds=1), failure)]
    settled = [Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]
    assert not await app._core.engine.settle(settled)

    async def all_wait() -> bool:
        await taken(app, name)  # a claim makes what is due ready, on a paused queue as well
        return bool(queue.getJobCounts("delayed") == {"delayed": 0})

    await eventually(all_wait)
    queue("resume")
    assert sorted(await taken(app, name)) == ["1", "2", "3"]
