"""Schedules: each turn is fired at most once, whoever tries, and together with its jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from onward.backoff import Backoff
from onward.cron import Cron, Interval
from onward.engine.capabilities import Feature
from onward.errors import InvalidValue
from onward.job import NewJob
from onward.schedule import Missed, Schedule, firing_of
from tests.conformance.cases import needs
from tests.conformance.driver import Driver

pytestmark = needs(Feature.SCHEDULES)

MINUTE = timedelta(minutes=1)


def schedule(driver: Driver, name: str = "digest", **fields: Any) -> Schedule:
    job = NewJob(type="greet", queue="mail", payload='{"to":"you"}', backoff=Backoff.fixed(3), org_id="acme")
    made = Schedule(name=name, job=job, trigger=Interval(MINUTE), next_at=driver.now + MINUTE, missed=Missed.ALL)
    return msgspec.structs.replace(made, **fields)


async def due(driver: Driver) -> list[str]:
    return [one.name for one in (await driver.engine.due_schedules()).schedules]


async def test_a_schedule_is_kept_as_it_was_put(driver: Driver):
    put = schedule(driver, trigger=Cron("0 6 * * mon-fri", "Europe/Berlin"), missed=Missed.SKIP)
    assert await driver.engine.save_schedule(put) == put
    assert await driver.engine.schedules() == [put]


async def test_schedules_are_listed_by_name(driver: Driver):
    for name in ("b", "a", "c/1"):
        await driver.engine.save_schedule(schedule(driver, name))
    assert [one.name for one in await driver.engine.schedules()] == ["a", "b", "c/1"]


async def test_a_schedule_is_due_when_its_turn_has_come(driver: Driver):
    await driver.engine.save_schedule(schedule(driver))
    await driver.engine.save_schedule(schedule(driver, "later", next_at=driver.now + 3 * MINUTE))
    told = await driver.engine.due_schedules()
    assert (told.schedules, told.now) == ([], driver.now)
    assert told.next_in == pytest.approx(60)
    await driver.advance(MINUTE)
    told = await driver.engine.due_schedules()
    assert [one.name for one in told.schedules] == ["digest"]
    assert told.next_in == pytest.approx(120)


async def test_those_that_have_waited_longest_come_first_and_no_more_than_were_asked_for(driver: Driver):
    for name, minutes in (("a", 3), ("b", 1), ("c", 2)):
        await driver.engine.save_schedule(schedule(driver, name, next_at=driver.now + minutes * MINUTE))
    await driver.advance(5 * MINUTE)
    assert [one.name for one in (await driver.engine.due_schedules(limit=2)).schedules] == ["b", "c"]


async def test_firing_adds_the_jobs_and_sets_the_next_turn(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    await driver.advance(3 * MINUTE)
    firing = firing_of(put, driver.now)
    added = await driver.engine.fire(put, firing)
    assert added is not None
    jobs = [await driver.engine.get(one.ref) for one in added]
    assert [job.idempotency_key for job in jobs if job] == [job.idempotency_key for job in firing.jobs]
    assert {(job.type, job.queue, job.org_id, job.backoff) for job in jobs if job} == {
        ("greet", "mail", "acme", Backoff.fixed(3))
    }
    (after,) = await driver.engine.schedules()
    assert (after.last_at, after.next_at) == (driver.now, driver.now + MINUTE)
    assert await due(driver) == []
    assert [claim.ref for claim in await driver.take("mail", slots=9)] == [one.ref for one in added]


async def test_a_turn_is_fired_once_however_many_try(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    await driver.advance(MINUTE)
    firing = firing_of(put, driver.now)
    answers = await asyncio.gather(*(driver.engine.fire(put, firing) for _ in range(10)))
    assert sum(answer is not None for answer in answers) == 1
    assert await driver.engine.fire(put, firing) is None
    assert len(await driver.take("mail", slots=9)) == 1


@pytest.mark.parametrize("what", ["paused", "dropped", "in another trigger", "moved"])
async def test_a_turn_of_a_schedule_that_was_changed_meanwhile_is_not_fired(driver: Driver, what: str):
    put = await driver.engine.save_schedule(schedule(driver))
    await driver.advance(MINUTE)
    if what == "paused":
        await driver.engine.save_schedule(msgspec.structs.replace(put, paused=True, next_at=None))
    elif what == "dropped":
        assert await driver.engine.delete_schedule("digest")
    elif what == "in another trigger":
        await driver.engine.save_schedule(msgspec.structs.replace(put, trigger=Interval(2 * MINUTE)))
    else:
        assert await driver.engine.fire(put, firing_of(put, driver.now)) is not None
        await driver.take("mail", slots=9)
    assert await driver.engine.fire(put, firing_of(put, driver.now)) is None
    assert await driver.take("mail", slots=9) == ()


async def test_a_turn_without_jobs_sets_the_next_one(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver, missed=Missed.SKIP))
    await driver.advance(MINUTE * 2.5)
    firing = firing_of(put, driver.now)
    assert await driver.engine.fire(put, msgspec.structs.replace(firing, jobs=[])) == []
    assert await due(driver) == []


async def test_one_that_goes_on_in_the_same_rhythm_keeps_its_next_turn(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    await driver.advance(5 * MINUTE)
    other = NewJob(type="greet", queue="other")
    changed = await driver.engine.save_schedule(schedule(driver, job=other, missed=Missed.ONCE))
    assert (changed.job, changed.missed, changed.next_at) == (other, Missed.ONCE, put.next_at)
    assert await due(driver) == ["digest"], "what it has missed is not forgotten"
    moved = await driver.engine.save_schedule(schedule(driver, trigger=Interval(2 * MINUTE)))
    assert moved.next_at == driver.now + MINUTE


async def test_a_paused_schedule_is_never_due_and_goes_on_when_it_is_told(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    paused = await driver.engine.save_schedule(msgspec.structs.replace(put, paused=True, next_at=None))
    assert (paused.paused, paused.next_at) == (True, None)
    await driver.advance(10 * MINUTE)
    told = await driver.engine.due_schedules()
    assert (told.schedules, told.next_in) == ([], None)
    resumed = await driver.engine.save_schedule(msgspec.structs.replace(put, next_at=driver.now + MINUTE))
    assert (resumed.paused, resumed.next_at) == (False, driver.now + MINUTE)


async def test_a_schedule_that_is_dropped_leaves_its_jobs(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    await driver.advance(MINUTE)
    await driver.engine.fire(put, firing_of(put, driver.now))
    assert await driver.engine.delete_schedule("digest")
    assert not await driver.engine.delete_schedule("digest")
    assert await driver.engine.schedules() == []
    assert len(await driver.take("mail", slots=9)) == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"name": ""},
        {"name": "x" * 121},
        {"name": "a\0b"},
        {"job": NewJob(type="")},
        {"job": NewJob(type="t", queue="No Such")},
        {"job": NewJob(type="t", idempotency_key="k")},
    ],
    ids=["no name", "long name", "NUL", "no type", "bad queue", "key"],
)
async def test_what_cannot_be_kept_is_refused_and_nothing_is_written(driver: Driver, broken: dict[str, Any]):  # X1
    with pytest.raises(InvalidValue):
        await driver.engine.save_schedule(schedule(driver, **broken))
    assert await driver.engine.schedules() == []
