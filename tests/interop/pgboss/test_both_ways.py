"""Jobs go from Node to Python and from Python to Node, and each side sees what the other did (P1)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onward.backoff import Backoff
from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, ClaimRequest, JobFilter, QueueChange, Settlement
from onward.job import JobRef, NewJob
from onward.lifecycle import Bury, Cancel, Complete, Fail, Failure, JobStatus, Outcome, Release, Retry, Snooze
from tests.conformance.processes import eventually
from tests.servers.pgboss import NodePgBoss

BOOM = Failure("ValueError", "boom", "Traceback: boom")
MakeQueue = Callable[..., str]


async def take(engine: CheckedEngine, queue: str, slots: int = 10, worker: str = "python-1") -> tuple[Claim, ...]:
    return (await engine.claim(ClaimRequest(worker_id=worker, queues=(queue,), slots=slots))).claims


async def end(engine: CheckedEngine, claim: Claim, outcome: Outcome) -> bool:
    return not await engine.settle([Settlement(claim, outcome)])


# Node sends -----------------------------------------------------------------------------------------------------------


async def test_what_node_sends_comes_by_priority_and_age_and_not_before_its_time(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue()
    first = node.send(name, {"n": 1})
    urgent = node.send(name, {"n": 2}, {"priority": 9})
    later = node.send(name, {"n": 3}, {"startAfter": 3600})
    claims = await take(engine, name)
    assert [claim.ref.id for claim in claims] == [urgent, first]
    assert [claim.payload for claim in claims] == ['{"n": 2}', '{"n": 1}']
    assert {claim.type for claim in claims} == {name}
    job = await engine.get(JobRef(name, later))
    assert job is not None
    assert (job.status, job.payload) == (JobStatus.SCHEDULED, {"n": 3})


@pytest.mark.parametrize(
    ("result", "output"),
    [('{"sum": 2}', {"sum": 2}), ("7", {"value": 7}), ('["a"]', {"value": ["a"]}), (None, None)],
    ids=["object", "number", "list", "none"],
)
async def test_node_sees_what_python_made_of_its_job(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue, result: str | None, output: object
):  # P1
    name = queue()
    id = node.send(name, {"n": 1})
    (claim,) = await take(engine, name)
    assert node.job(name, id)["state"] == "active"
    assert await end(engine, claim, Complete(result))
    seen = node.job(name, id)
    assert (seen["state"], seen["output"]) == ("completed", output)
    assert seen["completedOn"] is not None


async def test_a_failure_in_python_is_retried_by_pg_bosss_own_count_and_then_goes_to_the_dead_letters(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    dead = queue()
    name = queue(retryLimit=1, retryDelay=0, deadLetter=dead)
    id = node.send(name, {"n": 4})
    (claim,) = await take(engine, name)
    assert (claim.attempts, claim.max_attempts) == (1, 2)
    assert await end(engine, claim, Retry(timedelta(0), BOOM))
    seen = node.job(name, id)
    assert (seen["state"], seen["retryCount"], seen["output"]["message"]) == ("retry", 0, "boom")

    (claim,) = await take(engine, name)
    assert (claim.ref.id, claim.attempts) == (id, 2)
    assert node.job(name, id)["retryCount"] == 1
    assert await end(engine, claim, Bury(BOOM))
    seen = node.job(name, id)
    assert (seen["state"], seen["output"]["name"], seen["output"]["stack"]) == ("failed", "ValueError", BOOM.traceback)
    (letter,) = node.fetch(dead)
    assert letter["data"] == {"n": 4}


async def test_a_job_that_python_ends_for_good_goes_to_the_dead_letters_with_attempts_left(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    dead = queue()
    name = queue(retryLimit=5, deadLetter=dead)
    id = node.send(name, {"n": 1})
    (claim,) = await take(engine, name)
    assert await end(engine, claim, Fail(Failure("NoHandler", "nobody")))
    assert node.job(name, id)["state"] == "failed"
    (letter,) = node.fetch(dead)
    assert letter["data"] == {"n": 1}


@pytest.mark.parametrize("outcome", [Release(), Snooze(timedelta(0))], ids=["release", "snooze"])
async def test_a_run_that_is_given_back_costs_no_attempt_on_either_side(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue, outcome: Outcome
):  # Counting, P1
    name = queue(retryLimit=0)
    id = node.send(name, {})
    (claim,) = await take(engine, name)
    assert await end(engine, claim, outcome)
    (again,) = node.fetch(name)
    assert again["id"] == id
    assert node.job(name, id)["retryCount"] == 0


async def test_what_node_takes_back_python_has_lost(engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue):  # X3
    name = queue()
    id = node.send(name, {})
    (claim,) = await take(engine, name)
    node.cancel(name, id)
    assert not await end(engine, claim, Complete())
    job = await engine.get(claim.ref)
    assert job is not None
    assert job.status is JobStatus.CANCELLED
    node.resume(name, id)
    (again,) = await take(engine, name)
    assert again.ref == claim.ref
    assert not await end(engine, claim, Complete())
    assert await end(engine, again, Complete())


async def test_what_node_has_taken_over_a_late_python_worker_cannot_end(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # X3
    name = queue(expireInSeconds=1, retryLimit=3, retryDelay=0)
    id = node.send(name, {})
    (claim,) = await take(engine, name)

    async def expired() -> dict[str, Any] | None:
        seen = node.job(name, id)
        return seen if seen["state"] == "retry" else None

    assert (await eventually(expired))["output"]["value"]["message"]
    assert not await end(engine, claim, Complete())
    (taken,) = node.fetch(name)
    assert taken["id"] == id
    for outcome in (Complete(), Retry(timedelta(0), BOOM), Bury(BOOM), Release(), Cancel("late")):
        assert not await end(engine, claim, outcome)
    assert node.job(name, id)["state"] == "active"
    node.complete(name, id, {"by": "node"})
    assert node.job(name, id)["output"] == {"by": "node"}
    job = await engine.get(claim.ref)
    assert job is not None
    assert (job.status, job.result, job.attempts) == (JobStatus.COMPLETED, {"by": "node"}, 2)


async def test_data_that_is_no_object_and_no_data_at_all_come_through(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):
    name = queue()
    node.send(name)
    (claim,) = await take(engine, name)
    assert claim.payload == "{}"


# Python sends ---------------------------------------------------------------------------------------------------------


async def test_a_node_worker_runs_what_python_enqueues_and_python_sees_the_result(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue()
    payload = '{"campaignId": 7, "channelUsername": "@news"}'
    (answer,) = await engine.enqueue([NewJob(type=name, queue=name, payload=payload, priority=3)])
    seen = node.job(name, answer.id)
    assert (seen["data"], seen["priority"]) == ({"campaignId": 7, "channelUsername": "@news"}, 3)
    node.work_on(name)

    async def done() -> Any:
        job = await engine.get(answer.ref)
        return job if job is not None and job.status is JobStatus.COMPLETED else None

    job = await eventually(done)
    assert job.result == {"by": "node", "got": {"campaignId": 7, "channelUsername": "@news"}}
    node.offWork(name)


async def test_a_job_of_another_type_than_its_queue_says_so_beside_its_data(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):
    name = queue()
    (answer,) = await engine.enqueue([NewJob(type="greet", queue=name, payload='{"to": "ada"}')])
    assert node.job(name, answer.id)["data"] == {"to": "ada", "$onward": {"type": "greet"}}
    (claim,) = await take(engine, name)
    assert (claim.type, claim.payload) == ("greet", '{"to":"ada"}')


async def test_a_failure_in_node_is_seen_and_retried_by_python(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue(retryLimit=2, retryDelay=0)
    (answer,) = await engine.enqueue([NewJob(type="greet", queue=name)])
    (fetched,) = node.fetch(name)
    node.fail(name, fetched["id"], {"why": "no"})
    job = await engine.get(answer.ref)
    assert job is not None
    assert (job.status, job.attempts, job.max_attempts, job.last_error) == (JobStatus.PENDING, 1, 3, '{"why":"no"}')
    (claim,) = await take(engine, name)
    assert (claim.ref, claim.attempts, claim.type) == (answer.ref, 2, "greet")


async def test_every_option_that_a_job_can_be_given_is_where_node_looks_for_it(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue(expireInSeconds=77)
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    job = NewJob(
        type=name,
        queue=name,
        priority=4,
        run_at=at,
        max_attempts=8,
        dedupe_key="order-7",
        backoff=Backoff.exponential(5, cap=None, jitter=1.0),
    )
    (answer,) = await engine.enqueue([job])
    seen = node.job(name, answer.id)
    assert (seen["state"], seen["priority"], seen["retryLimit"], seen["singletonKey"]) == ("created", 4, 7, "order-7")
    assert (seen["retryDelay"], seen["retryBackoff"]) == (5, True)
    assert datetime.fromisoformat(seen["startAfter"]) == at
    assert int(float(seen["expireInSeconds"])) == 77
    assert seen["data"] == {}


async def test_python_cancels_and_deletes_as_node_would(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue()
    ids = [node.send(name, {"n": n}) for n in range(2)]
    await engine.cancel(JobFilter(refs=(JobRef(name, ids[0]),)), reason="not wanted")
    assert node.job(name, ids[0])["state"] == "cancelled"
    await engine.delete(JobFilter(refs=(JobRef(name, ids[1]),)))
    assert node.getJobById(name, ids[1]) is None
    node.resume(name, ids[0])
    assert [claim.ref.id for claim in await take(engine, name)] == [ids[0]]


async def test_a_queue_that_python_makes_is_one_for_node(engine: CheckedEngine, node: NodePgBoss):  # X5
    await engine.configure("made/by.python_1", QueueChange(max_attempts=4, backoff=Backoff.fixed(9)))
    seen = node.getQueue("made/by.python_1")
    assert (seen["policy"], seen["retryLimit"], seen["retryDelay"], seen["retryBackoff"]) == ("standard", 3, 9, False)
    id = node.send("made/by.python_1", {"from": "node"})
    (claim,) = await take(engine, "made/by.python_1")
    assert (claim.ref.id, claim.max_attempts, claim.backoff) == (id, 4, Backoff.fixed(9))


async def test_what_is_pg_bosss_own_is_neither_listed_nor_taken(engine: CheckedEngine, node: NodePgBoss):
    assert not [info.name for info in await engine.queues() if info.name.startswith("__pgboss__")]
    node.send("__pgboss__send-it", {"name": "nobody"}, {"startAfter": 0, "priority": 99})
    claims = (await engine.claim(ClaimRequest(worker_id="python-1", queues=("*",), slots=100))).claims
    assert not [claim for claim in claims if claim.ref.queue.startswith("__pgboss__")]
    await engine.settle([Settlement(claim, Release()) for claim in claims])
