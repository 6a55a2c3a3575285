"""Signs of life: leases kept while the loop is blocked, claims taken back, cancellations that reach the handler."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import timedelta

import pytest
from msgspec.structs import replace

from onward.app import App
from onward.context import JobContext
from onward.engine.values import HeartbeatReply, JobFilter, QueueChange, QueueInfo, WorkerInfo
from onward.errors import StoreUnavailable
from onward.lifecycle import JobStatus
from onward.worker.heartbeat import HEARTBEATS_PER_LEASE, Heartbeat
from onward.worker.heartbeat_interval import QueueLeases
from onward.worker.inflight import Inflight
from tests.worker.conftest import FaultyEngine
from tests.worker.harness import claim, eventually

LEASE = timedelta(seconds=1)


async def test_a_handler_that_blocks_the_loop_keeps_its_job(app: App, store: FaultyEngine):  # X3, O7
    heartbeat_while_blocked = threading.Event()
    blocked = threading.Event()

    def after_heartbeat(reply: HeartbeatReply) -> HeartbeatReply:
        if blocked.is_set() and len(store.heartbeats[-1][1]) == 1:
            heartbeats_for_job.append(1)
            if len(heartbeats_for_job) == 2 * HEARTBEATS_PER_LEASE:  # twice as long as the lease lasts
                heartbeat_while_blocked.set()
        return reply

    heartbeats_for_job: list[int] = []
    store.after_heartbeat = after_heartbeat

    @app.task
    async def block(context: JobContext) -> int:
        blocked.set()
        assert heartbeat_while_blocked.wait(20), "no beat while the loop was blocked"
        return context.attempt

    handle = await block.enqueue()
    async with app.worker(lease=LEASE) as worker:
        assert await handle.result(timeout=30) == 1
    assert worker.tally == {"complete": 1}


async def test_a_claim_that_is_lost_reaches_the_handler_and_its_outcome_is_dropped(app: App, store: FaultyEngine):  # X3
    stopped = asyncio.Event()
    began = asyncio.Event()

    @app.task
    async def work() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    handle = await work.enqueue()
    async with app.worker(lease=LEASE):
        await asyncio.wait_for(began.wait(), 20)
        store.after_heartbeat = lambda reply: HeartbeatReply(
            lost=reply.lost | {one.token for one in store.heartbeats[-1][1]}
        )
        await asyncio.wait_for(stopped.wait(), 20)
        store.after_heartbeat = lambda reply: reply
    assert store.stored == []
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert job.status is JobStatus.RUNNING


async def test_an_outcome_after_the_claim_was_lost_is_rejected_by_the_store(app: App, store: FaultyEngine):  # X3
    began, proceed = threading.Event(), threading.Event()

    @app.task
    def work() -> str:
        began.set()
        proceed.wait(20)
        return "too late"

    handle = await work.enqueue()
    async with app.worker() as worker:
        await eventually(began.is_set)
        # The claim goes to somebody else without the worker hearing of it.
        await app._core.engine.inner._inner.cancel(JobFilter(refs=(handle.ref,)))  # type: ignore[attr-defined]
        proceed.set()
        await eventually(lambda: worker.tally.get("stale_rejections") == 1)
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert job.status is JobStatus.CANCELLED
    assert job.result is None


async def test_cancelling_a_running_job_stops_its_handler_soon(app: App):
    began, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    handle = await work.enqueue()
    # A lease of an hour: the beat that would tell of it by itself is a quarter of an hour away.
    async with app.worker(lease=timedelta(hours=1), poll=timedelta(hours=1)):
        await asyncio.wait_for(began.wait(), 20)
        await eventually(lambda: _cancelled(app, handle.id))
        await asyncio.wait_for(stopped.wait(), 20)
    job = await app._core.engine.get(handle.ref)
    assert job is not None
    assert job.status is JobStatus.CANCELLED


async def _cancelled(app: App, job: str) -> bool:
    return bool(await app._core.engine.cancel(JobFilter(ids=(job,))))


async def test_cancelling_tells_a_plain_function(app: App):
    began, notified = threading.Event(), threading.Event()

    @app.task
    def work(context: JobContext) -> None:
        began.set()
        while not context.should_stop:
            if give_up.wait(0.01):
                return
        notified.set()

    give_up = threading.Event()
    handle = await work.enqueue()
    async with app.worker(lease=timedelta(hours=1)):
        await eventually(began.is_set)
        await app._core.engine.cancel(JobFilter(ids=(handle.id,)))
        try:
            await eventually(notified.is_set)
        finally:
            give_up.set()


async def test_a_queue_with_a_short_lease_is_beaten_for_often_enough(app: App, store: FaultyEngine):  # O7
    enough = asyncio.Event()

    @app.task
    async def work() -> None:
        await enough.wait()

    await app._core.engine.configure("short", QueueChange(lease=timedelta(seconds=1)))
    handle = await work.using(queue="short").enqueue()
    async with app.worker(lease=timedelta(hours=1)):
        await eventually(lambda: sum(handle.ref in [one.ref for one in held] for _, held in store.heartbeats) >= 3)
        enough.set()
        await handle.result(timeout=20)


async def test_a_job_that_wants_heartbeats_more_often_gets_them():  # P1, O7
    class StubReader:
        async def queues(self, _pattern: str) -> list[QueueInfo]:
            return []

    intervals: list[float] = []
    inflight = Inflight()
    leases = QueueLeases(
        StubReader(),  # type: ignore[arg-type]
        inflight,
        lease=timedelta(minutes=1),
        set_interval=intervals.append,
    )
    await leases.step()
    inflight.add(claim(1), 0.0)
    await leases.step()
    inflight.add(replace(claim(2), heartbeat_within=10.0), 0.0)
    await leases.step()
    inflight.remove(claim(2).token)
    await leases.step()
    assert intervals == [60 / HEARTBEATS_PER_LEASE] * 2 + [10 / HEARTBEATS_PER_LEASE, 60 / HEARTBEATS_PER_LEASE]


class StubConsumer:
    """A store that takes beats, or does not."""

    def __init__(self) -> None:
        self.heartbeats: list[int] = []
        self.failures = 0
        self.answer = HeartbeatReply()

    def heartbeat_sync(self, _worker: WorkerInfo, claims: list[object]) -> HeartbeatReply:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.heartbeats.append(len(claims))
        return self.answer


@pytest.fixture
def consumer() -> StubConsumer:
    return StubConsumer()


def make_heartbeat(
    consumer: StubConsumer, inflight: Inflight, *, lease: float, answers: list[HeartbeatReply]
) -> Heartbeat:
    info = WorkerInfo(id="me", hostname="here", pool_size=1, version="0")
    return Heartbeat(
        consumer,  # type: ignore[arg-type]
        inflight,
        info=info,
        lease=timedelta(seconds=lease),
        on_reply=answers.append,
    )


async def test_the_heartbeat_is_sent_several_times_within_a_lease(consumer: StubConsumer):
    assert HEARTBEATS_PER_LEASE >= 3
    heartbeat = make_heartbeat(consumer, Inflight(), lease=0.4, answers=[])
    heartbeat.start()
    await eventually(lambda: len(consumer.heartbeats) >= 3)
    heartbeat.stop()
    heartbeat.join(20)


async def test_a_wake_brings_a_beat_forward(consumer: StubConsumer):
    inflight, answers = Inflight(), list[HeartbeatReply]()
    heartbeat = make_heartbeat(consumer, inflight, lease=3600, answers=answers)
    heartbeat.start()
    await eventually(lambda: len(answers) == 1)
    inflight.add(claim(1), 0.0)
    heartbeat.wake()
    await eventually(lambda: len(answers) == 2)
    assert consumer.heartbeats == [0, 1]
    heartbeat.stop()
    heartbeat.join(20)


async def test_beats_go_on_after_the_store_was_away(consumer: StubConsumer):
    consumer.failures = 3
    answers: list[HeartbeatReply] = []
    heartbeat = make_heartbeat(consumer, Inflight(), lease=3600, answers=answers)
    heartbeat.start()
    await eventually(lambda: len(answers) == 1)
    assert consumer.failures == 0
    heartbeat.stop()
    heartbeat.join(20)


async def test_a_stopped_heartbeat_is_sent_no_more(consumer: StubConsumer):
    heartbeat = make_heartbeat(consumer, Inflight(), lease=0.04, answers=[])
    heartbeat.start()
    await eventually(lambda: consumer.heartbeats)
    heartbeat.stop()
    heartbeat.join(20)
    heartbeats_before = len(consumer.heartbeats)
    heartbeat.wake()
    assert len(consumer.heartbeats) == heartbeats_before


def test_a_beat_that_comes_after_the_lease_names_the_cause_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):  # O7
    times = iter([0.0, 0.5, 42.0])
    beats: list[float] = []

    class Store:
        def heartbeat_sync(self, _: WorkerInfo, __: object) -> HeartbeatReply:
            return HeartbeatReply()

    def on_reply(_: HeartbeatReply) -> None:
        beats.append(heartbeat.confirmed_at())
        if len(beats) == 3:
            heartbeat.stop()

    info = WorkerInfo(id="w", hostname="h", pool_size=1, version="1")
    heartbeat = Heartbeat(Store(), Inflight(), info=info, lease=LEASE, on_reply=on_reply)  # type: ignore[arg-type]
    monkeypatch.setattr("onward.worker.heartbeat._MIN_INTERVAL", 0.0)
    monkeypatch.setattr("onward.worker.heartbeat.time.monotonic", lambda: next(times))
    monkeypatch.setattr(heartbeat._beat_requested, "wait", lambda _: True)
    assert heartbeat.confirmed_at() == -math.inf
    heartbeat._run()
    assert beats == [0.0, 0.5, 42.0]
    (late,) = [record for record in caplog.records if "heartbeat late" in record.message]
    assert 'executor="process"' in late.message
    assert late.silent_seconds == 41.5  # type: ignore[attr-defined]
