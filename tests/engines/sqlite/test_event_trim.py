"""The event log keeps about ``max_events`` events, also while a busy store adds them."""

from __future__ import annotations

from datetime import timedelta

from onward.engines.sqlite import events
from onward.engines.sqlite.engine import SQLiteEngine
from tests.engines.sqlite.plain import add, on_writer

LEASE = timedelta(seconds=30)


async def test_the_leader_trims_events_each_time_it_looks_for_lost_jobs(path, clock, monkeypatch):  # B7
    monkeypatch.setattr(events, "_MAX_TRIMMED", 50)
    engine = SQLiteEngine(path, clock=clock, events="all", max_events=20)
    await engine.open()
    term = await engine.elect("leader", lease=LEASE)
    assert term is not None
    for _ in range(3):
        await add(engine, 120)
        steps = 1
        while (await engine.rescue(term, lease=LEASE, max_crashes=3)).more:
            steps += 1
        assert steps <= 4, "a step removes as many as it may"
        (kept,) = await on_writer(
            engine, lambda transaction: transaction.connection.execute("select count(*) from onward_event").fetchone()
        )
        assert kept <= 21
    await engine.close()
