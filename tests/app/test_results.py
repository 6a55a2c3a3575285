"""Waiting for how a job ends."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from onward import App, Cancel, DoNotRetry, JobCancelled, JobContext, JobExpired, JobFailed, JobHandle, JobNotFound
from onward.clock import ManualClock
from onward.engine.checked import Observation
from onward.engine.values import Signal, SignalKind
from onward.errors import StoreUnavailable


@dataclasses.dataclass
class Receipt:
    id: UUID


RECEIPT = Receipt(UUID("0190b0c4-0000-7000-8000-000000000000"))


async def test_a_result_comes_back_as_the_task_says_it_returns(app: App):
    @app.task
    async def pay() -> Receipt:
        return RECEIPT

    handle = await pay.enqueue()
    await app.tick()
    assert await handle.result(timeout=timedelta(seconds=5)) == RECEIPT


async def test_whoever_waits_is_woken_when_the_job_ends(app: App):
    @app.task
    async def pay(number: int) -> int:
        return number

    handles = await pay.enqueue_many([(number,) for number in range(20)])
    waiting = [asyncio.create_task(handle.result(timeout=60)) for handle in handles for _ in range(2)]
    await asyncio.wait([waiting[0]], timeout=0.05)
    assert not any(wait.done() for wait in waiting)
    await app.tick()
    assert sorted(await asyncio.gather(*waiting)) == sorted([*range(20)] * 2)


async def test_one_question_serves_all_who_wait(app: App):
    @app.task
    async def pay(number: int) -> int:
        return number

    handles = await pay.enqueue_many([(number,) for number in range(50)])
    waiting = [asyncio.create_task(handle.result(timeout=60)) for handle in handles]
    await asyncio.wait([waiting[0]], timeout=0.05)
    verbs: list[Observation] = []
    app._core.engine.observer = verbs.append
    await app.tick()
    await asyncio.gather(*waiting)
    assert 0 < len([verb for verb in verbs if verb.verb in {"find", "get"}]) < 50


async def test_a_signal_that_never_comes_is_made_up_for(app: App, monkeypatch: pytest.MonkeyPatch):
    async def silent(queues: Sequence[str]) -> AsyncIterator[Signal]:
        if queues:
            raise StoreUnavailable("no signals here")
        yield Signal(SignalKind.CHANGED)

    monkeypatch.setattr(app._core.engine, "signals", silent)

    @app.task
    async def pay() -> int:
        return 7

    handle = await pay.enqueue()
    wait = asyncio.create_task(handle.result(timeout=60))
    await asyncio.sleep(0)
    await app.tick()
    assert await wait == 7


async def test_a_job_that_did_not_start_in_time_raises_that_it_expired(app: App, clock: ManualClock):  # O2
    @app.task
    async def pay() -> None: ...

    handle = await pay.using(start_by=clock.now() + timedelta(seconds=5)).enqueue()
    clock.advance(10)
    await app.tick()
    with pytest.raises(JobExpired, match="ended as cancelled: expired"):
        await handle.result(timeout=60)


@pytest.mark.parametrize(
    ("error", "kind", "status", "reason"),
    [
        (ValueError("no such card"), JobFailed, "dead_letter", "ValueError: no such card"),
        (DoNotRetry("card stolen"), JobFailed, "failed", "DoNotRetry: card stolen"),
        (Cancel("withdrawn"), JobCancelled, "cancelled", "withdrawn"),
    ],
)
async def test_a_job_that_ends_otherwise_raises_with_the_reason(app: App, error, kind, status, reason):
    @app.task(max_attempts=1)
    async def pay() -> None:
        raise error

    handle = await pay.enqueue()
    wait = asyncio.create_task(handle.result(timeout=60))
    await app.tick()
    with pytest.raises(kind, match=f"ended as {status}: {reason}"):
        await wait


async def test_a_job_that_is_deleted_meanwhile_is_not_waited_for(app: App):
    @app.task
    async def pay() -> None: ...

    handle = await pay.enqueue()
    wait = asyncio.create_task(handle.result(timeout=60))
    await asyncio.wait([wait], timeout=0.05)
    await app.jobs.delete(handle)
    with pytest.raises(JobNotFound, match="is gone"):
        await wait


async def test_a_wait_that_lasts_too_long_leaves_the_job_alone(app: App):
    @app.task
    async def pay() -> int:
        return 1

    handle = await pay.enqueue()
    with pytest.raises(TimeoutError, match=rf"job {handle.ref} has not ended after 0\.01 s; it goes on"):
        await handle.result(timeout=0.01)
    await app.tick()
    assert await handle.result() == 1


async def test_when_nobody_waits_nothing_watches(app: App):
    @app.task
    async def pay() -> int:
        return 1

    handle = await pay.enqueue()
    wait = asyncio.create_task(handle.result())
    async with asyncio.timeout(10):
        while not (watching := _watching()):
            await asyncio.sleep(0)
    wait.cancel()
    await asyncio.wait([wait, *watching])
    assert not _watching()


def _watching() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("onward-results")]


async def test_who_comes_while_the_watch_for_another_ends_is_not_forgotten(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.task
    async def pay(number: int) -> int:
        return number

    leaving, may_leave = asyncio.Event(), asyncio.Event()

    async def signals(queues: Sequence[str]) -> AsyncIterator[Signal]:
        try:
            await asyncio.Event().wait()
            yield Signal(SignalKind.CHANGED)
        finally:
            leaving.set()
            await may_leave.wait()

    monkeypatch.setattr(app._core.engine.inner, "signals", signals)
    first, second = await pay.enqueue(1), await pay.enqueue(2)
    waiting = asyncio.create_task(first.result(timeout=30))
    await asyncio.sleep(0)
    await app.tick(limit=1)
    assert await waiting == 1
    await asyncio.wait_for(leaving.wait(), 30)
    waiting = asyncio.create_task(second.result(timeout=30))
    await asyncio.wait_for(_is_watched(app, second), 30)
    may_leave.set()
    await app.tick()
    assert await waiting == 2


async def _is_watched(app: App, handle: JobHandle[int]) -> None:
    while handle.ref not in app._core.results._watcher()._waiting:
        await asyncio.sleep(0)


async def test_a_handle_names_its_job(app: App):
    @app.task(queue="mail")
    async def send() -> None: ...

    handle = await send.enqueue()
    assert (handle.ref.queue, handle.ref.id, handle.is_new) == ("mail", handle.id, True)
    assert repr(handle) == f"<JobHandle mail:{handle.id} inserted>"


async def test_many_results_are_gathered_in_order(app: App):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    handles = await double.enqueue_many([{"number": number} for number in range(50)])
    async with app.worker():
        assert await app.gather(handles, timeout=30) == [2 * number for number in range(50)]
    assert await app.gather([]) == []


async def test_gathering_ends_with_the_first_failure_or_in_time(app: App):
    @app.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError

    @app.task(queue="nobody")
    async def wait() -> None: ...

    waiting = await wait.enqueue()
    failing = await fail.enqueue()
    async with app.worker(queues=["default"]):
        with pytest.raises(JobFailed):
            await app.gather([waiting, failing], timeout=30)
    with pytest.raises(TimeoutError):
        await app.gather([waiting], timeout=0.01)


async def test_what_has_no_result_is_gathered_as_its_error(app: App):
    @app.task(max_attempts=1)
    async def end(how: str) -> str:
        if how == "fail":
            raise ValueError("no")
        if how == "cancel":
            raise Cancel("not today")
        return how

    handles = await end.enqueue_many([("well",), ("fail",), ("cancel",), ("delete",)])
    await app.tick()
    await app.jobs.delete(handles[3])
    well, failed, cancelled, gone = await app.gather(handles, timeout=30, return_exceptions=True)
    assert well == "well"
    assert isinstance(failed, JobFailed)
    assert (failed.error_type, failed.message, failed.attempts, failed.job.id) == ("ValueError", "no", 1, handles[1].id)
    assert "in end" in (failed.traceback or "")
    assert isinstance(cancelled, JobCancelled)
    assert isinstance(gone, JobNotFound)
    with pytest.raises(JobFailed):
        await app.gather(handles, timeout=30, return_exceptions=False)


async def test_a_tuple_is_gathered_and_enqueued_as_a_tuple(app: App):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def name() -> str:
        return "ada"

    handles = await app.enqueue_many((double.job(1), name.job()))
    await app.tick()
    assert isinstance(handles, tuple)
    assert await app.gather(handles, timeout=30) == (2, "ada")
    assert isinstance(await app.enqueue_many([double.job(1)]), list)


async def test_a_store_that_is_away_is_no_result_of_a_job(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.task
    async def pay() -> None: ...

    handle = await pay.enqueue()

    async def away(_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(app._core.results, "read", away)
    with pytest.raises(StoreUnavailable):
        await app.gather([handle], return_exceptions=True)


async def test_a_handle_from_an_id_knows_the_type_of_the_result(app: App):
    @app.task(queue="shop/{org_id}")
    async def pay() -> Receipt:
        return RECEIPT

    id = (await pay.using(org_id="acme").enqueue()).id
    await app.tick()
    for handle in (
        pay.handle(id),
        app.jobs.handle(id),
        pay.handle(f"shop/acme:{id}"),
        app.jobs.handle(await app.jobs.get(id)),
    ):
        assert await handle.result(timeout=30) == RECEIPT
        assert handle.ref.queue == "shop/acme"
    early = pay.handle(id)
    assert (early.ref.queue, repr(early)) == ("", f"<JobHandle {id}>")
    assert (await app.jobs.get(early)).id == id
    assert [changed.ref.id for changed in await app.jobs.delete(early)] == [id]
    with pytest.raises(JobNotFound):
        await pay.handle(id).wait(timeout=30)


async def test_an_error_of_a_job_survives_the_way_to_another_process(app: App):
    @app.task(max_attempts=1)
    async def pay() -> None:
        raise ValueError("no")

    handle = await pay.enqueue()
    await app.tick()
    with pytest.raises(JobFailed) as caught:
        await handle.result()
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.error_type, copied.job, str(copied)) == ("ValueError", caught.value.job, str(caught.value))


async def test_the_progress_of_a_job_is_told_as_it_is_made(app: App):
    steps = [asyncio.Event() for _ in range(3)]

    @app.task
    async def climb(context: JobContext) -> str:
        for number, step in enumerate(steps):
            context.set_progress(25 * (number + 1), f"step {number}")
            await step.wait()
        return "up"

    handle = await climb.enqueue()
    told: list[int] = []
    async with asyncio.timeout(30), app.worker():
        async for job in handle.watch():
            if job.progress is not None and job.progress not in told:
                told.append(job.progress)
                steps[len(told) - 1].set()
    assert told == [25, 50, 75]
    assert job.result == "up"


async def test_who_follows_a_job_that_is_gone_is_told_so(app: App):
    @app.task
    async def pay() -> None: ...

    handle = await pay.enqueue()
    await app.jobs.delete(handle)
    with pytest.raises(JobNotFound):
        async for _ in handle.watch():
            pass


async def test_a_wait_for_a_result_ends_when_the_app_is_closed(app: App):
    @app.task
    async def pay() -> None:
        pass

    handle = await pay.enqueue()
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    watcher = app._core.results._watcher()
    while not watcher._waiting:
        await asyncio.sleep(0)
    await app.close()
    with pytest.raises(StoreUnavailable, match="closed while the job was awaited"):
        await asyncio.wait_for(waiting, 20)
