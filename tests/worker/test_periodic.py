"""The wake event and the loop that every part of the worker is made of."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from onward.errors import StoreUnavailable
from onward.worker.periodic import STORE_RETRY_BACKOFF, Periodic, WakeEvent
from tests.worker.harness import in_virtual_time


def test_a_set_while_awake_is_not_missed():
    async def main() -> bool:
        event = WakeEvent()
        event.set()
        return await event.wait(5)

    assert in_virtual_time(main)


def test_a_set_wakes_the_sleeper_before_its_time():
    async def main() -> tuple[bool, float]:
        loop, event = asyncio.get_running_loop(), WakeEvent()
        began = loop.time()
        loop.call_later(1, event.set)
        return await event.wait(5), loop.time() - began

    assert in_virtual_time(main) == (True, pytest.approx(1))


def test_without_a_set_the_sleep_ends_at_its_time_and_says_so():
    async def main() -> tuple[bool, float]:
        loop, event = asyncio.get_running_loop(), WakeEvent()
        began = loop.time()
        return await event.wait(5), loop.time() - began

    assert in_virtual_time(main) == (False, pytest.approx(5))


def test_a_cancelled_sleep_leaves_the_event_fit_for_the_next():
    async def main() -> bool:
        event = WakeEvent()
        waiter = asyncio.create_task(event.wait())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        event.set()
        return await event.wait()

    assert in_virtual_time(main)


async def _steps(answers: list[float | Exception | None], interval: float) -> list[float]:
    """Let a loop take steps that answer so, and say when it took each."""
    loop = asyncio.get_running_loop()
    began, taken = loop.time(), []
    over = asyncio.Event()

    async def step() -> float | None:
        taken.append(loop.time() - began)
        if not answers:
            over.set()
            return None
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    running = asyncio.create_task(Periodic("part", step, interval=timedelta(seconds=interval)).run())
    await over.wait()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled(), "cancellation must propagate"
    return taken


def test_a_step_says_when_it_wants_to_be_taken_again():
    taken = in_virtual_time(lambda: _steps([0, 3, 1], interval=60))
    assert taken == pytest.approx([0, 0, 3, 4])


def test_no_step_is_put_off_for_longer_than_the_interval():
    first, second, third = in_virtual_time(lambda: _steps([None, 1000], interval=10))
    assert 9 <= second - first <= 10
    assert 9 <= third - second <= 10


def test_a_step_that_raises_is_taken_again_after_a_growing_pause():
    away = StoreUnavailable("away")
    taken = in_virtual_time(lambda: _steps([away, away, ValueError("a bug"), 0], interval=60))
    pauses = [after - before for before, after in pairwise(taken)]
    for failures, pause in enumerate(pauses[:3], start=1):
        lower = STORE_RETRY_BACKOFF.delay(failures, random=lambda: 0.0).total_seconds()
        upper = STORE_RETRY_BACKOFF.delay(failures, random=lambda: 1.0).total_seconds()
        assert lower <= pause <= upper


def test_a_wake_brings_the_next_step_forward():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        second: asyncio.Future[float] = loop.create_future()
        steps = 0

        async def step() -> None:
            nonlocal steps
            steps += 1
            if steps == 2:
                second.set_result(loop.time() - began)

        periodic = Periodic("part", step, interval=timedelta(seconds=60))
        running = asyncio.create_task(periodic.run())
        loop.call_later(2, periodic.wake)
        try:
            return await second
        finally:
            running.cancel()

    assert in_virtual_time(main) == pytest.approx(2)
