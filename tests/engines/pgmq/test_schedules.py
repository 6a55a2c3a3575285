"""Schedules beside PGMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from onward.cron import Cron
from onward.job import NewJob
from onward.schedule import Schedule
from onward.worker.scheduler import Scheduler
from tests.conformance.cases import CASE_OF
from tests.conformance.driver import Driver
from tests.conformance.pgmq_case import PGMQStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PGMQStore]:
    """A database whose clock the test sets."""
    store = CASE_OF["pgmq"].make(tmp_path)
    assert isinstance(store, PGMQStore)
    yield store
    await store.close()


@pytest.fixture
async def driver(store: PGMQStore) -> Driver:
    """The sentences of the conformance suite."""
    return Driver(store, await store.connect())


async def test_a_schedule_whose_queue_was_dropped_keeps_no_other_from_its_turn(
    driver: Driver, store: PGMQStore, caplog: pytest.LogCaptureFixture
):  # X1
    await driver.make("gone", "mail")
    for queue in ("gone", "mail"):
        made = Schedule(name=queue, job=NewJob(type="t", queue=queue), trigger=Cron("* * * * *"))
        await driver.engine.save_schedule(made.going_on(driver.now))
    with psycopg.connect(store.url) as connection:
        connection.execute("select pgmq.drop_queue('gone')")
    await driver.advance(timedelta(minutes=1))
    term = await driver.engine.elect("w", lease=timedelta(seconds=30))
    assert term is not None
    fired = await Scheduler(driver.engine, tuple).fire(term)
    assert (fired.changed, fired.queues) == (1, {"mail"})
    assert "schedule cannot be fired" in caplog.text
    assert len(await driver.take("mail")) == 1
    assert await driver.engine.delete_schedule("gone")
