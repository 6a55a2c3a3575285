"""A worker is told from afar to claim no more jobs, to claim again, or to stop (A2)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.access import AuditQuery
from onward.engine.values import WorkerCommand
from onward.errors import InvalidValue
from tests.conformance.access_values import record
from tests.conformance.driver import PAST_LEASE, Driver, worker_info


async def quiet_workers(driver: Driver) -> set[str]:
    return {worker.id for worker in await driver.engine.workers() if worker.is_quiet}


async def test_a_command_comes_with_every_heartbeat_until_there_is_another(driver: Driver):  # A2, O5
    for worker in ("a", "b"):
        assert (await driver.beat(worker=worker)).command is None
    assert await quiet_workers(driver) == set()
    for command in (WorkerCommand.QUIET, WorkerCommand.STOP):
        assert await driver.engine.command_worker("a", command)
        for _ in range(2):
            assert (await driver.beat(worker="a")).command is command
            assert (await driver.beat(worker="b")).command is None
            assert driver.engine.heartbeat_sync(worker_info("a"), []).command is command
            await driver.advance(1)
        assert await quiet_workers(driver) == {"a"}
    assert await driver.engine.command_worker("a", WorkerCommand.RESUME)
    assert (await driver.beat(worker="a")).command is None
    assert await quiet_workers(driver) == set()


async def test_a_command_and_lost_claims_come_with_the_same_answer(driver: Driver):  # A2, X3
    await driver.add(queue="q")
    kept = await driver.add(queue="q")
    claims = await driver.take("q", slots=2)
    await driver.beat(*claims)
    (mine,) = [claim for claim in claims if claim.ref == kept]
    (lost,) = [claim for claim in claims if claim.ref != kept]
    await driver.cancel(lost.ref)
    await driver.engine.command_worker("worker-1", WorkerCommand.QUIET)
    reply = await driver.beat(*claims)
    assert (reply.lost, reply.command) == (frozenset({lost.token}), WorkerCommand.QUIET)
    assert (await driver.beat(mine)).lost == frozenset()


async def test_a_worker_that_is_not_registered_is_told_nothing(driver: Driver):  # A2
    for command in WorkerCommand:
        assert not await driver.engine.command_worker("nobody", command)
    assert (await driver.beat(worker="nobody")).command is None
    with pytest.raises(InvalidValue, match="command"):
        await driver.engine.command_worker("nobody", "dance")  # type: ignore[arg-type]


async def test_a_command_is_forgotten_with_its_worker(driver: Driver):  # A2, O5
    for worker in ("gone", "silent"):
        await driver.beat(worker=worker)
        await driver.engine.command_worker(worker, WorkerCommand.STOP)
    await driver.engine.deregister("gone")
    assert (await driver.beat(worker="gone")).command is None
    await driver.advance(PAST_LEASE + timedelta(minutes=5))
    await driver.rescue()
    assert [worker.id for worker in await driver.engine.workers()] == []
    assert (await driver.beat(worker="silent")).command is None


async def test_a_command_is_audited(driver: Driver):  # A2, S5
    await driver.beat(worker="a")
    await driver.engine.command_worker("a", WorkerCommand.QUIET, audit=record("workers.quiet", target="a"))
    await driver.engine.command_worker("b", WorkerCommand.QUIET, audit=record("workers.quiet", target="b"))
    page = await driver.engine.audit(AuditQuery())
    assert [(each.target, each.count) for each in page.items] == [("b", 0), ("a", 1)]
