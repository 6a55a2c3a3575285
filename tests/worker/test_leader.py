"""One leader, for a term at a time; its maintenance tasks, only while it may trust the term."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from onward.app import App
from onward.engine.values import MaintenanceResult, Term
from onward.worker.leader import Leader
from onward.worker.maintenance import MaintenanceLoops, MaintenanceTask
from onward.worker.periodic import Periodic
from onward.worker.worker import Worker
from tests.worker.harness import StubMaintenance, eventually, in_virtual_time

LEASE = timedelta(seconds=30)


def test_the_first_to_ask_leads_and_the_second_does_not():  # O6
    async def main() -> None:
        maintenance = StubMaintenance()
        first, second = Leader(maintenance, "first", lease=LEASE), Leader(maintenance, "second", lease=LEASE)
        await first.step()
        await second.step()
        assert first.term is not None
        assert second.term is None

    in_virtual_time(main)


def test_renewing_names_the_exact_term():  # O6
    async def main() -> None:
        maintenance = StubMaintenance()
        leader = Leader(maintenance, "me", lease=LEASE)
        await leader.step()
        term = leader.term
        await leader.step()
        assert maintenance.elections == [("me", None), ("me", term)]
        assert leader.term == term

    in_virtual_time(main)


def test_a_term_whose_number_was_seen_before_is_logged(caplog: pytest.LogCaptureFixture):  # X3
    class Forgetful(StubMaintenance):
        async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
            await super().elect(candidate, lease=lease, current_term=current_term)
            return Term(next(numbers), candidate, datetime(2026, 1, 1, tzinfo=UTC)) if current_term is None else None

    numbers = iter([6, 7, 7])

    async def main() -> None:
        leader = Leader(Forgetful(), "me", lease=LEASE)
        for logged in (0, 0, 0, 0, 1):  # elected, not renewed, elected, not renewed, elected
            await leader.step()
            assert caplog.text.count("gone back in time") == logged

    in_virtual_time(main)


def test_trust_ends_before_the_lease_does():  # O6
    async def main() -> None:
        leader = Leader(StubMaintenance(), "me", lease=LEASE)
        await leader.step()
        await asyncio.sleep(20)
        assert leader.term is not None
        await asyncio.sleep(9)
        assert leader.term is None

    in_virtual_time(main)


def test_a_slow_answer_does_not_lengthen_the_trust():  # O6
    async def main() -> None:
        maintenance = StubMaintenance()
        maintenance.reply_delay = 15.0
        leader = Leader(maintenance, "me", lease=LEASE)
        await leader.step()
        assert leader.term is not None
        await asyncio.sleep(10)  # 25 s after it was asked for, of 30
        assert leader.term is None

    in_virtual_time(main)


def test_a_deposed_leader_learns_of_it():  # O6
    async def main() -> None:
        maintenance = StubMaintenance()
        first, second = Leader(maintenance, "first", lease=LEASE), Leader(maintenance, "second", lease=LEASE)
        await first.step()
        await asyncio.sleep(31)
        await second.step()
        await first.step()
        assert first.term is None
        assert second.term is not None

    in_virtual_time(main)


def test_a_dead_leader_is_replaced_within_its_lease_and_five_seconds():  # O6
    async def main() -> float:
        loop, maintenance = asyncio.get_running_loop(), StubMaintenance()
        first, second = Leader(maintenance, "first", lease=LEASE), Leader(maintenance, "second", lease=LEASE)
        await first.step()
        died = loop.time()
        running = asyncio.create_task(Periodic("leader", second.step, interval=second.interval).run())
        while second.term is None:
            await asyncio.sleep(0.1)
        running.cancel()
        return loop.time() - died

    assert in_virtual_time(main) <= 35


def test_a_leader_keeps_its_term_by_renewing_it():  # O6
    async def main() -> None:
        maintenance = StubMaintenance()
        leader = Leader(maintenance, "me", lease=LEASE)
        running = asyncio.create_task(Periodic("leader", leader.step, interval=leader.interval).run())
        for _ in range(200):
            await asyncio.sleep(1)
            assert leader.term is not None
        assert maintenance.number == 1
        running.cancel()

    in_virtual_time(main)


def test_resigning_gives_the_term_up_at_once():  # O6
    async def main() -> None:
        maintenance = StubMaintenance()
        first, second = Leader(maintenance, "first", lease=LEASE), Leader(maintenance, "second", lease=LEASE)
        await first.step()
        await first.resign()
        assert first.term is None
        await second.step()
        assert second.term is not None

    in_virtual_time(main)


def _leader_with(
    step: Callable[[Term], Awaitable[MaintenanceResult]], interval: float, time_share: float = 1.0
) -> tuple[Leader, MaintenanceLoops, StubMaintenance]:
    maintenance = StubMaintenance()
    leader = Leader(maintenance, "me", lease=LEASE)
    task = MaintenanceTask("task", step, timedelta(seconds=interval), time_share)
    return leader, MaintenanceLoops(leader, (task,), on_ready=lambda _: None), maintenance


def test_maintenance_tasks_run_only_while_the_term_is_trusted():  # O6
    async def main() -> None:
        loop = asyncio.get_running_loop()
        done: list[float] = []

        async def step(_: Term) -> MaintenanceResult:
            done.append(loop.time())
            return MaintenanceResult()

        leader, maintenance, _ = _leader_with(step, 1.0)
        running = asyncio.create_task(maintenance.loops[0].run())
        await asyncio.sleep(5)
        assert done == [], "nobody has been elected"
        await leader.step()
        elected = loop.time()
        await asyncio.sleep(100)  # and the term never renewed
        assert done
        assert max(done) < elected + LEASE.total_seconds()
        running.cancel()

    in_virtual_time(main)


def test_the_next_step_is_when_something_is_due():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        began, steps = loop.time(), list[float]()

        async def step(_: Term) -> MaintenanceResult:
            steps.append(round(loop.time() - began, 3))
            return MaintenanceResult(next_in=0.2, more=len(steps) == 1)

        leader, maintenance, _ = _leader_with(step, 10.0)
        await leader.step()
        running = asyncio.create_task(maintenance.loops[0].run())
        await asyncio.sleep(0.5)
        running.cancel()
        return steps

    assert in_virtual_time(main) == pytest.approx([0, 0, 0.2, 0.4])


def test_what_nobody_waits_for_has_its_share_of_the_time_and_no_more():  # P9
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        began, steps = loop.time(), list[float]()

        async def step(_: Term) -> MaintenanceResult:
            steps.append(round(loop.time() - began, 3))
            await asyncio.sleep(0.1)
            return MaintenanceResult(changed=1, more=len(steps) < 4)

        leader, maintenance, _ = _leader_with(step, 10.0, time_share=0.2)
        await leader.step()
        running = asyncio.create_task(maintenance.loops[0].run())
        await asyncio.sleep(5)
        running.cancel()
        return steps

    assert in_virtual_time(main) == pytest.approx([0, 0.5, 1.0, 1.5])


def test_where_work_has_become_ready_is_passed_on():
    async def main() -> None:
        notified: list[frozenset[str]] = []

        async def step(_: Term) -> MaintenanceResult:
            return MaintenanceResult(changed=1, queues=frozenset({"mail"}))

        leader, maintenance, _ = _leader_with(step, 10.0)
        maintenance._on_ready = notified.append
        await leader.step()
        running = asyncio.create_task(maintenance.loops[0].run())
        await asyncio.sleep(1)
        running.cancel()
        assert notified == [frozenset({"mail"})]

    in_virtual_time(main)


async def test_of_two_workers_one_leads_and_the_other_takes_over_when_it_stops(app: App):  # O6
    async with app.worker() as second:
        async with app.worker() as first:
            await eventually(lambda: first.is_leader or second.is_leader)
            assert first.is_leader is not second.is_leader
        await eventually(lambda: second.is_leader)


async def test_maintenance_tasks_of_the_application_run_too(app: App):
    done = asyncio.Event()

    async def step(term: Term) -> MaintenanceResult:
        assert term.leader_id == worker.worker_id
        done.set()
        return MaintenanceResult()

    worker = Worker(app._core.engine, {}, maintenance_tasks=[MaintenanceTask("mine", step, timedelta(hours=1))])
    async with worker:
        await asyncio.wait_for(done.wait(), 20)
