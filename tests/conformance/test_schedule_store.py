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
from onward.errors import InvalidJob
from onward.job import NewJob
from onward.schedule import Missed, Schedule, firing_of
from tests.conformance.cases import needs
from tests.conformance.driver import Desk

pytestmark = needs(Feature.SCHEDULES)

MINUTE = timedelta(minutes=1)


def schedule(desk: Desk, name: str = "digest", **fields: Any) -> Schedule:
    job = NewJob(type="greet", queue="mail", payload='{"to":"you"}', backoff=Backoff.fixed(3), org_id="acme")
    made = Schedule(name=name, job=job, rhythm=Interval(MINUTE), next_at=desk.now + MINUTE, missed=Missed.ALL)
    return msgspec.structs.replace(made, **fields)


async def due(desk: Desk) -> list[str]:
    return [one.name for one in (await desk.engine.due_schedules()).schedules]


async def test_a_schedule_is_kept_as_it_was_put(desk: Desk):
    put = schedule(desk, rhythm=Cron("0 6 * * mon-fri", "Europe/Berlin"), missed=Missed.SKIP)
    assert await desk.engine.save_schedule(put) == put
    assert await desk.engine.schedules() == [put]


async def test_schedules_are_listed_by_name(desk: Desk):
    for name in ("b", "a", "c/1"):
        await desk.engine.save_schedule(schedule(desk, name))
    assert [one.name for one in await desk.engine.schedules()] == ["a", "b", "c/1"]


async def test_a_schedule_is_due_when_its_turn_has_come(desk: Desk):
    await desk.engine.save_schedule(schedule(desk))
    await desk.engine.save_schedule(schedule(desk, "later", next_at=desk.now + 3 * MINUTE))
    told = await desk.engine.due_schedules()
    assert (told.schedules, told.now) == ([], desk.now)
    assert told.next_in == pytest.approx(60)
    await desk.advance(MINUTE)
    told = await desk.engine.due_schedules()
    assert [one.name for one in told.schedules] == ["digest"]
    assert told.next_in == pytest.approx(120)


async def test_those_that_have_waited_longest_come_first_and_no_more_than_were_asked_for(desk: Desk):
    for name, minutes in (("a", 3), ("b", 1), ("c", 2)):
        await desk.engine.save_schedule(schedule(desk, name, next_at=desk.now + minutes * MINUTE))
    await desk.advance(5 * MINUTE)
    assert [one.name for one in (await desk.engine.due_schedules(limit=2)).schedules] == ["b", "c"]


async def test_firing_adds_the_jobs_and_sets_the_next_turn(desk: Desk):
    put = await desk.engine.save_schedule(schedule(desk))
    await desk.advance(3 * MINUTE)
    firing = firing_of(put, desk.now)
    added = await desk.engine.fire(put, firing)
    assert added is not None
    jobs = [await desk.engine.get(one.ref) for one in added]
    assert [job.idempotency_key for job in jobs if job] == [job.idempotency_key for job in firing.jobs]
    assert {(job.type, job.queue, job.org_id, job.backoff) for job in jobs if job} == {
        ("greet", "mail", "acme", Backoff.fixed(3))
    }
    (after,) = await desk.engine.schedules()
    assert (after.last_at, after.next_at) == (desk.now, desk.now + MINUTE)
    assert await due(desk) == []
    assert [claim.ref for claim in await desk.take("mail", slots=9)] == [one.ref for one in added]


async def test_a_turn_is_fired_once_however_many_try(desk: Desk):
    put = await desk.engine.save_schedule(schedule(desk))
    await desk.advance(MINUTE)
    firing = firing_of(put, desk.now)
    answers = await asyncio.gather(*(desk.engine.fire(put, firing) for _ in range(10)))
    assert sum(answer is not None for answer in answers) == 1
    assert await desk.engine.fire(put, firing) is None
    assert len(await desk.take("mail", slots=9)) == 1


@pytest.mark.parametrize("what", ["paused", "dropped", "in another rhythm", "moved"])
async def test_a_turn_of_a_schedule_that_was_changed_meanwhile_is_not_fired(desk: Desk, what: str):
    put = await desk.engine.save_schedule(schedule(desk))
    await desk.advance(MINUTE)
    if what == "paused":
        await desk.engine.save_schedule(msgspec.structs.replace(put, paused=True, next_at=None))
    elif what == "dropped":
        assert await desk.engine.delete_schedule("digest")
    elif what == "in another rhythm":
        await desk.engine.save_schedule(msgspec.structs.replace(put, rhythm=Interval(2 * MINUTE)))
    else:
        assert await desk.engine.fire(put, firing_of(put, desk.now)) is not None
        await desk.take("mail", slots=9)
    assert await desk.engine.fire(put, firing_of(put, desk.now)) is None
    assert await desk.take("mail", slots=9) == ()


async def test_a_turn_without_jobs_sets_the_next_one(desk: Desk):
    put = await desk.engine.save_schedule(schedule(desk, missed=Missed.SKIP))
    await desk.advance(MINUTE * 2.5)
    firing = firing_of(put, desk.now)
    assert await desk.engine.fire(put, msgspec.structs.replace(firing, jobs=[])) == []
    assert await due(desk) == []


async def test_one_that_goes_on_in_the_same_rhythm_keeps_its_next_turn(desk: Desk):
    put = await desk.engine.save_schedule(schedule(desk))
    await desk.advance(5 * MINUTE)
    other = NewJob(type="greet", queue="other")
    changed = await desk.engine.save_schedule(schedule(desk, job=other, missed=Missed.ONCE))
    assert (changed.job, changed.missed, changed.next_at) == (other, Missed.ONCE, put.next_at)
    assert await due(desk) == ["digest"], "what it has missed is not forgotten"
    moved = await desk.engine.save_schedule(schedule(desk, rhythm=Interval(2 * MINUTE)))
    assert moved.next_at == desk.now + MINUTE


async def test_a_paused_schedule_is_never_due_and_goes_on_when_it_is_told(desk: Desk):
    put = await desk.engine.save_schedule(schedule(desk))
    paused = await desk.engine.save_schedule(msgspec.structs.replace(put, paused=True, next_at=None))
    assert (paused.paused, paused.next_at) == (True, None)
    await desk.advance(10 * MINUTE)
    told = await desk.engine.due_schedules()
    assert (told.schedules, told.next_in) == ([], None)
    resumed = await desk.engine.save_schedule(msgspec.structs.replace(put, next_at=desk.now + MINUTE))
    assert (resumed.paused, resumed.next_at) == (False, desk.now + MINUTE)


async def test_a_schedule_that_is_dropped_leaves_its_jobs(desk: Desk):
    put = await desk.engine.save_schedule(schedule(desk))
    await desk.advance(MINUTE)
    await desk.engine.fire(put, firing_of(put, desk.now))
    assert await desk.engine.delete_schedule("digest")
    assert not await desk.engine.delete_schedule("digest")
    assert await desk.engine.schedules() == []
    assert len(await desk.take("mail", slots=9)) == 1


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
async def test_what_cannot_be_kept_is_refused_and_nothing_is_written(desk: Desk, broken: dict[str, Any]):  # X1
    with pytest.raises(InvalidJob):
        await desk.engine.save_schedule(schedule(desk, **broken))
    assert await desk.engine.schedules() == []
