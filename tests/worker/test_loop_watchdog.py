"""A handler that blocks the event loop is named."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onward import App
from onward.worker.loop_watchdog import LoopWatchdog

LONG = 60


class Warned(logging.Handler):
    """Tells a thread that a warning has been logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.event = threading.Event()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "event loop blocked" in record.getMessage():
            self.records.append(record)
            self.event.set()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@pytest.fixture
async def warned() -> AsyncIterator[Warned]:
    warned, log = Warned(), logging.getLogger("onward.worker")
    log.addHandler(warned)
    yield warned
    log.removeHandler(warned)


async def test_a_task_that_blocks_the_loop_is_named_while_it_does(app: App, warned: Warned):
    @app.task
    async def crunch() -> bool:
        return warned.event.wait(LONG)  # blocks the loop until the warning has come

    handle = await crunch.enqueue()
    async with app.worker():
        assert await handle.result(timeout=LONG)
    record = warned.records[0]
    assert "blocked for more than 1 s by task 'crunch'" in record.getMessage()
    assert "plain `def`" in record.getMessage()
    fields = vars(record)
    assert (fields["task"], fields["job_id"]) == ("crunch", handle.id)
    assert fields["at"].startswith("test_loop_watchdog.py:")
    assert fields["at"].endswith(" in crunch")


async def test_code_beside_the_handlers_is_told_apart(warned: Warned):
    watchdog = LoopWatchdog(running=lambda: 1, run_of=lambda _: None, threshold=0.05)
    watchdog.start()
    assert warned.event.wait(LONG)
    watchdog.stop()
    assert "by code that runs beside the handlers" in warned.records[0].getMessage()
    assert vars(warned.records[0])["at"].endswith(" in wait")


@pytest.mark.parametrize("running", [0, 1])
async def test_a_loop_that_answers_or_has_nothing_to_run_is_not_warned_of(warned: Warned, running: int):
    asked = threading.Event()

    def count() -> int:
        asked.set()
        return running

    watchdog = LoopWatchdog(running=count, run_of=lambda _: None, threshold=0.05 if not running else LONG)
    watchdog.start()
    for _ in range(2):
        asked.clear()
        await asyncio.to_thread(asked.wait, LONG)
    watchdog.stop()
    thread = watchdog._thread
    assert thread is not None
    await asyncio.to_thread(thread.join, LONG)
    assert not thread.is_alive()
    assert not warned.records
