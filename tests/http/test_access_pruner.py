"""Audit records are kept for as long as the server is told, and no longer (S5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from onward import App
from onward.clock import ManualClock
from onward.core import core_of
from onward.engine.access import AuditQuery, AuditRecord
from onward.errors import InvalidValue
from onward.http import asgi
from onward.http.application import Server
from onward.ids import new_id
from tests.worker.harness import eventually

DAY = timedelta(days=1)


async def test_a_server_removes_records_that_are_no_longer_kept(tmp_path):  # S5
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock)
    engine = await core_of(app).opened()
    old, young = (AuditRecord(id=new_id(), actor="cli:me@here", role="admin", action="jobs.cancel") for _ in range(2))
    await engine.record_audit(old)
    clock.advance(50 * DAY)
    await engine.record_audit(young)
    clock.advance(50 * DAY)
    server: Server = asgi(app, keep_audit=90 * DAY).state.onward

    async def kept() -> list[str]:
        return [each.id for each in (await engine.audit(AuditQuery())).items]

    async def is_pruned() -> bool:
        return await kept() == [young.id]

    server.access_pruner.start()
    await eventually(is_pruned)
    await server.access_pruner.stop()
    await app.close()


async def test_records_cannot_be_kept_for_less_than_thirty_days(app: App):  # S5
    with pytest.raises(InvalidValue, match="keep_audit"):
        asgi(app, keep_audit=29 * DAY)
