"""The sync API on every engine: on the loop thread what waits, on the caller's thread what is enqueued."""

from __future__ import annotations

import asyncio

import pytest

from onward import App, StoreUnavailable
from onward.engine.capabilities import Feature
from tests.conformance.driver import Driver

LONG = 60


async def test_a_job_is_enqueued_run_and_waited_for_without_an_event_loop(driver: Driver):  # X1
    await driver.make("mail")
    app = App(engine=driver.engine.inner)

    @app.task(queue="mail")
    def double(number: int) -> int:
        return 2 * number

    def call() -> tuple[int | None, int]:
        handle = double.sync.enqueue(21)
        assert not app._core.loop.is_running
        while not app.sync.tick().completed:
            pass
        app.sync.queues.list()
        return handle.result(timeout=LONG), len(double.sync.enqueue_many([(1,), (2,)]))

    result = 42 if driver.engine.capabilities.has(Feature.RESULTS) else None
    assert await asyncio.to_thread(call) == (result, 2)
    await app.close()


async def test_closing_the_app_from_an_event_loop_ends_the_thread_and_its_calls(driver: Driver):
    await driver.make("mail")
    app = App(engine=driver.engine.inner)

    @app.task(queue="mail")
    def send() -> None: ...

    handle = await send.enqueue()
    waiting = asyncio.create_task(asyncio.to_thread(handle.sync.result))
    async with asyncio.timeout(LONG):
        while not any(watcher._waiting for watcher in app._core.results._watchers.values()):
            await asyncio.sleep(0)
    thread = app._core.loop._started().thread
    await app.close()
    assert not thread.is_alive()
    with pytest.raises(StoreUnavailable, match="closed while"):
        await asyncio.wait_for(waiting, LONG)
