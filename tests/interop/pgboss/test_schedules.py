"""Each side lists, changes and fires the schedules of the other, each turn once (X1)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from onward.backoff import Backoff
from onward.cron import Cron
from onward.engine.checked import CheckedEngine
from onward.engines.pgboss.cron import CronCheck
from onward.job import NewJob
from onward.schedule import Missed, Schedule
from tests.conformance.processes import eventually
from tests.interop.pgboss.conftest import Live

MakeQueue = Callable[..., str]
EVERY_MINUTE = Cron("* * * * *")


def schedule(queue: str, *, trigger: Cron = EVERY_MINUTE) -> Schedule:
    # Before pg-boss 11 a queue has one schedule, of its own name.
    job = NewJob(type="digest", queue=queue, payload='{"n":1}', max_attempts=4, backoff=Backoff.fixed(3))
    return Schedule(name=queue, job=job, trigger=trigger, missed=Missed.SKIP)


async def save(engine: CheckedEngine, wanted: Schedule) -> Schedule:
    return await engine.save_schedule(wanted.going_on((await engine.due_schedules()).now))


def rows(live: Live, statement: str, *values: Any) -> list[Any]:
    with psycopg.connect(live.url, autocommit=True) as connection:
        cursor = connection.execute(statement.replace("boss.", f"{live.schema}."), values)
        return cursor.fetchall() if cursor.description else []


async def test_node_lists_a_schedule_of_ours(engine: CheckedEngine, live: Live, queue: MakeQueue):  # X1
    name = queue()
    await save(engine, schedule(name, trigger=Cron("30 6 * * mon-fri", "Europe/Berlin")))
    (seen,) = [each for each in live.node.getSchedules() if each["name"] == name]
    assert (seen["cron"], seen["timezone"]) == ("30 6 * * mon-fri", "Europe/Berlin")
    assert seen["data"]["n"] == 1
    assert await engine.delete_schedule(name)
    assert name not in {each["name"] for each in live.node.getSchedules()}


async def test_a_schedule_of_nodes_is_listed_paused_and_resumed(
    engine: CheckedEngine, live: Live, queue: MakeQueue
):  # X1
    name = queue()
    live.node.schedule(name, "0 6 * * *", {"kind": "daily"}, {"tz": "Europe/Berlin", "retryLimit": 3})

    async def known() -> Schedule:
        (found,) = [each for each in await engine.schedules() if each.name == name]
        return found

    found = await known()
    assert (found.trigger, found.job.payload) == (Cron("0 6 * * *", "Europe/Berlin"), '{"kind":"daily"}')
    assert (found.job.queue, found.job.type, found.job.max_attempts) == (name, name, 4)
    await engine.save_schedule(found.stopped())
    assert name not in {each["name"] for each in live.node.getSchedules()}, "Node fires it no more"
    assert (await known()).paused
    await engine.save_schedule(found.going_on((await engine.due_schedules()).now))
    (seen,) = [each for each in live.node.getSchedules() if each["name"] == name]
    assert (seen["cron"], seen["data"]) == ("0 6 * * *", {"kind": "daily"})
    live.node.unschedule(name)


async def test_node_and_two_workers_fire_each_turn_once(engine: CheckedEngine, live: Live, queue: MakeQueue):  # X1
    name = queue()
    other = CheckedEngine(live.engine())
    await other.open()
    try:
        await save(engine, schedule(name))
        # As if it had been there for a while: the last turn is due for every one of the three now.
        rows(live, "update boss.schedule set created_on = now() - interval '10 minutes' where name = %s", name)

        async def node_looked() -> Any:
            return rows(live, "select cron_on from boss.version")

        for _ in range(3):
            before = await node_looked()
            for each, worker in ((engine, "a"), (other, "b")):
                each.inner._cron_check = CronCheck()  # type: ignore[attr-defined] # a new leader knows of no turn
                term = await each.elect(worker, lease=timedelta(seconds=30))
                assert term is not None
                await each.promote(term)
                await each.resign(term)

            async def looked_again(seen: Any = before) -> bool:
                return bool(await node_looked() != seen)

            await eventually(looked_again)
        assert await engine.delete_schedule(name)

        def fired() -> list[Any]:
            statement = "select singleton_on from boss.job where name = '__pgboss__send-it' and data ->> 'name' = %s"
            return rows(live, statement, name)

        async def all_forwarded() -> bool:
            ((count,),) = rows(live, "select count(*) from boss.job where name = %s", name)
            return bool(count == len(fired()) > 0)

        await eventually(all_forwarded)
        assert len(set(fired())) == len(fired())
        found = rows(live, "select data, retry_limit from boss.job where name = %s", name)
        assert all(data["n"] == 1 and data["$onward"]["type"] == "digest" for data, _ in found)
        assert {retry_limit for _, retry_limit in found} == {3}
    finally:
        await other.close()
