"""Schedules of Node's, as a worker of ours meets them: those it can read, and those it leaves alone."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from onward.cron import Cron
from onward.engines.bullmq import schedule_store
from onward.engines.bullmq.cron_pattern import local_zone, zone_of
from onward.engines.bullmq.schedules import next_time
from onward.errors import InvalidValue, StoreUnavailable
from onward.job import NewJob
from onward.schedule import Schedule
from tests.engines.bullmq.queue import Queue

DUE = 1_700_000_000_000
JOB = f"repeat:daily:{DUE}"


def add_scheduled(queue: Queue, repeat: dict[str, Any], *, opts: str | None = None, data: str = "{}") -> None:
    """Leave a scheduler and its due job as Node does."""
    settings: dict[Any, Any] = {"name": "send", "ic": 1, "data": '{"n":1}', "opts": '{"attempts":3}', **repeat}
    queue.client.hset(queue.key("repeat:daily"), mapping=settings)
    queue.client.zadd(queue.key("repeat"), {"daily": DUE})
    known = json.dumps({"attempts": 3, "repeatJobKey": "daily", "prevMillis": DUE, "repeat": {**repeat, "count": 1}})
    queue.add_as_node(JOB, opts=known if opts is None else opts, data=data, rjk="daily")


def millis(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    "repeat",
    [
        {"pattern": "RRULE:FREQ=DAILY"},
        {"pattern": "0 6 * * *", "tz": "Mars/Olympus"},
        {"pattern": "0 6 * * *", "tz": "utc+99"},
        {"pattern": "0 6 * * *", "tz": 5},
        {"pattern": "0 6 * * *", "startDate": 2**70},
        {"pattern": "0 6 * * *", "limit": "many"},
    ],
)
async def test_a_schedule_that_only_node_can_read_is_left_to_it(queue: Queue, repeat: dict[str, Any]):  # B1
    add_scheduled(queue, repeat)
    assert await queue.take() == ()
    assert queue.client.zscore(queue.key("repeat"), "daily") == DUE
    assert queue.client.zrange(queue.key("delayed"), 0, -1) == [JOB]
    assert queue.client.exists(queue.key(f"{JOB}:lock")) == 0
    assert "atm" not in queue.job(JOB)
    assert queue.job(JOB)["delay"] == "5000"


async def test_a_schedule_that_came_back_is_left_to_node_for_longer(queue: Queue):  # B1
    add_scheduled(queue, {"pattern": "RRULE:FREQ=DAILY"})
    for delay in (5_000, 10_000, 20_000):
        assert await queue.take() == ()
        assert queue.job(JOB)["delay"] == str(delay)
        queue.client.zrem(queue.key("delayed"), JOB)
        queue.client.lpush(queue.key("wait"), JOB)


async def test_damaged_schedules_do_not_keep_a_claim_from_its_other_jobs(queue: Queue):  # B1
    add_scheduled(queue, {"pattern": "0 6 * * *", "tz": 5})
    queue.client.hset(queue.key(JOB), "ats", "often")
    queue.add_as_node("repeat:other:1", opts="{broken", rjk="other")
    queue.client.hset(queue.key("repeat:other"), mapping={"pattern": "@daily", "ic": "often", "startDate": "soon"})
    queue.add_as_node("7")
    assert [claim.ref.id for claim in await queue.take(slots=3)] == ["7"]
    assert queue.client.lrange(queue.key("active"), 0, -1) == ["7"]


@pytest.mark.parametrize(("opts", "data"), [("{broken", "{}"), ("null", "{}"), (None, "{broken")])
@pytest.mark.parametrize("repeat", [{"every": 60_000}, {"pattern": "@daily"}])
async def test_a_damaged_job_does_not_end_its_schedule(
    queue: Queue, repeat: dict[str, Any], opts: str | None, data: str
):  # B1
    add_scheduled(queue, repeat, opts=opts, data=data)
    await queue.take()
    (following,) = queue.client.zrange(queue.key("delayed"), 0, -1)
    assert following == f"repeat:daily:{queue.client.zscore(queue.key('repeat'), 'daily'):.0f}"
    assert following != JOB
    job = queue.job(following)
    assert (job["name"], job["data"], job["rjk"]) == ("send", '{"n":1}', "daily")
    assert json.loads(job["opts"])["attempts"] == 3
    assert queue.client.hget(queue.key("repeat:daily"), "ic") == "2"


async def test_a_schedule_whose_next_time_is_past_its_end_has_ended(queue: Queue):  # B1
    add_scheduled(queue, {"pattern": "0 0 29 2 *", "endDate": millis(2027, 1, 1)})
    assert len(await queue.take()) == 1
    assert queue.client.exists(queue.key("delayed")) == 0


def test_a_pattern_without_a_zone_is_in_the_zone_of_the_process(monkeypatch: pytest.MonkeyPatch):  # B1
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert next_time("0 9 * * *", millis(2030, 7, 1), None) == millis(2030, 7, 1, 7)
    assert next_time("0 9 * * *", millis(2030, 1, 1), "local") == millis(2030, 1, 1, 8)
    monkeypatch.setenv("TZ", "UTC")
    assert next_time("0 9 * * *", millis(2030, 7, 1), None) == millis(2030, 7, 1, 9)


def test_a_process_without_a_known_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Mars/Olympus")
    assert local_zone() == UTC
    assert zone_of("system") == UTC


@pytest.mark.parametrize("name", ["reports", "mail"])
async def test_a_schedule_with_the_name_of_nodes_leaves_that_as_it_is(queue: Queue, name: str):  # X1
    add_scheduled(queue, {"pattern": "0 6 * * *", "tz": "UTC"})
    before = queue.client.hgetall(queue.key("repeat:daily"))
    ours = Schedule(name="mail/daily", job=NewJob(type="build", queue=name), trigger=Cron("0 9 * * *"))
    now = (await queue.engine.due_schedules(limit=1)).now
    for _ in range(2):
        await queue.engine.save_schedule(ours.going_on(now))
        assert queue.client.hgetall(queue.key("repeat:daily")) == before
        assert [one.job.type for one in await queue.engine.schedules()] == ["send", "build"]
    assert await queue.engine.delete_schedule("mail/daily")
    assert [one.job.type for one in await queue.engine.schedules()] == ["send"]


async def test_an_edit_of_a_schedule_of_nodes_keeps_its_id(queue: Queue):  # X1
    add_scheduled(queue, {"pattern": "0 6 * * *", "tz": "UTC"})
    (listed,) = await queue.engine.schedules()
    await queue.engine.save_schedule(replace(listed, trigger=Cron("0 9 * * *")))
    assert queue.client.zrange(queue.key("repeat"), 0, -1) == ["daily"]
    assert queue.client.hget(queue.key("repeat:daily"), "pattern") == "0 9 * * *"


def fail(*_: object, **__: object) -> NoReturn:
    raise ConnectionError("cut")


@pytest.mark.parametrize("step", ["put", "_delete"])
@pytest.mark.parametrize("change", ["resume", "move"])
async def test_a_change_that_stops_half_way_loses_no_schedule_and_can_be_repeated(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, change: str, step: str
):  # X4
    now = (await queue.engine.due_schedules(limit=1)).now
    first = Schedule(name="daily", job=NewJob(type="send", queue="mail"), trigger=Cron("0 9 * * *"))
    await queue.engine.save_schedule(first.stopped() if change == "resume" else first.going_on(now))
    (before,) = await queue.engine.schedules()
    moved = first if change == "resume" else replace(first, job=NewJob(type="send", queue="reports"))
    with monkeypatch.context() as patch, suppress(StoreUnavailable):
        patch.setattr(schedule_store, step, fail)
        await queue.engine.save_schedule(moved.going_on(now))
    if step == "put":
        assert await queue.engine.schedules() == [before]
    await queue.engine.save_schedule(moved.going_on(now))
    (after,) = await queue.engine.schedules()
    assert (after.job.queue, after.paused) == (moved.job.queue, False)


async def test_a_schedule_of_nodes_that_begins_later_is_resumed_for_its_beginning(queue: Queue):  # X1
    begin = millis(2100, 1, 1)
    add_scheduled(queue, {"pattern": "0 6 * * *", "tz": "UTC", "startDate": begin})
    (listed,) = await queue.engine.schedules()
    await queue.engine.save_schedule(listed.stopped())
    now = (await queue.engine.due_schedules(limit=1)).now
    await queue.engine.save_schedule(listed.going_on(now))
    assert queue.client.zscore(queue.key("repeat"), "daily") == millis(2100, 1, 1, 6)


@pytest.mark.parametrize("repeat", [{"pattern": "H * * * *"}, {"pattern": "0 6 * * *", "tz": "utc+3"}])
async def test_a_schedule_that_onward_could_not_resume_is_not_paused(queue: Queue, repeat: dict[str, str]):  # X1
    add_scheduled(queue, repeat)
    before = queue.client.hgetall(queue.key("repeat:daily"))
    (listed,) = await queue.engine.schedules()
    with pytest.raises(InvalidValue, match="only BullMQ reads its pattern"):
        await queue.engine.save_schedule(listed.stopped())
    assert queue.client.hgetall(queue.key("repeat:daily")) == before
