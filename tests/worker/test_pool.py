"""The hands: who runs what, and what a handler cannot do to its neighbours."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable

import pytest

from onward.engine.values import Claim
from onward.lifecycle import Complete, Outcome, Release, Result, Retry, Returned
from onward.worker.inflight import HeldClaim, Stage
from onward.worker.pool import Pool
from tests.worker.harness import StubRunner, VirtualLoop, claim, in_virtual_time, passing

Handler = Callable[[Claim], Awaitable[Result | None]]


class Floor:
    """A pool, and what it has settled."""

    def __init__(self, size: int, handler: Handler | None = None) -> None:
        self.runner = StubRunner(handler)
        self.settled: list[tuple[str, Outcome | None]] = []
        self.pool = Pool(
            self.runner, size=size, settle=lambda held, outcome: self.settled.append((held.claim.ref.id, outcome))
        )

    def put(self, *claims: Claim, asked: float = 0.0) -> list[HeldClaim]:
        """Line claims up that were asked for so many seconds ago."""
        now = asyncio.get_running_loop().time()
        held = [HeldClaim(one, now - asked) for one in claims]
        for one in held:
            self.pool.put(one)
        self.pool.wake()
        return held

    async def until_idle(self) -> None:
        await passing(lambda: self.pool.is_idle)


def test_no_more_run_at_once_than_there_are_hands():
    async def main() -> Floor:
        async def handler(_: Claim) -> Result:
            await asyncio.sleep(1)
            return Returned()

        floor = Floor(3, handler)
        floor.put(*(claim(number) for number in range(10)))
        await floor.until_idle()
        await floor.pool.close()
        return floor

    floor = in_virtual_time(main)
    assert floor.runner.most == 3
    assert len(floor.settled) == 10


def test_one_slow_job_does_not_hold_up_the_quick_ones_behind_it():
    async def main() -> tuple[list[str], list[str]]:
        slow = asyncio.Event()

        async def handler(one: Claim) -> Result:
            if one.ref.id == "job-0":
                await slow.wait()
            return Returned()

        floor = Floor(2, handler)
        floor.put(*(claim(number) for number in range(50)))
        await passing(lambda: len(floor.settled) == 49)
        before = [job for job, _ in floor.settled]
        slow.set()
        await floor.until_idle()
        await floor.pool.close()
        return before, [job for job, _ in floor.settled]

    before, after = in_virtual_time(main)
    assert "job-0" not in before
    assert after[-1] == "job-0"


def test_jobs_begin_in_the_order_in_which_they_were_given():  # O3
    async def main() -> list[str]:
        floor = Floor(1)
        floor.put(*(claim(number) for number in range(20)))
        await floor.until_idle()
        await floor.pool.close()
        return [one.ref.id for one in floor.runner.begun]

    assert in_virtual_time(main) == [f"job-{number}" for number in range(20)]


def test_a_limited_job_that_is_too_late_is_given_back_and_not_begun():  # P6
    async def main() -> Floor:
        floor = Floor(1)
        floor.put(claim(1, start_within=0.5), asked=0.6)
        floor.put(claim(2, start_within=0.5), asked=0.4)
        await floor.until_idle()
        await floor.pool.close()
        return floor

    floor = in_virtual_time(main)
    assert floor.settled == [("job-1", Release()), ("job-2", Complete())]
    assert [one.ref.id for one in floor.runner.begun] == ["job-2"]


def test_a_limited_job_that_waited_too_long_for_a_hand_is_given_back():  # P6
    async def main() -> Floor:
        async def handler(_: Claim) -> Result:
            await asyncio.sleep(1)
            return Returned()

        floor = Floor(1, handler)
        floor.put(claim(1), claim(2, start_within=0.5))
        await floor.until_idle()
        await floor.pool.close()
        return floor

    floor = in_virtual_time(main)
    assert floor.settled == [("job-1", Complete()), ("job-2", Release())]


def test_a_claim_lost_in_line_is_not_begun():  # X3
    async def main() -> Floor:
        floor = Floor(1)
        floor.put(claim(1))[0].stage = Stage.LOST
        await floor.until_idle()
        await floor.pool.close()
        return floor

    floor = in_virtual_time(main)
    assert floor.runner.begun == []
    assert floor.settled == []


def test_what_one_handler_leaves_in_a_context_variable_the_next_does_not_see():
    seen: list[str] = []
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    async def main() -> None:
        async def handler(one: Claim) -> Result:
            seen.append(user.get())
            user.set(one.ref.id)
            return Returned()

        floor = Floor(1, handler)
        floor.put(*(claim(number) for number in range(5)))
        await floor.until_idle()
        await floor.pool.close()

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
        floor = Floor(1, handler)
        floor.put(claim(1))
        await floor.until_idle()
        await floor.pool.close()

    in_virtual_time(main)
    assert seen == ["north"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("a bug of ours")])
def test_nothing_that_a_run_raises_ends_the_hand(error: BaseException):
    async def main() -> Floor:
        async def handler(one: Claim) -> Result:
            if one.ref.id == "job-1":
                raise error
            return Returned()

        floor = Floor(1, handler)
        floor.put(claim(1), claim(2))
        await floor.until_idle()
        await floor.pool.close()
        return floor

    floor = in_virtual_time(main)
    first, second = floor.settled
    assert isinstance(first[1], Retry)
    assert first[1].failure.kind == type(error).__name__
    assert second == ("job-2", Complete())


def test_a_handler_that_cancels_itself_has_failed_and_its_hand_goes_on():
    async def main() -> Floor:
        async def handler(one: Claim) -> Result:
            if one.ref.id == "job-1":
                raise asyncio.CancelledError
            return Returned()

        floor = Floor(1, handler)
        floor.put(claim(1), claim(2))
        await floor.until_idle()
        await floor.pool.close()
        return floor

    floor = in_virtual_time(main)
    assert isinstance(floor.settled[0][1], Retry)
    assert floor.settled[1] == ("job-2", Complete())


def test_what_runs_when_the_pool_closes_is_given_back_at_no_cost():  # Counting
    async def main() -> Floor:
        async def handler(_: Claim) -> Result:
            await asyncio.sleep(3600)
            return Returned()

        floor = Floor(2, handler)
        floor.put(claim(1), claim(2))
        await asyncio.sleep(1)
        await floor.pool.close()
        return floor

    floor = in_virtual_time(main)
    assert sorted(floor.settled) == [("job-1", Release()), ("job-2", Release())]
    assert floor.pool.stubborn == 0


def test_a_handler_that_ends_in_good_order_when_the_pool_closes_has_ended():
    async def main() -> Floor:
        async def handler(_: Claim) -> Result:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            return Returned()

        floor = Floor(1, handler)
        floor.put(claim(1))
        await asyncio.sleep(1)
        async with asyncio.timeout(5):
            await floor.pool.close()
        return floor

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

        floor = Floor(1, handler)
        floor.put(claim(1))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await floor.pool.close()
        stubborn = floor.pool.stubborn
        over.set()
        await floor.until_idle()
        await asyncio.sleep(0)
        return stubborn, floor.pool.stubborn

    assert in_virtual_time(main) == (1, 0)


def test_quick_jobs_do_not_keep_the_loop_from_others():
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        async def handler(_: Claim) -> Result:
            loop.now += 0.001  # the job takes a millisecond, and never waits
            return Returned()

        floor = Floor(1, handler)
        floor.put(*(claim(number) for number in range(100)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = len(floor.settled)
        await floor.until_idle()
        await floor.pool.close()
        return done

    assert in_virtual_time(main) < 10


@pytest.mark.parametrize("is_new", [False, True])
def test_a_hand_that_is_stopped_as_it_is_woken_leaves_the_line_to_another(is_new: bool):
    """A run that was stopped as it ended stops its hand a little later: when that has been woken for the next job."""

    async def main() -> Floor:
        floor = Floor(3)
        if not is_new:
            floor.put(claim(1))
            await floor.until_idle()
        floor.put(claim(2))
        for hand in floor.pool._hands:
            hand.cancel()
        await asyncio.sleep(1)
        floor.put(claim(3))
        await asyncio.sleep(1)
        assert floor.pool.is_idle
        await floor.pool.close()
        return floor

    assert {"2", "3"} <= {id.removeprefix("job-") for id, _ in in_virtual_time(main).settled}
