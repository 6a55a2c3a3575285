"""What Node's QueueEvents hears of what we do (B7): the words, the order, and what is said with them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from onward import App, Backoff, JobContext
from onward.engine.values import ClaimRequest
from onward.job import JobRef
from tests.interop.bullmq.peer import NodePeer
from tests.worker.harness import eventually


async def collect_events(peer: NodePeer, events: str, until: str) -> list[dict[str, Any]]:
    """Listen until a word is said."""
    events_seen = []
    while True:
        entry = await peer.receive_async("event", handle=events)
        fields = entry["fields"] if isinstance(entry["fields"], dict) else {}  # of "drained" it tells the entry alone
        events_seen.append({"event": entry["event"], **fields})
        if entry["event"] == until:
            return events_seen


async def test_node_hears_the_whole_life_of_a_job_of_ours(app: App, either: NodePeer, name: str):  # B7
    @app.task(name="try", queue=name, max_attempts=2, backoff=Backoff.fixed(0.02))
    async def attempt(context: JobContext) -> dict[str, int]:
        context.set_progress(10 * context.attempt)
        await asyncio.sleep(0.03)
        if context.attempt == 1:
            raise ValueError("not yet")
        return {"on": context.attempt}

    events = either.events(name)
    added = await attempt.using(delay=timedelta(milliseconds=20)).enqueue()
    async with app.worker(queues=[name]):
        events_seen = await collect_events(either, events, until="drained")
    life = [entry for entry in events_seen if entry.get("jobId") == added.id]
    assert [entry["event"] for entry in life] == [
        "added",
        "delayed",
        "waiting",
        "active",
        "progress",
        "delayed",
        "waiting",
        "active",
        "progress",
        "completed",
    ]
    by_name = {entry["event"]: entry for entry in life}
    assert by_name["added"]["name"] == "try"
    assert by_name["waiting"]["prev"] == "delayed"
    assert by_name["active"]["prev"] == "waiting"
    assert by_name["progress"]["data"] == 20
    assert by_name["completed"]["returnvalue"] == {"on": 2}
    assert by_name["completed"]["prev"] == "active"


async def test_node_hears_what_is_done_to_a_queue_and_its_jobs(app: App, either: NodePeer, name: str):  # B7
    @app.task(name="note", queue=name)
    async def note(n: int) -> None:
        raise ValueError(f"no {n}")

    events = either.events(name)
    await app.queues.pause(name)
    added = await note.using(dedupe_key="once", max_attempts=1).enqueue(n=1)
    await note.using(dedupe_key="once").enqueue(n=2)
    gone = await note.enqueue(n=3)
    await app.jobs.cancel(gone.ref)
    await app.queues.resume(name)
    async with app.worker(queues=[name]):
        events_seen = await collect_events(either, events, until="retries-exhausted")
    names = [entry["event"] for entry in events_seen]
    assert names[0] == "paused"
    assert {"event": "removed", "jobId": gone.id, "prev": events_seen[names.index("removed")]["prev"]} in events_seen
    twice = events_seen[names.index("deduplicated")]
    assert twice["jobId"] == added.id
    assert "resumed" in names
    failed = events_seen[names.index("failed")]
    assert failed["jobId"] == added.id
    assert failed["failedReason"] == "ValueError: no 1"
    assert events_seen[-1]["attemptsMade"] == "1"


async def test_node_hears_of_a_job_that_we_took_back_from_the_dead(
    app: App, either: NodePeer, client: Any, name: str
):  # B5
    queue, events = either.queue(name), either.events(name)
    await app.queues.configure(name)
    added = queue.add("note", {"n": 1})
    claimed = await app._core.engine.claim(ClaimRequest(worker_id="dead", queues=(name,), slots=1))
    assert [claim.ref for claim in claimed.claims] == [JobRef(name, added["id"])]
    client.delete(f"bull:{name}:{added['id']}:lock")
    async with app.worker(queues=["nothing"], leader_lease=timedelta(seconds=1)):
        await eventually(lambda: queue.getJobCounts("waiting")["waiting"] == 1)
    events_seen = await collect_events(either, events, until="stalled")
    assert events_seen[-1]["jobId"] == added["id"]
