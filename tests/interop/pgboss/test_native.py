"""What only pg-boss has, said from Python in its own words: throttles, policies, schedules, events (P1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, ClaimRequest, Settlement
from onward.errors import InvalidValue, Unsupported
from onward.job import EnqueueStatus, NewJob
from onward.lifecycle import Complete, Failure, Release, Retry
from onward.pgboss import PgBoss, pgboss_of
from tests.conformance.processes import eventually
from tests.interop.pgboss.conftest import Live
from tests.servers.pgboss import NodePgBoss

BOOM = Failure("ValueError", "boom")
MakeQueue = Callable[..., str]


async def take(engine: CheckedEngine, queue: str, slots: int = 10) -> tuple[Claim, ...]:
    return (await engine.claim(ClaimRequest(worker_id="python-1", queues=(queue,), slots=slots))).claims


# Throttling -----------------------------------------------------------------------------------------------------------


async def test_a_throttle_holds_between_node_and_python(boss: PgBoss, node: NodePgBoss, queue: MakeQueue):  # P1
    name = queue()
    first = await boss.send_throttled(name, {"n": 1}, 3600, key="k")
    assert first is not None
    assert node.send(name, {"n": 2}, {"singletonSeconds": 3600, "singletonKey": "k"}) is None
    assert await boss.send_throttled(name, {"n": 3}, 3600, key="k") is None
    assert await boss.send_throttled(name, {"n": 4}, 3600, key="other") is not None


async def test_debouncing_lets_one_more_into_the_next_slot(boss: PgBoss, node: NodePgBoss, queue: MakeQueue):  # P1
    name = queue()
    assert node.sendDebounced(name, {"n": 1}, None, 3600, "k") is not None
    second = await boss.send_debounced(name, {"n": 2}, 3600, key="k")
    assert second is not None
    assert await boss.send_debounced(name, {"n": 3}, 3600, key="k") is None
    assert node.sendDebounced(name, {"n": 4}, None, 3600, "k") is None
    seen = node.job(name, second)
    assert seen["startAfter"] > seen["createdOn"]


# Options --------------------------------------------------------------------------------------------------------------


async def test_every_option_arrives(boss: PgBoss, node: NodePgBoss, queue: MakeQueue, live: Live):  # P1
    dead, name = queue(), queue()
    options: dict[str, Any] = {
        "priority": 3,
        "start_after": 60,
        "retry_limit": 7,
        "retry_delay": 8,
        "retry_backoff": True,
        "expire_in_seconds": 99,
        "retention_seconds": 3600,
        "singleton_key": "k",
        "dead_letter": dead,
    }
    if live.version != "10":
        options |= {"retry_delay_max": 50, "delete_after_seconds": 123}
    if live.version == "12":
        options |= {"heartbeat_seconds": 30, "group": {"id": "ada", "tier": "gold"}}
    id = await boss.send(name, {"n": 1}, **options)
    assert id is not None
    seen = node.job(name, id)
    assert (seen["priority"], seen["retryLimit"], seen["retryDelay"], seen["retryBackoff"]) == (3, 7, 8, True)
    assert (int(float(seen["expireInSeconds"])), seen["singletonKey"], seen["deadLetter"]) == (99, "k", dead)
    if live.version != "10":
        assert (seen["retryDelayMax"], seen["deleteAfterSeconds"]) == (50, 123)
    if live.version == "12":
        assert (seen["heartbeatSeconds"], seen["groupId"], seen["groupTier"]) == (30, "ada", "gold")
    kept = datetime.fromisoformat(seen["keepUntil"]) - datetime.fromisoformat(seen["startAfter"])
    assert kept == timedelta(hours=1)


async def test_an_option_that_is_none_or_is_out_of_bounds_is_refused_before_anything_is_written(
    boss: PgBoss, engine: CheckedEngine, queue: MakeQueue, live: Live
):  # X1, B3
    name = queue()
    wrong: dict[str, Any] = {
        "retry_limit": -1,
        "expire_in_seconds": 90_000,
        "prioritaet": 1,
        "priority": "high",
        "retry_backoff": 3,
        "singleton_key": 7,
        "group": "ada",
        "start_after": object(),
    }
    for option, value in wrong.items():
        with pytest.raises(InvalidValue, match=option):
            await boss.send(name, {}, **{option: value})
    with pytest.raises(InvalidValue, match="expire_in_seconds"):
        await boss.send(name, {}, expire_in_seconds=0)
    if live.version == "10":
        with pytest.raises(Unsupported, match="upgrade pg-boss"):
            await boss.send(name, {}, heartbeat_seconds=30)
    assert await take(engine, name) == ()


async def test_a_queue_that_is_not_there_is_refused_with_the_nearest_names(
    boss: PgBoss, engine: CheckedEngine, queue: MakeQueue
):  # X1
    name = queue()
    with pytest.raises(Unsupported, match=f"did you mean .*{name}"):
        await boss.send(f"{name}x", {})
    with pytest.raises(Unsupported, match="did you mean"):
        await engine.enqueue([NewJob(type="greet", queue=f"{name}x")])


# Policies -------------------------------------------------------------------------------------------------------------

POLICIES = {
    "standard": (True, True, 2, True),
    "short": (True, False, 1, True),
    "singleton": (True, True, 1, True),
    "stately": (True, False, 1, True),
    "exclusive": (True, False, 1, False),
}
"""Whether a first job is taken in, and a second; how many can be claimed; whether a third is taken in then."""


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_policy_holds_for_python_as_for_node(
    boss: PgBoss, engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue, live: Live, policy: str
):  # P1
    if policy == "exclusive" and live.version == "10":
        return  # it came with pg-boss 11.1
    name = queue(policy=policy)
    first = await boss.send(name, {"n": 1})
    second = node.send(name, {"n": 2})
    claims = await take(engine, name)
    third = await boss.send(name, {"n": 3})
    assert (bool(first), bool(second), len(claims), bool(third)) == POLICIES[policy]
    if policy in {"singleton", "stately"}:
        assert await take(engine, name) == ()
    for claim in claims:
        assert not await engine.settle([Settlement(claim, Complete())])
    assert len(await take(engine, name)) == {"standard": 1, "exclusive": 0}.get(policy, 1)


async def test_who_is_refused_by_a_policy_is_told_which_job_stands_for_it(
    engine: CheckedEngine, queue: MakeQueue
):  # H5
    name = queue(policy="short")
    first, second = await engine.enqueue([NewJob(type="greet", queue=name)] * 2)
    assert (first.enqueue_status, second.enqueue_status, second.ref) == (
        EnqueueStatus.INSERTED,
        EnqueueStatus.DEDUPED,
        first.ref,
    )


async def test_keys_have_each_their_place_under_a_policy(engine: CheckedEngine, boss: PgBoss, queue: MakeQueue):  # P1
    name = queue(policy="singleton")
    for key in ("a", "a", "b", None, None):
        await boss.send(name, {"key": key}, singleton_key=key)
    claims = await take(engine, name)
    assert sorted(claim.payload for claim in claims) == ['{"key": "a"}', '{"key": "b"}', '{"key": null}']
    assert await take(engine, name) == ()


async def test_a_retry_whose_place_is_taken_fails_as_in_node(
    engine: CheckedEngine, boss: PgBoss, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue(policy="stately", retryLimit=5, retryDelay=100)
    first = await boss.send(name, {"n": 1})
    (claim,) = await take(engine, name)
    assert not await engine.settle([Settlement(claim, Retry(timedelta(seconds=100), BOOM))])
    second = await boss.send(name, {"n": 2})
    (claim,) = await take(engine, name)
    assert claim.ref.id == second
    assert not await engine.settle([Settlement(claim, Retry(timedelta(seconds=100), BOOM))])
    assert first is not None
    assert second is not None
    assert (node.job(name, first)["state"], node.job(name, second)["state"]) == ("retry", "failed")


async def test_keys_keep_their_order_strictly(
    engine: CheckedEngine, boss: PgBoss, node: NodePgBoss, queue: MakeQueue, live: Live
):  # P1
    if live.version != "12":
        return  # it came with pg-boss 12.10
    name = queue(policy="key_strict_fifo", retryLimit=1, retryDelay=0)
    with pytest.raises(InvalidValue, match="key_strict_fifo"):
        await engine.enqueue([NewJob(type="greet", queue=name)])
    ids = {key: [await boss.send(name, {"n": n}, singleton_key=key) for n in range(2)] for key in ("a", "b")}
    claims: dict[str | None, Claim] = {claim.ref.id: claim for claim in await take(engine, name)}
    assert claims.keys() == {ids["a"][0], ids["b"][0]}
    assert not await engine.settle([Settlement(claims[ids["a"][0]], Complete())])
    assert not await engine.settle([Settlement(claims[ids["b"][0]], Release())])
    assert {claim.ref.id for claim in await take(engine, name)} == {ids["a"][1], ids["b"][0]}
    assert node.fetch(name) == []


# Schedules ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # a minute has to pass
async def test_node_keeps_a_schedule_that_python_wrote(engine: CheckedEngine, boss: PgBoss, queue: MakeQueue):  # P1
    name = queue()
    await boss.schedule(name, "* * * * *", {"by": "the clock"})

    async def due() -> Any:
        await asyncio.sleep(1)
        return await take(engine, name) or None

    async with asyncio.timeout(100):
        while not (claims := await due()):
            pass
    assert claims[0].payload == '{"by": "the clock"}'


async def test_schedules_are_the_same_on_both_sides(boss: PgBoss, node: NodePgBoss, queue: MakeQueue):  # P1
    name = queue()
    await boss.schedule(name, "0 6 * * *", {"n": 1}, tz="Europe/Berlin", priority=3)
    (seen,) = [each for each in node.getSchedules() if each["name"] == name]
    assert (seen["cron"], seen["timezone"], seen["data"]) == ("0 6 * * *", "Europe/Berlin", {"n": 1})
    assert seen["options"]["priority"] == 3
    assert [each.cron for each in await boss.schedules() if each.queue == name] == ["0 6 * * *"]
    assert await boss.unschedule(name)
    assert not await boss.unschedule(name)
    for bad in ({"cron": "* * *"}, {"cron": "* * * * *", "tz": "Mars/Phobos"}):
        with pytest.raises(InvalidValue):
            await boss.schedule(name, **bad)


# Events ---------------------------------------------------------------------------------------------------------------


async def test_events_go_to_all_who_subscribed_on_either_side(
    boss: PgBoss, engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    first, second = queue(), queue()
    event = f"event-{first}"
    node.subscribe(event, first)
    await boss.subscribe(event, second)
    assert len(await boss.publish(event, {"e": 1})) == 2
    node.publish(event, {"e": 2})
    for name in (first, second):
        assert sorted(claim.payload for claim in await take(engine, name)) == ['{"e": 1}', '{"e": 2}']
    assert await boss.unsubscribe(event, second)
    assert len(await boss.publish(event, {"e": 3})) == 1


# Buttons --------------------------------------------------------------------------------------------------------------


async def test_resume_and_retry_do_what_nodes_do(
    boss: PgBoss, engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue(retryLimit=0)
    id = await boss.send(name, {})
    assert id is not None
    node.cancel(name, id)
    assert await boss.resume(name, id) == [id]
    (claim,) = await take(engine, name)
    assert not await engine.settle([Settlement(claim, Complete())])
    assert await boss.resume(name, id, "no-id") == []
    id = node.send(name, {})
    (fetched,) = node.fetch(name)
    node.fail(name, fetched["id"], {})
    assert await boss.retry(name, id) == [id]
    (claim,) = await take(engine, name)
    assert (claim.ref.id, claim.attempts, claim.max_attempts) == (id, 2, 2)


async def test_queues_are_made_changed_and_removed_in_pg_bosss_words(boss: PgBoss, node: NodePgBoss, live: Live):
    await boss.create_queue("dead-one")
    await boss.create_queue("own-words", policy="stately", retry_limit=9, dead_letter="dead-one")
    seen = node.getQueue("own-words")
    assert (seen["policy"], seen["retryLimit"], seen["deadLetter"]) == ("stately", 9, "dead-one")
    assert await boss.update_queue("own-words", retry_limit=2)
    assert node.getQueue("own-words")["retryLimit"] == 2
    assert not await boss.update_queue("never-made", retry_limit=2)
    with pytest.raises(InvalidValue, match="is for good"):
        await boss.update_queue("own-words", policy="short")
    with pytest.raises(InvalidValue, match="must be one of"):
        await boss.create_queue("other", policy="strict")
    for policy, since in (("exclusive", 11), ("key_strict_fifo", 12)):
        if int(live.version) < since:
            with pytest.raises(Unsupported, match=f"policy {policy}.*upgrade pg-boss"):
                await boss.create_queue("other", policy=policy)
            assert node.getQueue("other") is None
    await boss.delete_queue("own-words")
    assert node.getQueue("own-words") is None


# Being told -----------------------------------------------------------------------------------------------------------


async def test_each_side_is_told_at_once_of_what_the_other_sends(
    engine: CheckedEngine, node: NodePgBoss, queue: MakeQueue, live: Live
):
    if live.version != "12":
        return  # pg-boss tells of new jobs since 12.21
    name = queue(notify=True)
    signals = engine.signals([name])
    heard = asyncio.ensure_future(anext(signals))
    await asyncio.wait_for(heard, 10)  # to listen is to look once
    heard = asyncio.ensure_future(anext(signals))
    await asyncio.sleep(0)
    node.send(name, {})
    await asyncio.wait_for(heard, 10)
    await signals.aclose()  # type: ignore[attr-defined]
    (claim,) = await take(engine, name)
    assert not await engine.settle([Settlement(claim, Complete())])

    node.work_on(name, {"pollingIntervalSeconds": 600, "notifyPollingIntervalSeconds": 600})
    (answer,) = await engine.enqueue([NewJob(type=name, queue=name)])

    async def seen() -> Any:
        return node.seen(name) or None

    assert [job["id"] for job in await eventually(seen)] == [answer.id]
    node.offWork(name)


async def test_an_app_has_pg_bosss_verbs_and_its_tasks_run_what_node_sends(
    live: Live, node: NodePgBoss, queue: MakeQueue
):  # P1
    name = queue()
    async with live.app() as app:
        ran: list[str] = []

        @app.task(name=name, queue=name)
        async def send_message(campaign_id: int) -> dict[str, int]:
            ran.append("python")
            return {"sent": campaign_id}

        id = node.send(name, {"campaign_id": 42})
        assert await pgboss_of(app).send(name, {"campaign_id": 43}, priority=1) is not None
        async with app.worker(queues=[name], concurrency=2):

            async def done() -> Any:
                return node.job(name, id)["state"] == "completed" or None

            await eventually(done)
        assert node.job(name, id)["output"] == {"sent": 42}
        assert len(ran) == 2
