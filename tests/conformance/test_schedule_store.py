"""Schedules: each turn makes its job once, whichever worker fires it; and they can be listed, changed and paused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from onward.backoff import Backoff
from onward.cron import Cron, Interval
from onward.engine.capabilities import Feature
from onward.errors import InvalidValue, Unsupported
from onward.job import NewJob
from onward.lifecycle import Complete
from onward.schedule import Missed, Schedule, firing_of
from tests.conformance.cases import needs
from tests.conformance.driver import Driver

pytestmark = needs(Feature.SCHEDULES)

MINUTE = timedelta(minutes=1)
EVERY_MINUTE = Cron("* * * * *")


@pytest.fixture(autouse=True)
async def queues(driver: Driver) -> None:
    await driver.make("mail", "other")


def schedule(driver: Driver, name: str = "digest", **fields: Any) -> Schedule:
    """Make a schedule that every engine with schedules takes."""
    job = NewJob(type="greet", queue="mail", payload='{"to":"you"}', backoff=Backoff.fixed(3), org_id="acme")
    made = Schedule(name=name, job=job, trigger=EVERY_MINUTE, missed=driver.engine.capabilities.default_missed)
    made = msgspec.structs.replace(made, **fields)
    return made if made.paused or made.next_at is not None else made.going_on(driver.now)


def fired(driver: Driver, name: str = "digest", **fields: Any) -> Schedule:
    """Make a schedule for a leader to fire."""
    given = {"trigger": Interval(MINUTE), "next_at": driver.now + MINUTE, "missed": Missed.ALL, **fields}
    return schedule(driver, name, **given)


async def reach(driver: Driver, moment: Any) -> None:
    """Let time pass until a second after a moment."""
    await driver.advance(moment - driver.now + timedelta(seconds=1))


async def upkeep(driver: Driver) -> None:
    """Do what a worker does for schedules."""
    if driver.engine.capabilities.has(Feature.FIRING):
        due = await driver.engine.due_schedules()
        for one in due.schedules:
            await driver.engine.fire(one, firing_of(one, due.now))
    await driver.promote()


async def due(driver: Driver) -> list[str]:
    return [one.name for one in (await driver.engine.due_schedules()).schedules]


async def test_each_turn_makes_one_job_however_many_workers_there_are(driver: Driver):  # X1
    other = Driver(driver.store, await driver.store.connect())
    await driver.engine.save_schedule(schedule(driver))
    for _ in range(3):
        (known,) = await driver.engine.schedules()
        await reach(driver, known.next_at)
        for each in (driver, other, driver):
            await upkeep(each)
        claims = [claim for each in (other, driver) for claim in await each.take("mail", slots=9)]
        assert [(claim.type, claim.org_id) for claim in claims] == [("greet", "acme")]
        assert msgspec.json.decode(claims[0].payload) == {"to": "you"}
        for claim in claims:
            assert await driver.end(claim, Complete())
    await upkeep(other)
    assert await other.take("mail", slots=9) == ()


async def test_before_its_turn_a_schedule_makes_no_job(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    assert put.next_at is not None
    await upkeep(driver)
    assert await driver.take("mail", slots=9) == ()


@pytest.mark.parametrize("trigger", [Cron("0 6 * * mon-fri", "Europe/Berlin"), EVERY_MINUTE], ids=["daily", "minute"])
async def test_a_schedule_is_kept_as_it_was_put(driver: Driver, trigger: Cron):
    put = schedule(driver, trigger=trigger)
    assert await driver.engine.save_schedule(put) == put
    assert await driver.engine.schedules() == [put]


@needs(Feature.INTERVALS)
async def test_an_interval_is_kept_and_its_turns_are_equally_far_apart(driver: Driver):
    put = schedule(driver, trigger=Interval(5 * MINUTE))
    assert await driver.engine.save_schedule(put) == put
    turns = []
    for _ in range(3):
        (known,) = await driver.engine.schedules()
        assert known.next_at is not None
        turns.append(known.next_at)
        await reach(driver, known.next_at)
        await upkeep(driver)
        (claim,) = await driver.take("mail", slots=9)
        assert await driver.end(claim, Complete())
    assert turns == [put.next_at, *(turn + 5 * MINUTE for turn in turns[:2])]


@needs(Feature.MISSED_TURNS)
@pytest.mark.parametrize("missed", list(Missed))
async def test_each_policy_for_missed_turns_is_kept(driver: Driver, missed: Missed):
    put = schedule(driver, missed=missed)
    assert await driver.engine.save_schedule(put) == put


async def test_a_policy_for_missed_turns_that_the_engine_lacks_is_refused(driver: Driver):  # X1
    if driver.engine.capabilities.has(Feature.MISSED_TURNS):
        return
    for missed in set(Missed) - {driver.engine.capabilities.default_missed}:
        with pytest.raises(Unsupported, match="missed turns"):
            await driver.engine.save_schedule(schedule(driver, missed=missed))
    assert await driver.engine.schedules() == []


async def test_schedules_are_listed_by_name(driver: Driver):
    for name in ("b", "a", "c/1"):
        await driver.engine.save_schedule(schedule(driver, name))
    assert [one.name for one in await driver.engine.schedules()] == ["a", "b", "c/1"]


async def test_one_whose_job_changes_keeps_its_turn_and_makes_the_new_job(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    other = NewJob(type="wave", queue="mail", max_attempts=7)
    changed = await driver.engine.save_schedule(schedule(driver, job=other))
    assert (changed.job, changed.next_at) == (other, put.next_at)
    assert await driver.engine.schedules() == [changed]
    await reach(driver, put.next_at)
    await upkeep(driver)
    (claim,) = await driver.take("mail", slots=9)
    assert (claim.type, claim.max_attempts) == ("wave", 7)


async def test_one_that_moves_to_another_queue_leaves_the_first(driver: Driver):
    await driver.engine.save_schedule(schedule(driver))
    moved = await driver.engine.save_schedule(schedule(driver, job=NewJob(type="greet", queue="other")))
    assert await driver.engine.schedules() == [moved]
    await reach(driver, moved.next_at)
    await upkeep(driver)
    assert await driver.take("mail", slots=9) == ()
    assert len(await driver.take("other", slots=9)) == 1


async def test_one_that_gets_another_trigger_goes_by_it(driver: Driver):
    await driver.engine.save_schedule(schedule(driver))
    hourly = await driver.engine.save_schedule(schedule(driver, trigger=Cron("0 * * * *")))
    (known,) = await driver.engine.schedules()
    assert (known.trigger, known.next_at) == (Cron("0 * * * *"), hourly.next_at)
    assert known.next_at == next(Cron("0 * * * *").after(driver.now))


async def test_a_paused_schedule_makes_no_job_and_goes_on_when_it_is_resumed(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    paused = await driver.engine.save_schedule(put.stopped())
    assert (paused.paused, paused.next_at) == (True, None)
    assert await driver.engine.schedules() == [paused]
    await driver.advance(10 * MINUTE)
    await upkeep(driver)
    assert await driver.take("mail", slots=9) == ()
    resumed = await driver.engine.save_schedule(paused.going_on(driver.now))
    assert await driver.engine.schedules() == [resumed]
    assert not resumed.paused
    assert resumed.next_at == next(EVERY_MINUTE.after(driver.now)), "what passed meanwhile is not missed"
    await reach(driver, resumed.next_at)
    await upkeep(driver)
    assert len(await driver.take("mail", slots=9)) == 1


@needs(Feature.INTERVALS)
async def test_an_interval_goes_on_from_the_moment_it_is_resumed(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver, trigger=Interval(5 * MINUTE)))
    paused = await driver.engine.save_schedule(put.stopped())
    await driver.advance(17 * MINUTE)
    expected = paused.going_on(driver.now)
    assert await driver.engine.save_schedule(expected) == expected
    assert await driver.engine.schedules() == [expected]


async def test_a_paused_schedule_may_change_and_may_be_deleted(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    await driver.engine.save_schedule(put.stopped())
    changed = msgspec.structs.replace(put, job=NewJob(type="wave", queue="mail")).stopped()
    assert await driver.engine.save_schedule(changed) == changed
    assert await driver.engine.schedules() == [changed]
    assert await driver.engine.delete_schedule("digest")
    assert await driver.engine.schedules() == []


async def test_a_schedule_that_is_deleted_leaves_its_jobs(driver: Driver):
    put = await driver.engine.save_schedule(schedule(driver))
    await reach(driver, put.next_at)
    await upkeep(driver)
    assert await driver.engine.delete_schedule("digest")
    assert not await driver.engine.delete_schedule("digest")
    assert await driver.engine.schedules() == []
    assert len(await driver.take("mail", slots=9)) == 1
    await driver.advance(2 * MINUTE)
    await upkeep(driver)
    assert await driver.take("mail", slots=9) == ()


async def test_a_queue_that_does_not_exist_is_refused_at_once(driver: Driver):  # X1, X5
    if driver.engine.capabilities.has(Feature.QUEUES_BY_USE):
        return
    with pytest.raises(Unsupported, match="never-made"):
        await driver.engine.save_schedule(schedule(driver, job=NewJob(type="t", queue="never-made")))
    assert await driver.engine.schedules() == []


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


# Where a leader fires


@needs(Feature.FIRING)
async def test_a_schedule_is_due_when_its_turn_has_come(driver: Driver):
    await driver.engine.save_schedule(fired(driver))
    await driver.engine.save_schedule(fired(driver, "later", next_at=driver.now + 3 * MINUTE))
    told = await driver.engine.due_schedules()
    assert (told.schedules, told.now) == ([], driver.now)
    assert told.next_in == pytest.approx(60)
    await driver.advance(MINUTE)
    told = await driver.engine.due_schedules()
    assert [one.name for one in told.schedules] == ["digest"]
    assert told.next_in == pytest.approx(120)


@needs(Feature.FIRING)
async def test_those_that_have_waited_longest_come_first_and_no_more_than_were_asked_for(driver: Driver):
    for name, minutes in (("a", 3), ("b", 1), ("c", 2)):
        await driver.engine.save_schedule(fired(driver, name, next_at=driver.now + minutes * MINUTE))
    await driver.advance(5 * MINUTE)
    assert [one.name for one in (await driver.engine.due_schedules(limit=2)).schedules] == ["b", "c"]


@needs(Feature.FIRING)
async def test_firing_adds_the_jobs_and_sets_the_next_turn(driver: Driver):
    put = await driver.engine.save_schedule(fired(driver))
    await driver.advance(3 * MINUTE)
    firing = firing_of(put, driver.now)
    added = await driver.engine.fire(put, firing)
    assert added is not None
    jobs = [await driver.engine.get(one.ref) for one in added]
    if driver.engine.capabilities.has(Feature.IDEMPOTENCY):
        assert [job.idempotency_key for job in jobs if job] == [job.idempotency_key for job in firing.jobs]
    assert len(jobs) == len(firing.jobs) == 3
    assert {(job.type, job.queue, job.org_id, job.backoff) for job in jobs if job} == {
        ("greet", "mail", "acme", Backoff.fixed(3))
    }
    (after,) = await driver.engine.schedules()
    assert (after.last_at, after.next_at) == (driver.now, driver.now + MINUTE)
    assert await due(driver) == []
    assert [claim.ref for claim in await driver.take("mail", slots=9)] == [one.ref for one in added]


@needs(Feature.FIRING)
async def test_a_turn_is_fired_once_however_many_try(driver: Driver):
    put = await driver.engine.save_schedule(fired(driver))
    await driver.advance(MINUTE)
    firing = firing_of(put, driver.now)
    answers = await asyncio.gather(*(driver.engine.fire(put, firing) for _ in range(10)))
    assert sum(answer is not None for answer in answers) == 1
    assert await driver.engine.fire(put, firing) is None
    assert len(await driver.take("mail", slots=9)) == 1


@needs(Feature.FIRING)
@pytest.mark.parametrize("what", ["paused", "dropped", "in another trigger", "moved"])
async def test_a_turn_of_a_schedule_that_was_changed_meanwhile_is_not_fired(driver: Driver, what: str):
    put = await driver.engine.save_schedule(fired(driver))
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


@needs(Feature.FIRING)
async def test_a_turn_without_jobs_sets_the_next_one(driver: Driver):
    put = await driver.engine.save_schedule(fired(driver, missed=Missed.SKIP))
    await driver.advance(MINUTE * 2.5)
    firing = firing_of(put, driver.now)
    assert await driver.engine.fire(put, msgspec.structs.replace(firing, jobs=[])) == []
    assert await due(driver) == []


@needs(Feature.FIRING)
async def test_one_that_goes_on_in_the_same_trigger_keeps_its_next_turn(driver: Driver):
    put = await driver.engine.save_schedule(fired(driver))
    await driver.advance(5 * MINUTE)
    other = NewJob(type="greet", queue="other")
    changed = await driver.engine.save_schedule(fired(driver, job=other, missed=Missed.ONCE))
    assert (changed.job, changed.missed, changed.next_at) == (other, Missed.ONCE, put.next_at)
    assert await due(driver) == ["digest"], "what it has missed is not forgotten"
    moved = await driver.engine.save_schedule(fired(driver, trigger=Interval(2 * MINUTE)))
    assert moved.next_at == driver.now + MINUTE
