"""Batches and flows as people use them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Literal

import pytest

from onward import App, BatchNotFound, InvalidValue, JobContext, JobFilter
from onward.engine.capabilities import Feature
from onward.errors import ClaimLost, Unsupported
from onward.lifecycle import JobStatus
from onward.testing import detached_context


@pytest.fixture
def mill(app: App) -> App:
    """An App with tasks that pass things on."""

    @app.task
    async def source(value: int) -> int:
        return value

    @app.task
    async def added(context: JobContext) -> int:
        return sum(job.result for job in await context.dependencies())

    @app.task
    def listed(context: JobContext) -> list[Any]:
        return [job.result for job in context.sync.dependencies()]

    @app.task(max_attempts=1)
    async def broken() -> None:
        raise ValueError("broken")

    @app.task
    async def report(word: str) -> str:
        return word

    return app


def job(app: App, name: str, **arguments: Any) -> Any:
    return app.tasks[name].job(**arguments)


async def types(app: App) -> list[str]:
    return sorted(one.type for one in (await app.jobs.list(limit=100)).items)


async def drained(app: App) -> None:
    while (await app.tick()).claimed:
        pass


async def test_a_batch_is_made_added_to_and_sealed(mill: App):
    async with mill.batch("import", on_finished=job(mill, "report", word="done")) as batch:
        first = await batch.add([job(mill, "source", value=1)])
        await batch.add(mill.tasks["source"].jobs([{"value": 2}, (3,)]))
        await drained(mill)
        assert (await batch.info()).progress == 100
        assert not (await batch.info()).is_finished
    assert await first[0].result() == 1
    info = await batch.wait(timeout=5)
    assert (info.total, info.completed, info.failed, info.cancelled) == (3, 3, 0, 0)
    assert await types(mill) == ["report", "source", "source", "source"]


async def test_a_batch_stays_open_after_an_exception(mill: App):
    with contextlib.suppress(KeyError):
        async with mill.batch("import") as batch:
            raise KeyError
    assert not (await batch.info()).sealed


async def test_a_batch_without_a_name_gets_one(mill: App):
    one, two = mill.batch(), mill.batch()
    assert one.name != two.name
    await one.add(())
    assert (await mill.batches.get(one.name)).name == one.name


async def test_more_jobs_than_one_transaction_takes_are_all_added(mill: App):
    batch = mill.batch("many")
    handles = await batch.add(mill.tasks["source"].jobs([{"value": 1}] * 10_001))
    assert len({handle.id for handle in handles}) == 10_001
    assert (await batch.info()).total == 10_001


async def test_a_batch_in_a_queue_of_its_own_is_paused_and_resumed(mill: App):
    batch = mill.batch("import", queue="import/42")
    await batch.add([job(mill, "source", value=1)])
    await batch.pause()
    assert (await mill.tick()).claimed == 0
    await (await mill.batches.get("import")).resume()
    assert (await mill.tick()).completed == 1


async def test_a_batch_in_shared_queues_is_not_paused(mill: App):
    batch = mill.batch("import")
    await batch.add([job(mill, "source", value=1)])
    with pytest.raises(InvalidValue, match="queue of its own"):
        await batch.pause()


async def test_a_batch_is_cancelled_with_all_it_has(mill: App):
    batch = mill.batch("import", on_finished=job(mill, "report", word="done"))
    await batch.add(mill.tasks["source"].jobs([{"value": 1}] * 20))
    await mill.tick(limit=5)
    assert await batch.cancel(reason="wrong file") == 15
    info = await batch.info()
    assert (info.completed, info.cancelled, info.is_finished) == (5, 15, True)
    assert (await mill.jobs.count(JobFilter(batch="import"))) == {"completed": 5, "cancelled": 15}
    assert {one.last_error for one in (await batch.jobs()).items} == {None, "wrong file"}
    assert await batch.cancel() == 0
    with pytest.raises(InvalidValue, match="has finished"):
        await batch.add([job(mill, "source", value=1)])


async def test_progress_is_told_as_it_is_made(mill: App):
    async with mill.batch("import") as batch:
        await batch.add(mill.tasks["source"].jobs([{"value": 1}] * 3))
    told: list[int] = []

    async def watch() -> None:
        async for info in batch.watch():
            told.append(info.progress)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for _ in range(3):
            while len(told) != len({*told}) or not told:
                await asyncio.sleep(0.01)
            before = len(told)
            await mill.tick(limit=1)
            while len(told) == before:
                await asyncio.sleep(0.01)
    assert told == [0, 33, 66, 100]


async def test_waiting_for_a_batch_ends_in_time(mill: App):
    batch = mill.batch("import")
    await batch.add([job(mill, "source", value=1)])
    with pytest.raises(TimeoutError):
        await batch.wait(timeout=0.01)


async def test_unknown_batches_are_answered_with_the_nearest(mill: App):
    await mill.batch("import-42").add(())
    with pytest.raises(BatchNotFound, match=r"did you mean 'import-42'"):
        await mill.batches.get("import-43")
    with pytest.raises(BatchNotFound, match="there is no batch"):
        await mill.batch("never").info()
    with pytest.raises(InvalidValue, match="has not finished"):
        await mill.batches.delete("import-42")


async def test_a_finished_batch_is_forgotten_on_request(mill: App):
    async with mill.batch("import"):
        pass
    await mill.batches.delete("import")
    assert (await mill.batches.list()).items == ()


async def test_a_flow_hands_results_on(mill: App):
    flow = mill.flow("sum", on_success=job(mill, "report", word="added"))
    values = [flow.add(job(mill, "source", value=value)) for value in (1, 2, 4)]
    total = flow.add(job(mill, "added"), after=values)
    flow.add(job(mill, "listed"), after=[total, values[2]])
    assert len(flow) == 5
    batch = await flow.start()
    async with mill.worker():
        assert (await batch.wait(timeout=30)).completed == 5
    results = {one.type: one.result for one in (await batch.jobs()).items}
    assert (results["added"], results["listed"]) == (7, [7, 4])


async def test_nothing_of_a_flow_is_there_before_it_starts_or_if_it_is_wrong(mill: App):
    flow = mill.flow("sum")
    flow.add(job(mill, "source", value=1), after="0190163d-8694-739b-aea5-966c26f8ad91")
    assert await types(mill) == []
    with pytest.raises(InvalidValue, match="no such job"):
        await flow.start()
    assert await types(mill) == []
    assert (await mill.batches.list()).items == ()


async def test_a_chain_runs_in_order(mill: App):
    flow = mill.flow()
    last = flow.chain(job(mill, "source", value=2), job(mill, "added"), job(mill, "added"))
    flow.add(job(mill, "listed"), after=last)
    batch = await flow.start()
    await drained(mill)
    assert [one.result for one in (await batch.jobs()).items] == [2, 2, 2, [2]]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("cancel", "cancelled"), ("skip", "cancelled"), ("run", "completed")],
)
async def test_a_flow_does_on_failure_as_declared(mill: App, policy: Literal["cancel", "skip", "run"], expected: str):
    flow = mill.flow()
    first = flow.add(job(mill, "broken"))
    flow.add(job(mill, "report", word="x"), after=first, on_dependency_failure=policy)
    batch = await flow.start()
    await drained(mill)
    assert [one.status for one in (await batch.jobs()).items] == ["dead_letter", expected]


async def test_a_running_job_adds_to_its_own_flow(mill: App):
    @mill.task
    async def split(context: JobContext, parts: int) -> None:
        batch = await mill.batches.get("split")
        more = batch.flow()
        halves = [more.add(job(mill, "source", value=n), after=context.id) for n in range(parts)]
        more.add(job(mill, "added"), after=halves)
        await more.start()

    flow = mill.flow("split")
    flow.add(job(mill, "split", parts=3))
    batch = await flow.start()
    await drained(mill)
    info = await batch.wait(timeout=5)
    assert (info.total, info.completed) == (5, 5)
    assert [one.result for one in (await batch.jobs()).items][-1] == 3


def test_a_plan_refuses_what_cannot_be(mill: App):
    flow, other = mill.flow(), mill.flow()
    step = other.add(job(mill, "report", word="x"))
    for bad in (step, 3, [None]):
        with pytest.raises(InvalidValue, match="after"):
            flow.add(job(mill, "report", word="x"), after=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="one of cancel, skip, run"):
        flow.add(job(mill, "report", word="x"), on_dependency_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="at least one"):
        flow.chain()
    assert len(flow) == 0


async def test_what_waits_for_others_may_not_wait_for_a_time_as_well(mill: App):
    flow = mill.flow()
    first = flow.add(job(mill, "report", word="x"))
    flow.add(mill.tasks["report"].using(delay=5).job(word="y"), after=first)
    with pytest.raises(InvalidValue, match="delay"):
        await flow.start()
    assert await types(mill) == []


async def test_a_handler_called_by_hand_has_no_parents():
    with pytest.raises(ClaimLost):
        await detached_context().dependencies()
    with pytest.raises(ClaimLost):
        await asyncio.to_thread(detached_context().sync.dependencies)


async def test_a_job_that_waits_for_others_says_for_which(mill: App):
    flow = mill.flow()
    first = flow.add(job(mill, "source", value=1))
    flow.add(job(mill, "added"), after=first)
    batch = await flow.start()
    parent, child = (await batch.jobs()).items
    (reason, *_) = await mill.jobs.explain(child)
    assert reason.message == f"it waits for source {parent.id} (pending) to complete first"
    assert child.status is JobStatus.BLOCKED


async def test_a_store_without_batches_says_so_before_anything_is_written(mill: App, monkeypatch: pytest.MonkeyPatch):
    # X1
    def refuse(feature: Feature) -> None:
        if feature is Feature.BATCHES:
            raise Unsupported("store", feature, "none here")

    monkeypatch.setattr(type(mill._core.engine.capabilities), "require", lambda _, feature: refuse(feature))
    with pytest.raises(Unsupported, match="batches"):
        await mill.batch().add([job(mill, "source", value=1)])
    assert await types(mill) == []
