"""Suspects run alone, and neither they nor ordinary jobs are kept waiting for ever (SPEC, Counting)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from onward.app import App
from onward.clock import ManualClock
from onward.context import JobContext
from onward.engine.values import ClaimRequest, Claims, QueueChange
from onward.engines.sqlite.engine import SQLiteEngine
from onward.handle import JobHandle
from onward.lifecycle import JobStatus
from onward.task import Task
from onward.worker.periodic import Periodic
from onward.worker.quarantine import Quarantine
from tests.worker.harness import claim, eventually, in_virtual_time

POLL = timedelta(milliseconds=20)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(tmp_path: Path, clock: ManualClock):
    async with App(engine=SQLiteEngine(tmp_path / "jobs.db", clock=clock)) as app:
        yield app


async def make_suspects(app: App, clock: ManualClock, task: Task[..., None], count: int, queue: str = "default"):
    """Enqueue jobs, and let a worker that runs them die."""
    handles: list[JobHandle[None]] = [await task.using(queue=queue).enqueue() for _ in range(count)]
    await app._core.engine.claim(
        ClaimRequest(worker_id="dead", queues=(queue,), slots=count, lease=timedelta(seconds=30))
    )
    clock.advance(31)
    term = await app._core.engine.elect("leader", lease=timedelta(seconds=30))
    assert term is not None
    await app._core.engine.rescue(term, lease=timedelta(seconds=30), max_crashes=3)
    await app._core.engine.resign(term)
    for handle in handles:
        job = await app._core.engine.get(handle.ref)
        assert job is not None
        assert (job.status, job.is_suspect, job.attempts) == (JobStatus.PENDING, True, 0)
    return handles


async def test_a_suspect_runs_alone_and_the_others_go_on_after_it(app: App, clock: ManualClock):  # Counting
    running: set[str] = set()
    beside: dict[str, set[str]] = {}
    order: list[str] = []

    @app.task
    async def work(context: JobContext) -> None:
        beside[context.id] = set(running)
        running.add(context.id)
        await asyncio.sleep(0.01)
        for other in running - {context.id}:
            beside[other].add(context.id)
        running.discard(context.id)
        order.append(context.id)

    suspects = {handle.id for handle in await make_suspects(app, clock, work, 3)}
    others = {handle.id for handle in await work.enqueue_many([{} for _ in range(200)])}
    async with app.worker(concurrency=10, poll=POLL):
        await eventually(lambda: len(order) == 203)
    assert set(order) == suspects | others
    for suspect in suspects:
        assert beside[suspect] == set()
    assert any(beside[other] for other in others), "ordinary jobs do run beside each other"


async def test_a_suspect_that_ends_a_run_is_none_any_more(app: App, clock: ManualClock):  # Counting
    @app.task
    async def work() -> None: ...

    (handle,) = await make_suspects(app, clock, work, 1)
    async with app.worker(poll=POLL):
        await handle.result(timeout=20)
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.attempts, job.crashes) == (1, 0)


async def test_a_suspect_in_a_paused_queue_does_not_keep_others_from_working(app: App, clock: ManualClock):
    done: list[str] = []

    @app.task
    async def work(context: JobContext) -> None:
        done.append(context.queue)

    await make_suspects(app, clock, work, 1, queue="stopped")
    await app._core.engine.configure("stopped", QueueChange(paused=True))
    async with app.worker(poll=POLL):
        for _ in range(50):
            handle = await work.using(queue="open").enqueue()
            await handle.result(timeout=20)
    assert done == ["open"] * 50


async def test_a_stop_while_a_suspect_runs_waits_for_it(app: App, clock: ManualClock):
    began, proceed = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await proceed.wait()

    (handle,) = await make_suspects(app, clock, work, 1)
    async with app.worker(poll=POLL) as worker:
        await asyncio.wait_for(began.wait(), 20)
        worker.stop()
        proceed.set()
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert job.status is JobStatus.COMPLETED


async def test_a_stop_while_a_suspect_is_asked_for_is_not_held_against_it(
    app: App, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):  # Counting
    claim, claim_returned = SQLiteEngine.claim, asyncio.Event()

    async def slow(engine: SQLiteEngine, request: ClaimRequest) -> Claims:
        claimed = await claim(engine, request)
        if request.alone:
            claim_returned.set()
            await asyncio.sleep(0.05)
        return claimed

    @app.task
    async def work() -> None:
        raise AssertionError("it is never begun")

    (handle,) = await make_suspects(app, clock, work, 1)
    monkeypatch.setattr(SQLiteEngine, "claim", slow)
    async with app.worker(poll=POLL):
        await asyncio.wait_for(claim_returned.wait(), 20)
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.crashes) == (JobStatus.PENDING, 0, 0)


class StubClaimer:
    """A claimer that takes so long to drain."""

    def __init__(self, drain_seconds: float) -> None:
        self.drain_seconds = drain_seconds
        self.drained_at: float | None = None
        self.active_seconds = 0.0
        self._since = asyncio.get_running_loop().time()
        self.accepted: list[object] = []
        self.run_seconds = 0.5
        self.is_drained = False

    def pause(self) -> None:
        if self.drained_at is None:
            now = asyncio.get_running_loop().time()
            self.active_seconds += now - self._since
            self.drained_at = now + self.drain_seconds

    async def drain(self, until: float | None) -> bool:
        loop = asyncio.get_running_loop()
        drained_at = self.drained_at or loop.time()
        if self.accepted and until is None:
            await asyncio.sleep(self.run_seconds)
        await asyncio.sleep(max(0, min(drained_at, until or drained_at) - loop.time()))
        return until is None or drained_at <= until

    def resume(self) -> None:
        self.drained_at = None
        self._since = asyncio.get_running_loop().time()

    def accept(self, one: object, _requested_at: float) -> None:
        self.accepted.append(one)


class StubStore:
    """A store with suspects."""

    def __init__(self, suspects: int) -> None:
        self.suspects = suspects
        self.claims_requested = 0

    async def claim(self, request: ClaimRequest) -> Claims:
        assert request.alone
        self.claims_requested += 1
        if not self.suspects:
            return Claims()
        self.suspects -= 1
        return Claims(claims=(claim(self.suspects, is_suspect=True),))


async def _run_quarantine(store: StubStore, claimer: StubClaimer, seconds: float) -> Quarantine:
    quarantine = Quarantine(store, worker_id="me", queues=("*",), lease=timedelta(seconds=30))  # type: ignore[arg-type]
    quarantine.claimers = [claimer]  # type: ignore[list-item]
    running = asyncio.create_task(Periodic("quarantine", quarantine.step, interval=timedelta(hours=1)).run())
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        quarantine.on_claimed(
            ("*",), has_suspects=True, has_claims=not claimer.is_drained
        )  # each claim of an ordinary job says so again
        await asyncio.sleep(0.05)
    running.cancel()
    return quarantine


def test_a_suspect_gets_its_turn_even_if_the_worker_is_slow_to_drain():
    async def main() -> None:
        store, claimer = StubStore(1), StubClaimer(drain_seconds=60)
        await _run_quarantine(store, claimer, 600)
        assert len(claimer.accepted) == 1

    in_virtual_time(main)


def test_ordinary_work_has_at_least_as_much_time_as_suspects():
    async def main() -> None:
        store, claimer = StubStore(10_000), StubClaimer(drain_seconds=0)
        await _run_quarantine(store, claimer, 600)
        assert claimer.active_seconds > 250
        assert len(claimer.accepted) > 400

    in_virtual_time(main)


def test_a_worker_with_nothing_else_to_do_does_not_keep_suspects_waiting():
    async def main() -> None:
        store, claimer = StubStore(10_000), StubClaimer(drain_seconds=0)
        claimer.is_drained = True
        await _run_quarantine(store, claimer, 600)
        assert len(claimer.accepted) > 900

    in_virtual_time(main)


def test_a_worker_does_not_drain_for_nothing_all_the_time():
    async def main() -> None:
        store, claimer = StubStore(0), StubClaimer(drain_seconds=1)
        await _run_quarantine(store, claimer, 600)
        assert store.claims_requested < 40
        assert claimer.active_seconds > 500

    in_virtual_time(main)


def test_other_queues_without_suspects_do_not_hide_those_of_one():
    async def main() -> None:
        store, claimer = StubStore(1), StubClaimer(drain_seconds=0)
        quarantine = Quarantine(store, worker_id="me", queues=("*",), lease=timedelta(seconds=30))  # type: ignore[arg-type]
        quarantine.claimers = [claimer]  # type: ignore[list-item]
        quarantine.on_claimed(("mail",), has_suspects=True, has_claims=False)
        quarantine.on_claimed(("video",), has_suspects=False, has_claims=False)
        await quarantine.step()
        assert len(claimer.accepted) == 1

    in_virtual_time(main)
