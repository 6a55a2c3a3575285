"""A worker's resources: opened before its first job, closed after its last, reachable from the context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from onward import App, CallNext, JobContext, JobStatus
from onward.testing import detached_context, drain, inline


class Pool:
    """A resource."""

    def __init__(self) -> None:
        self.is_open = True
        self.uses = 0


@pytest.fixture
def pools() -> list[Pool]:
    return []


@pytest.fixture
async def app(pools: list[Pool]) -> AsyncIterator[App]:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Pool]:
        assert (await app.jobs.list()).items is not None  # the store is open
        pool = Pool()
        pools.append(pool)
        try:
            yield pool
        finally:
            pool.is_open = False

    async with App("sqlite://", lifespan=lifespan) as app:
        yield app


def use(context: JobContext) -> int:
    pool: Pool = context.state
    assert pool.is_open
    pool.uses += 1
    return pool.uses


async def test_a_worker_enters_it_once_around_all_its_jobs(app: App, pools: list[Pool]):
    @app.task
    async def on_loop(context: JobContext) -> int:
        return use(context)

    @app.task
    def on_thread(context: JobContext) -> int:
        return use(context)

    async def counting(context: JobContext, call_next: CallNext) -> object:
        use(context)
        return await call_next()

    app.middleware.append(counting)
    async with app.worker():
        assert await (await on_loop.enqueue()).result(timeout=60) == 2
        assert await (await on_thread.enqueue()).result(timeout=60) == 4
    (pool,) = pools
    assert (pool.is_open, pool.uses) == (False, 4)
    async with app.worker():
        pass
    assert [pool.is_open for pool in pools] == [False, False]


async def test_it_is_left_after_handlers_that_had_to_be_cancelled(app: App, pools: list[Pool]):
    cleaned = asyncio.Event()
    running = asyncio.Event()

    @app.task
    async def endless(context: JobContext) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            if context.state.is_open:
                cleaned.set()

    await endless.enqueue()
    working = asyncio.create_task(app.work())
    await asyncio.wait_for(running.wait(), 60)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert cleaned.is_set()
    assert not pools[0].is_open


async def test_a_tick_and_a_drain_enter_it_around_their_jobs(app: App, pools: list[Pool]):
    @app.task
    async def run(context: JobContext, again: bool = False) -> None:
        use(context)
        if again:
            await run.enqueue()

    await run.enqueue()
    assert (await app.tick()).completed == 1
    await run.enqueue(again=True)
    assert (await drain(app)).completed == 2
    assert [(pool.is_open, pool.uses) for pool in pools] == [(False, 1), (False, 2)]


async def test_an_inline_enqueue_enters_it_and_those_within_it_share_it(app: App, pools: list[Pool]):
    @app.task
    async def child(context: JobContext) -> None:
        use(context)

    @app.task
    async def parent(context: JobContext) -> None:
        use(context)
        await child.enqueue()
        assert context.state.is_open

    @app.task
    def plain(context: JobContext) -> None:
        use(context)

    with inline(app):
        assert (await (await parent.enqueue()).info()).status is JobStatus.COMPLETED
        handle = await asyncio.to_thread(plain.sync.enqueue)  # on a loop of its own
        assert (await asyncio.to_thread(handle.info)).status is JobStatus.COMPLETED
    assert [(pool.is_open, pool.uses) for pool in pools] == [(False, 2), (False, 1)]


async def test_a_run_on_another_event_loop_has_resources_of_its_own(app: App, pools: list[Pool]):
    @app.task
    async def child(context: JobContext) -> None:
        use(context)

    @app.task
    async def parent(context: JobContext) -> None:
        use(context)
        await asyncio.to_thread(child.sync.enqueue)  # runs it on another loop, with a copy of this context

    with inline(app):
        assert (await (await parent.enqueue()).info()).status is JobStatus.COMPLETED
    assert [(pool.is_open, pool.uses) for pool in pools] == [(False, 1), (False, 1)]


async def test_a_worker_whose_resources_cannot_be_opened_claims_nothing():
    @asynccontextmanager
    async def lifespan(made: App) -> AsyncIterator[None]:
        if not made.middleware:
            raise ConnectionError("no database")
        yield

    app = App("sqlite://", lifespan=lifespan)

    @app.task
    async def send() -> None: ...

    async with app:
        handle = await send.enqueue()
        with pytest.raises(ConnectionError, match="no database"):
            await app.work()
        assert (await handle.info()).status is JobStatus.PENDING
        assert await app.workers.list() == []


async def test_a_handler_called_by_hand_is_given_a_state():
    app = App("sqlite://")

    @app.task
    async def send(context: JobContext) -> str:
        return f"{context.state}"

    assert await send() == "None"
    assert await send.function(detached_context(state="pool")) == "pool"
