"""The slots: who runs what, and what a handler cannot do to its neighbours."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable

import pytest

from onward.engine.values import Claim
from onward.lifecycle import Complete, Outcome, Release, Result, Retry, Returned, SelfCompleted
from onward.worker.inflight import HeldClaim, Stage
from onward.worker.slot_pool import Pool
from tests.worker.harness import StubRunner, VirtualLoop, advance_until, claim, in_virtual_time

Handler = Callable[[Claim], Awaitable[Result | SelfCompleted]]


class PoolHarness:
    """A pool, and what it has settled."""

    def __init__(self, size: int, handler: Handler | None = None) -> None:
        self.runner = StubRunner(handler)
        self.settled: list[tuple[str, Outcome | SelfCompleted]] = []
        self.pool = Pool(
            self.runner, size=size, settle=lambda held, outcome: self.settled.append((held.claim.ref.id, outcome))
        )

    def put(self, *claims: Claim, requested_ago: float = 0.0) -> list[HeldClaim]:
        """Line claims up that were asked for so many seconds ago."""
        now = asyncio.get_running_loop().time()
        held = [HeldClaim(one, now - requested_ago) for one in claims]
        for one in held:
            self.pool.put(one)
        self.pool.wake()
        return held

    async def until_idle(self) -> None:
        await advance_until(lambda: self.pool.is_idle)


def test_no_more_run_at_once_than_there_are_slots():
    async def main() -> PoolHarness:
        async def handler(_: Claim) -> Result:
            await asyncio.sleep(1)
            return Returned()

        harness = PoolHarness(3, handler)
        harness.put(*(claim(number) for number in range(10)))
        await harness.until_idle()
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert harness.runner.max_running == 3
    assert len(harness.settled) == 10


def test_one_slow_job_does_not_hold_up_the_quick_ones_behind_it():
    async def main() -> tuple[list[str], list[str]]:
        slow = asyncio.Event()

        async def handler(one: Claim) -> Result:
            if one.ref.id == "job-0":
                await slow.wait()
            return Returned()

        harness = PoolHarness(2, handler)
        harness.put(*(claim(number) for number in range(50)))
        await advance_until(lambda: len(harness.settled) == 49)
        before = [job for job, _ in harness.settled]
        slow.set()
        await harness.until_idle()
        await harness.pool.close()
        return before, [job for job, _ in harness.settled]

    before, after = in_virtual_time(main)
    assert "job-0" not in before
    assert after[-1] == "job-0"


def test_jobs_begin_in_the_order_in_which_they_were_given():  # O3
    async def main() -> list[str]:
        harness = PoolHarness(1)
        harness.put(*(claim(number) for number in range(20)))
        await harness.until_idle()
        await harness.pool.close()
        return [one.ref.id for one in harness.runner.started]

    assert in_virtual_time(main) == [f"job-{number}" for number in range(20)]


def test_a_limited_job_that_is_too_late_is_given_back_and_not_begun():  # P6
    async def main() -> PoolHarness:
        harness = PoolHarness(1)
        harness.put(claim(1, start_within=0.5), requested_ago=0.6)
        harness.put(claim(2, start_within=0.5), requested_ago=0.4)
        await harness.until_idle()
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert harness.settled == [("job-1", Release()), ("job-2", Complete())]
    assert [one.ref.id for one in harness.runner.started] == ["job-2"]


def test_a_claim_that_may_be_lost_by_now_is_not_begun():  # O7: a woken zombie
    async def main() -> PoolHarness:
        harness = PoolHarness(1)
        confirmed_at = asyncio.get_running_loop().time() - 50
        harness.pool.lease, harness.pool.confirmed_at = 30.0, lambda: confirmed_at
        harness.put(claim(1), requested_ago=40)
        harness.put(claim(2), requested_ago=20)
        await harness.until_idle()
        confirmed_at += 40
        harness.put(claim(3), requested_ago=40)
        await harness.until_idle()
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert harness.settled == [("job-1", Release()), ("job-2", Complete()), ("job-3", Complete())]
    assert [one.ref.id for one in harness.runner.started] == ["job-2", "job-3"]


def test_a_limited_job_that_waited_too_long_for_a_slot_is_given_back():  # P6
    async def main() -> PoolHarness:
        async def handler(_: Claim) -> Result:
            await asyncio.sleep(1)
            return Returned()

        harness = PoolHarness(1, handler)
        harness.put(claim(1), claim(2, start_within=0.5))
        await harness.until_idle()
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert harness.settled == [("job-1", Complete()), ("job-2", Release())]


def test_a_claim_lost_while_waiting_is_not_begun():  # X3
    async def main() -> PoolHarness:
        harness = PoolHarness(1)
        harness.put(claim(1))[0].stage = Stage.LOST
        await harness.until_idle()
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert harness.runner.started == []
    assert harness.settled == []


def test_what_one_handler_leaves_in_a_context_variable_the_next_does_not_see():
    seen: list[str] = []
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    async def main() -> None:
        async def handler(one: Claim) -> Result:
            seen.append(user.get())
            user.set(one.ref.id)
            return Returned()

        harness = PoolHarness(1, handler)
        harness.put(*(claim(number) for number in range(5)))
        await harness.until_idle()
        await harness.pool.close()

    in_virtual_time(main)
    assert seen == ["nobody"] * 5


def test_handlers_see_the_context_in_which_the_worker_was_started():
    region: contextvars.ContextVar[str] = contextvars.ContextVar("region", default="none")
    seen: list[str] = []

    async def main() -> None:
        async def handler(_: Claim) -> Result:
            seen.append(region.get())
            return Returned()

        region.set("north")
        harness = PoolHarness(1, handler)
        harness.put(claim(1))
        await harness.until_idle()
        await harness.pool.close()

    in_virtual_time(main)
    assert seen == ["north"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("a bug of ours")])
def test_nothing_that_a_run_raises_ends_the_slot(error: BaseException):
    async def main() -> PoolHarness:
        async def handler(one: Claim) -> Result:
            if one.ref.id == "job-1":
                raise error
            return Returned()

        harness = PoolHarness(1, handler)
        harness.put(claim(1), claim(2))
        await harness.until_idle()
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    first, second = harness.settled
    assert isinstance(first[1], Retry)
    assert first[1].failure.error_type == type(error).__name__
    assert second == ("job-2", Complete())


def test_a_handler_that_cancels_itself_has_failed_and_its_slot_goes_on():
    async def main() -> PoolHarness:
        async def handler(one: Claim) -> Result:
            if one.ref.id == "job-1":
                raise asyncio.CancelledError
            return Returned()

        harness = PoolHarness(1, handler)
        harness.put(claim(1), claim(2))
        await harness.until_idle()
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert isinstance(harness.settled[0][1], Retry)
    assert harness.settled[1] == ("job-2", Complete())


def test_what_runs_when_the_pool_closes_is_given_back_at_no_cost():  # Counting
    async def main() -> PoolHarness:
        async def handler(_: Claim) -> Result:
            await asyncio.sleep(3600)
            return Returned()

        harness = PoolHarness(2, handler)
        harness.put(claim(1), claim(2))
        await asyncio.sleep(1)
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert sorted(harness.settled) == [("job-1", Release()), ("job-2", Release())]
    assert harness.pool.unstoppable == 0


def test_a_handler_that_ends_in_good_order_when_the_pool_closes_has_ended():
    async def main() -> PoolHarness:
        async def handler(_: Claim) -> Result:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            return Returned()

        harness = PoolHarness(1, handler)
        harness.put(claim(1))
        await asyncio.sleep(1)
        async with asyncio.timeout(5):
            await harness.pool.close()
        return harness

    assert in_virtual_time(main).settled == [("job-1", Complete())]


def test_a_handler_that_will_not_be_cancelled_is_counted():
    async def main() -> tuple[int, int]:
        over = asyncio.Event()

        async def handler(_: Claim) -> Result:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue
            return Returned()

        harness = PoolHarness(1, handler)
        harness.put(claim(1))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await harness.pool.close()
        unstoppable = harness.pool.unstoppable
        over.set()
        await harness.until_idle()
        await asyncio.sleep(0)
        return unstoppable, harness.pool.unstoppable

    assert in_virtual_time(main) == (1, 0)


def test_quick_jobs_do_not_keep_the_loop_from_others():
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        async def handler(_: Claim) -> Result:
            loop.now += 0.001  # the job takes a millisecond, and never waits
            return Returned()

        harness = PoolHarness(1, handler)
        harness.put(*(claim(number) for number in range(100)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = len(harness.settled)
        await harness.until_idle()
        await harness.pool.close()
        return done

    assert in_virtual_time(main) < 10


@pytest.mark.parametrize("is_new", [False, True])
def test_a_slot_that_is_stopped_as_it_is_woken_leaves_the_claims_to_another(is_new: bool):
    """A run that was stopped as it ended stops its slot a little later: when that has been woken for the next job."""

    async def main() -> PoolHarness:
        harness = PoolHarness(3)
        if not is_new:
            harness.put(claim(1))
            await harness.until_idle()
        harness.put(claim(2))
        for slot in harness.pool._slots:
            slot.cancel()
        await asyncio.sleep(1)
        harness.put(claim(3))
        await asyncio.sleep(1)
        assert harness.pool.is_idle
        await harness.pool.close()
        return harness

    assert {"2", "3"} <= {id.removeprefix("job-") for id, _ in in_virtual_time(main).settled}
