"""Listening through an App, and saying when a store keeps a record (B7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onward import App, InvalidValue, Unsupported
from onward.engines.sqlite.engine import SQLiteEngine
from onward.events import OLDEST, Active, Completed, Failed


async def test_a_worker_beside_is_heard_to_the_end_and_a_program_of_tomorrow_goes_on_from_there(tmp_path: Path):  # B7
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App(url)

    @app.task(max_attempts=1)
    async def half(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n // 2

    async with app, asyncio.timeout(20), app.events(types=[Completed, Failed]) as events, app.worker():
        await half.enqueue(n=8)
        completed = await anext(events)
        await half.enqueue(n=3)
        failed = await anext(events)
        await half.enqueue(n=6)
        await anext(events)
    assert isinstance(completed, Completed)
    assert completed.result == 4
    assert isinstance(failed, Failed)
    assert failed.error == "ValueError: 3"
    async with App(url) as tomorrow, asyncio.timeout(20):
        async for event in tomorrow.events(cursor=failed.cursor, types=[Active, Completed]):
            if isinstance(event, Completed):
                assert event.result == 3
                break


async def test_told_to_record_always_a_store_does_so_with_nobody_there(tmp_path: Path):  # B7
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with App(url, events="all") as app:

        @app.task
        async def send() -> None: ...

        await send.enqueue()
    async with App(url) as app, asyncio.timeout(20):
        event = await anext(app.events(cursor=OLDEST))
        assert event.name == "waiting"


def test_what_cannot_be_recorded_is_refused():  # B7, X1
    for url in ("pgmq+postgresql://nowhere/db", "pgboss+postgresql://nowhere/db"):
        with pytest.raises(Unsupported, match="events"):
            App(url, events="all")
    for url in ("sqlite://?events=some", "postgresql://nowhere/db?events=some"):
        with pytest.raises(InvalidValue, match="'all' or 'listened'"):
            App(url)
    for kept in ("0", "many"):
        with pytest.raises(InvalidValue, match="at least 1"):
            App(f"sqlite://?max_events={kept}")
    with pytest.raises(InvalidValue, match="belongs to the engine"):
        App(engine=SQLiteEngine(), events="all")
