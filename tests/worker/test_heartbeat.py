"""Signs of life: leases kept while the loop is blocked, claims taken back, cancellations that reach the handler."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from onward.app import App
from onward.context import JobContext
from onward.engine.values import HeartbeatReply, JobFilter, QueueChange, WorkerInfo
from onward.errors import StoreUnavailable
from onward.lifecycle import State
from onward.worker.heartbeat import HEARTBEATS_PER_LEASE, Heartbeat
from onward.worker.inflight import Inflight
from tests.worker.conftest import Meddler
from tests.worker.harness import claim, eventually

LEASE = timedelta(seconds=1)


async def test_a_handler_that_blocks_the_loop_keeps_its_job(app: App, store: Meddler):  # X3, O7
    beaten_while_blocked = threading.Event()
    blocked = threading.Event()

    def after_beat(pulse: HeartbeatReply) -> HeartbeatReply:
        if blocked.is_set() and len(store.beats[-1][1]) == 1:
            beats_for_job.append(1)
            if len(beats_for_job) == 2 * HEARTBEATS_PER_LEASE:  # twice as long as the lease lasts
                beaten_while_blocked.set()
        return pulse

    beats_for_job: list[int] = []
    store.after_beat = after_beat

    @app.task
    async def block(context: JobContext) -> int:
        blocked.set()
        assert beaten_while_blocked.wait(20), "no beat while the loop was blocked"
        return context.attempt

    handle = await block.enqueue()
    async with app.worker(lease=LEASE) as worker:
        assert await handle.result(timeout=30) == 1
    assert worker.tally == {"complete": 1}


async def test_a_claim_that_is_lost_reaches_the_handler_and_its_outcome_is_dropped(app: App, store: Meddler):  # X3
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
        store.after_beat = lambda pulse: HeartbeatReply(lost=pulse.lost | {one.token for one in store.beats[-1][1]})
        await asyncio.wait_for(stopped.wait(), 20)
        store.after_beat = lambda pulse: pulse
    assert store.stored == []
    job = await app.engine.get(handle.ref)
    assert job is not None
    assert job.status is State.RUNNING


async def test_an_outcome_after_the_claim_was_lost_is_rejected_by_the_store(app: App, store: Meddler):  # X3
    began, go_on = threading.Event(), threading.Event()

    @app.task
    def work() -> str:
        began.set()
        go_on.wait(20)
        return "too late"

    handle = await work.enqueue()
    async with app.worker() as worker:
        await eventually(began.is_set)
        # The claim goes to somebody else without the worker hearing of it.
        await app.engine.inner._inner.cancel(JobFilter(refs=(handle.ref,)))  # type: ignore[attr-defined]
        go_on.set()
        await eventually(lambda: worker.tally.get("stale_rejections") == 1)
    job = await app.engine.get(handle.ref)
    assert job is not None
    assert job.status is State.CANCELLED
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
    job = await app.engine.get(handle.ref)
    assert job is not None
    assert job.status is State.CANCELLED


async def _cancelled(app: App, job: str) -> bool:
    return bool(await app.engine.cancel(JobFilter(ids=(job,))))


async def test_cancelling_tells_a_plain_function(app: App):
    began, told = threading.Event(), threading.Event()

    @app.task
    def work(context: JobContext) -> None:
        began.set()
        while not context.is_cancelled:
            if give_up.wait(0.01):
                return
        told.set()

    give_up = threading.Event()
    handle = await work.enqueue()
    async with app.worker(lease=timedelta(hours=1)):
        await eventually(began.is_set)
        await app.engine.cancel(JobFilter(ids=(handle.id,)))
        try:
            await eventually(told.is_set)
        finally:
            give_up.set()


async def test_a_queue_with_a_short_lease_is_beaten_for_often_enough(app: App, store: Meddler):  # O7
    enough = asyncio.Event()

    @app.task
    async def work() -> None:
        await enough.wait()

    await app.engine.configure("short", QueueChange(lease=timedelta(seconds=1)))
    handle = await work.using(queue="short").enqueue()
    async with app.worker(lease=timedelta(hours=1)):
        await eventually(lambda: sum(handle.ref in [one.ref for one in held] for _, held in store.beats) >= 3)
        enough.set()
        await handle.result(timeout=20)


class Listener:
    """A store that takes beats, or does not."""

    def __init__(self) -> None:
        self.beats: list[int] = []
        self.failures = 0
        self.answer = HeartbeatReply()

    def heartbeat_sync(self, _worker: WorkerInfo, claims: list[object]) -> HeartbeatReply:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.beats.append(len(claims))
        return self.answer


@pytest.fixture
def listener() -> Listener:
    return Listener()


def beating(listener: Listener, inflight: Inflight, *, lease: float, answers: list[HeartbeatReply]) -> Heartbeat:
    info = WorkerInfo(id="me", hostname="here", pool_size=1, version="0")
    return Heartbeat(
        listener,  # type: ignore[arg-type]
        inflight,
        info=info,
        lease=timedelta(seconds=lease),
        on_reply=answers.append,
    )


async def test_the_pulse_beats_several_times_within_a_lease(listener: Listener):
    assert HEARTBEATS_PER_LEASE >= 3
    pulse = beating(listener, Inflight(), lease=0.4, answers=[])
    pulse.start()
    await eventually(lambda: len(listener.beats) >= 3)
    pulse.stop()
    pulse.join(20)


async def test_a_nudge_brings_a_beat_forward(listener: Listener):
    inflight, answers = Inflight(), list[HeartbeatReply]()
    pulse = beating(listener, inflight, lease=3600, answers=answers)
    pulse.start()
    await eventually(lambda: len(answers) == 1)
    inflight.add(claim(1), 0.0)
    pulse.wake()
    await eventually(lambda: len(answers) == 2)
    assert listener.beats == [0, 1]
    pulse.stop()
    pulse.join(20)


async def test_beats_go_on_after_the_store_was_away(listener: Listener):
    listener.failures = 3
    answers: list[HeartbeatReply] = []
    pulse = beating(listener, Inflight(), lease=3600, answers=answers)
    pulse.start()
    await eventually(lambda: len(answers) == 1)
    assert listener.failures == 0
    pulse.stop()
    pulse.join(20)


async def test_a_stopped_pulse_beats_no_more(listener: Listener):
    pulse = beating(listener, Inflight(), lease=0.04, answers=[])
    pulse.start()
    await eventually(lambda: listener.beats)
    pulse.stop()
    pulse.join(20)
    beaten = len(listener.beats)
    pulse.wake()
    assert len(listener.beats) == beaten
