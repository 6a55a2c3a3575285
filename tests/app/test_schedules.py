"""What is enqueued again and again: declared in the code, and made at run time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from onward import App, InvalidValue, ScheduleNotFound, Unsupported
from onward.clock import ManualClock
from onward.cron import Cron, Interval
from onward.schedule import Missed

MINUTE = timedelta(minutes=1)


def declare(app: App, *, trigger: str | timedelta = "*/5 * * * *", user: int = 7) -> list[int]:
    """Declare a task that is called again and again, and answer where it writes its calls."""
    calls: list[int] = []
    declared = partial(app.schedule, trigger) if isinstance(trigger, str) else partial(app.schedule, every=trigger)

    @declared(arguments={"user": user})
    @app.task
    async def digest(user: int) -> None:
        calls.append(user)

    return calls


async def test_what_the_code_declares_is_there_with_the_first_tick_and_fired_in_its_turns(app: App, clock: ManualClock):
    calls = declare(app)
    report = await app.tick()
    assert (report.fired, report.completed) == (0, 0)
    (schedule,) = await app.schedules.list()
    assert (schedule.name, schedule.trigger, schedule.missed) == ("digest", Cron("*/5 * * * *"), Missed.ONCE)
    clock.advance(5 * MINUTE)
    report = await app.tick()  # H7
    assert (report.fired, report.completed) == (1, 1)
    assert calls == [7]
    assert (await app.tick()).fired == 0


async def test_a_tick_says_when_the_next_turn_is(app: App, clock: ManualClock):
    declare(app)
    await app.open()
    ticker = app._core.ticker()
    await ticker.tick(10)
    assert ticker.next_in == pytest.approx(300)


async def test_a_worker_declares_and_fires(app: App, clock: ManualClock):
    calls = declare(app, trigger=timedelta(seconds=1))
    async with app.worker():
        async with asyncio.timeout(30):
            while not await app.schedules.list():
                await asyncio.sleep(0.01)
            clock.advance(1)
            while not calls:
                await asyncio.sleep(0.01)
    assert calls == [7]


async def test_what_changes_in_the_code_changes_in_the_store(app: App, clock: ManualClock):
    declare(app)
    await app.tick()
    newer = App(engine=app._core.engine.inner, clock=clock)
    declare(newer, trigger=timedelta(hours=1), user=8)
    await newer.tick()
    (schedule,) = await app.schedules.list()
    assert (schedule.trigger, schedule.job.payload) == (Interval(timedelta(hours=1)), '{"user":8}')


async def test_what_was_paused_by_hand_stays_paused_when_the_code_declares_it_again(app: App, clock: ManualClock):
    declare(app)
    await app.tick()
    await app.schedules.pause("digest")
    for user in (7, 8):
        again = App(engine=app._core.engine.inner, clock=clock)
        declare(again, user=user)
        clock.advance(5 * MINUTE)
        assert (await again.tick()).fired == 0
    (schedule,) = await app.schedules.list()
    assert (schedule.paused, schedule.job.payload) == (True, '{"user":8}')


async def test_turns_missed_while_nobody_was_there_are_not_forgotten_by_a_new_declaration(app: App, clock: ManualClock):
    declare(app)
    await app.tick()
    clock.advance(17 * MINUTE)
    later = App(engine=app._core.engine.inner, clock=clock)
    calls = declare(later, user=8)
    assert (await later.tick()).fired == 1
    assert calls == [8]


async def test_a_schedule_is_made_changed_paused_and_deleted_at_run_time(app: App, clock: ManualClock):
    @app.task
    async def digest(user: int) -> None: ...

    made = await app.schedules.set(
        "digest/42", digest.job(user=42), "0 7 * * *", timezone="Europe/Berlin", missed="skip"
    )
    assert made == await app.schedules.get("digest/42")
    assert made.next_at == datetime(2030, 1, 1, 6, tzinfo=UTC)
    clock.advance(timedelta(hours=5, minutes=59))
    assert (await app.tick()).fired == 0
    clock.advance(MINUTE)
    assert (await app.tick()).fired == 1
    await app.schedules.pause("digest/42")
    clock.advance(timedelta(days=3))
    assert (await app.tick()).fired == 0
    resumed = await app.schedules.resume("digest/42")
    assert resumed.next_at == datetime(2030, 1, 5, 6, tzinfo=UTC)
    assert await app.schedules.resume("digest/42") == resumed
    await app.schedules.delete("digest/42")
    assert await app.schedules.list() == []


async def test_the_job_of_a_schedule_is_run_besides_its_turns(app: App):
    calls = declare(app)
    await app.tick()
    before = await app.schedules.get("digest")
    await app.schedules.run("digest")
    await app.tick()
    assert calls == [7]
    assert await app.schedules.get("digest") == before


async def test_a_schedule_that_there_is_not_is_answered_with_the_nearest(app: App):
    declare(app)
    await app.tick()
    for ask in (app.schedules.get, app.schedules.pause, app.schedules.resume, app.schedules.delete, app.schedules.run):
        with pytest.raises(ScheduleNotFound, match="did you mean 'digest'"):
            await ask("digets")


def test_what_cannot_be_declared_is_refused_at_once(app: App):
    with pytest.raises(InvalidValue, match="five fields"):
        app.schedule("every day")
    with pytest.raises(InvalidValue, match="skip, once, all"):
        app.schedule("* * * * *", missed="never")  # type: ignore[call-overload]
    with pytest.raises(InvalidValue, match=r"above @app\.task"):
        app.schedule("* * * * *")(print)  # type: ignore[type-var]
    declare(app)
    with pytest.raises(InvalidValue, match="declared twice"):
        app.schedule("* * * * *")(app._core.find_task("digest"))


async def test_a_task_whose_arguments_are_missing_is_refused_before_anything_runs(app: App):
    @app.schedule("* * * * *")
    @app.task
    async def digest(user: int) -> None: ...

    with pytest.raises(InvalidValue, match="needs this argument"):
        await app.tick()
    assert await app.schedules.list() == []


async def test_a_schedule_that_cannot_be_fired_here_keeps_no_other_from_its_turn(app: App, clock: ManualClock):
    @app.task
    async def digest(user: int) -> None: ...

    for name in ("a", "b"):
        await app.schedules.set(name, digest.job(user=1), "* * * * *")
    foreign = await app.schedules.get("a")
    elsewhere = msgspec.structs.replace(foreign, trigger=Cron("* * * * *", "Mars/Olympus"))
    await app._core.engine.save_schedule(elsewhere)
    clock.advance(MINUTE)
    assert (await app.tick()).fired == 1
    assert [schedule.name for schedule in await app.schedules.list()] == ["a", "b"]
    await app.schedules.delete("a")


@pytest.mark.parametrize(
    ("url", "default", "refused"),
    [
        ("redis://localhost:1/0", Missed.ONCE, ["skip", "all"]),
        ("pgboss+postgresql://x/y", Missed.SKIP, ["once", "all"]),
        ("pgmq+postgresql://x/y", Missed.ONCE, []),
    ],
)
def test_what_the_store_lacks_is_refused_where_a_schedule_is_declared(
    url: str, default: Missed, refused: list[Any]
):  # X1
    app = App(url)

    @app.schedule("0 6 * * *")
    @app.task
    async def digest() -> None: ...

    (declared,) = app._core.declared()
    assert declared.missed is default
    for missed in refused:
        with pytest.raises(Unsupported, match="missed turns"):
            app.schedule("0 6 * * *", missed=missed, name="another")(digest)


def test_an_interval_is_refused_at_its_declaration_on_pgboss():  # X1
    app = App("pgboss+postgresql://x/y")

    @app.task
    async def digest() -> None: ...

    with pytest.raises(Unsupported, match=r"schedules by interval: .* \*/5 \* \* \* \*"):
        app.schedule(every=timedelta(minutes=5))(digest)
