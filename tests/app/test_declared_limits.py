"""Rates and concurrencies in the decorator: applied to the task's queues, patterns included."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from onward import App, Enqueued, InvalidValue, NewJob, OnwardError, Rate, StoreBusy
from onward.core import core_of
from onward.engine.declared_limits import DeclaredLimits, Limits
from onward.engine.values import QueueChange, QueueInfo
from onward.testing import ManualClock, drain

TEN = Rate(10, timedelta(minutes=1))


async def limits(app: App) -> dict[str, tuple[Rate | None, int | None]]:
    return {
        queue.name: (queue.settings.rate, queue.settings.global_concurrency)
        for queue in await app.queues.list()
        if (queue.settings.rate, queue.settings.global_concurrency) != (None, None)
    }


async def test_a_queue_has_its_limits_before_its_first_job(app: App):  # P6
    @app.task(queue="mail/{org_id}", rate="10/min", concurrency=3)
    async def send() -> None: ...

    @app.task(queue="mail/{org_id}/bulk")
    async def bulk() -> None: ...

    await send.using(org_id="one").enqueue()
    await asyncio.to_thread(send.using(org_id="two").sync.enqueue)
    async with app.batch("b") as batch:
        await batch.add([send.using(org_id="three").job()])
    await app.enqueue("send", org_id="four")
    await bulk.using(org_id="one").enqueue()
    expected = {f"mail/{org}": (TEN, 3) for org in ("one", "two", "three", "four")}
    assert await limits(app) == expected  # and none for mail/one/bulk, which no task limits


async def test_a_declared_rate_holds(app: App, clock: ManualClock):  # P6
    starts: list[float] = []

    @app.task(queue="slow", rate=Rate(2, timedelta(minutes=1)))
    async def send() -> None:
        starts.append(clock.now().timestamp())

    await send.enqueue_many([()] * 5)
    assert (await drain(app, until_idle=True)).completed == 5
    assert all(later - earlier >= 60 for earlier, later in zip(starts, starts[2:], strict=False))


async def test_an_operators_change_holds_until_a_worker_starts(app: App, caplog: pytest.LogCaptureFixture):
    @app.task(queue="mail", rate=TEN)
    async def send() -> None: ...

    await app.queues.configure("mail", rate="1/min", weight=7)
    await send.enqueue()
    for _ in range(2):
        await app.tick()
    operators = Rate(1, timedelta(minutes=1))
    assert (await limits(app))["mail"] == (operators, None)
    with caplog.at_level(logging.WARNING, "onward.engine"):
        async with app.worker(concurrency=1):
            pass
        async with app.worker(concurrency=1):
            pass
    assert (await limits(app))["mail"] == (TEN, None)
    assert caplog.messages == [f"rate of queue mail replaced as its task declares: was {operators}, is {TEN}"]
    assert (await app.queues.get("mail")).settings.weight == 7


async def test_a_worker_limits_queues_that_other_programs_have_made(app: App):
    @app.task(queue="mail/{org_id}", concurrency=2)
    async def send() -> None: ...

    @app.task(queue="named", concurrency=1)
    async def named() -> None: ...

    await app.queues.configure("mail/theirs", weight=2)
    engine = await core_of(app).opened()
    await engine.set_limits(replaces=True)
    assert await limits(app) == {"mail/theirs": (None, 2), "named": (None, 1)}
    await app.queues.configure("mail/theirs", global_concurrency=9)  # an operator's
    await app.queues.configure("mail/new", weight=2)
    await app.queues.configure("mail/own", global_concurrency=8)
    await engine.set_limits(replaces=False)
    assert await limits(app) == {
        "mail/theirs": (None, 9),
        "mail/new": (None, 2),
        "mail/own": (None, 8),
        "named": (None, 1),
    }


async def test_an_enqueue_goes_on_where_limits_cannot_be_set(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    @app.task(queue="mail", rate=TEN)
    async def send() -> None: ...

    async def refuse(*_: object, **__: object) -> None:
        raise OnwardError("permission denied for table queues")

    await app.open()
    monkeypatch.setattr(core_of(app).engine.inner, "configure", refuse)
    with caplog.at_level(logging.WARNING):
        await send.enqueue()
        await send.enqueue()
    assert [record.message for record in caplog.records] == [
        "limits of queue not set: permission denied for table queues"
    ]
    assert (await app.queues.get("mail")).counts


@pytest.mark.parametrize("use", ["async", "sync", "batch"])
async def test_limits_are_set_for_the_jobs_that_are_stored(app: App, use: str):  # X1
    @app.task(queue="mail/{org_id}", rate=TEN)
    async def send() -> None: ...

    async def enqueue(org_id: str, priority: int = 0) -> None:
        job = send.using(org_id=org_id, priority=priority)
        match use:
            case "async":
                await job.enqueue()
            case "sync":
                await asyncio.to_thread(job.sync.enqueue)
            case "batch":
                async with app.batch(org_id) as batch:
                    await batch.add([job.job()])

    await app.open()
    engine = core_of(app).engine
    with pytest.raises(InvalidValue, match="priority"):
        await enqueue("refused", -1)

    def redirect(jobs: Sequence[NewJob]) -> Generator[Sequence[NewJob], list[Enqueued], None]:
        if jobs[0].org_id == "forbidden":
            raise PermissionError
        yield [replace(job, queue="mail/new") for job in jobs]

    engine.enqueue_middleware = [redirect]
    with pytest.raises(PermissionError):
        await enqueue("forbidden")
    assert await app.queues.list() == []
    await enqueue("old")
    assert await limits(app) == {"mail/new": (TEN, None)}


async def test_limits_are_set_by_a_later_enqueue_when_the_store_was_busy(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.task(queue="mail", rate=TEN)
    async def send() -> None: ...

    async def busy(*_: object, **__: object) -> None:
        raise StoreBusy("locked")

    await app.open()
    with monkeypatch.context() as patch:
        patch.setattr(core_of(app).engine.inner, "configure", busy)
        await send.enqueue()
    assert await limits(app) == {}
    await send.enqueue()
    assert await limits(app) == {"mail": (TEN, None)}


async def test_a_queue_that_refuses_its_limits_keeps_no_other_from_its_own(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    @app.task(queue="one", rate=TEN)
    async def one() -> None: ...

    @app.task(queue="two", rate=TEN)
    async def two() -> None: ...

    await app.open()
    inner = core_of(app).engine.inner
    configure = inner.configure
    error: OnwardError = OnwardError("queue one cannot be configured")

    async def refuse_one(queue: str, change: QueueChange) -> QueueInfo:
        if queue == "one":
            raise error
        return await configure(queue, change)

    monkeypatch.setattr(inner, "configure", refuse_one)
    with caplog.at_level(logging.WARNING, "onward.engine"):
        assert (await app.tick()).ok
    assert await limits(app) == {"two": (TEN, None)}
    assert caplog.messages == ["limits of queue not set: queue one cannot be configured"]
    error = StoreBusy("locked")
    with pytest.raises(StoreBusy):
        await core_of(app).engine.set_limits(replaces=True)


def test_two_tasks_may_not_limit_one_queue_otherwise(app: App):
    app.task(queue="mail", rate=TEN, name="one")(print_nothing)
    app.task(queue="mail", rate=TEN, concurrency=3, name="two")(print_nothing)
    app.task(queue="mail", name="three")(print_nothing)
    with pytest.raises(InvalidValue, match=r"queue mail has .* by another task"):
        app.task(queue="mail", rate=Rate(11), name="four")(print_nothing)
    assert "four" not in app.tasks
    for wrong in ({"rate": 10}, {"concurrency": 0}, {"rate": "often"}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            app.task(**wrong)(print_nothing)


def print_nothing() -> None:
    """A task."""


def test_a_template_stands_for_one_part_of_a_path():
    declared = DeclaredLimits()
    declared.declare("a.b/{org_id}/c", Limits(TEN))
    assert declared.of("a.b/acme/c") == Limits(TEN)
    for other in ("axb/acme/c", "a.b/acme/c/d", "a.b/x/y/c", "a.b/c", "a.b//c"):
        assert declared.of(other) is None
