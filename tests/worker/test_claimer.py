"""The round trips: what leaves with which, what is asked for, and what happens when the store does not answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from onward.engine.values import Claim, Exchange, Exchanged, Settlement, Token
from onward.errors import StoreUnavailable
from onward.lifecycle import Complete, Fail, Release, Result, Returned
from onward.metering import Meter
from onward.worker.claimer import Claimer
from onward.worker.inflight import Inflight, Stage
from onward.worker.pool import Pool
from onward.worker.settler import Settler
from tests.worker.harness import ALL, StubEngine, StubRunner, VirtualLoop, claim, gives, in_virtual_time, passing

Handler = Callable[[Claim], Awaitable[Result | None]]


class Post:
    """A claimer with its pool, on a store that is made of what the test says waits there."""

    def __init__(
        self, size: int, *, waiting: int = 0, handler: Handler | None = None, split_settle_threshold: int | None = None
    ) -> None:
        self.engine = StubEngine(self.serve)
        self.engine.capabilities = dataclasses.replace(ALL, split_settle_threshold=split_settle_threshold)
        self.waiting = [claim(number) for number in range(waiting)]
        self.is_shared_load = False
        self.away = 0
        """How many more exchanges fail."""
        self.runner = StubRunner(handler)
        self.inflight = Inflight()
        self.settler = Settler(self.inflight, Meter().add)
        self.pool = Pool(self.runner, size=size, settle=self.settler.add)
        self.suspects: list[bool] = []
        self.claimer = Claimer(
            self.engine,  # type: ignore[arg-type]
            self.pool,
            self.settler,
            self.inflight,
            worker_id="me",
            queues=("*",),
            lease=timedelta(seconds=30),
            poll=timedelta(seconds=1),
            on_claimed=lambda claimed: self.suspects.append(claimed.has_suspects),
        )

    def serve(self, exchange: Exchange) -> Exchanged:
        """Give what is asked for, the slots first, as long as there is something."""
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        if exchange.request is None:
            return Exchanged()
        slots, prefetch_claimed = (
            exchange.request.slots + exchange.request.prefetch_started,
            exchange.request.prefetch_claimed,
        )
        given = self.waiting[: slots + prefetch_claimed]
        del self.waiting[: slots + prefetch_claimed]
        given_so = gives(
            *given[:slots],
            *(claim(one.token[0], started=False) for one in given[slots:]),  # type: ignore[arg-type]
        )
        return replace(given_so, claimed=replace(given_so.claimed, is_shared_load=self.is_shared_load))

    @property
    def outcomes(self) -> dict[str, Any]:
        return {settlement.claim.ref.id: settlement.outcome for settlement in self.engine.settled}

    async def until(self, holds: Callable[[], bool]) -> None:
        await passing(holds)


def at_post(
    test: Callable[[Post], Awaitable[None]],
    size: int,
    *,
    waiting: int = 0,
    handler: Handler | None = None,
    split_settle_threshold: int | None = None,
) -> Post:
    """Run a claimer beside a test, then close it, and hand the post back for looking at."""

    async def main() -> Post:
        post = Post(size, waiting=waiting, handler=handler, split_settle_threshold=split_settle_threshold)
        running = asyncio.create_task(post.claimer.run())
        await test(post)
        post.claimer.close()
        async with asyncio.timeout(3600):
            await running
        await post.pool.close()
        return post

    return in_virtual_time(main)


async def _slow(_: Claim) -> Result:
    await asyncio.sleep(10)
    return Returned()


async def _instant(_: Claim) -> Result:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.now += 0.000_01
    return Returned()


def test_outcomes_leave_together_with_the_next_claim():
    post = at_post(lambda post: post.until(lambda: len(post.outcomes) == 50), 10, waiting=50)
    assert all(outcome == Complete() for outcome in post.outcomes.values())
    assert any(exchange.settlements and exchange.request is not None for exchange in post.engine.sent)
    assert len(post.engine.sent) < 50


def test_no_more_is_claimed_than_hands_are_free():
    async def test(post: Post) -> None:
        await asyncio.sleep(5)
        assert len(post.inflight) == 4
        assert len(post.waiting) == 96

    at_post(test, 4, waiting=100, handler=_slow)


def test_an_outcome_does_not_wait_for_its_neighbours():
    async def handler(one: Claim) -> Result:
        await asyncio.sleep(1 if one.ref.id == "job-0" else 3600)
        return Returned()

    async def test(post: Post) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await post.until(lambda: "job-0" in post.outcomes)
        assert loop.time() - began < 1.02 + post.engine.trip
        assert len(post.outcomes) == 1

    at_post(test, 10, waiting=10, handler=handler)


def test_what_is_claimed_ahead_is_started_before_its_handler_begins():  # O11
    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(post: Post) -> None:
        await post.until(lambda: len(post.outcomes) == 500)

    post = at_post(test, 10, waiting=500, handler=quick)
    assert post.runner.most == 10
    assert all(one.started and one.attempts == 1 for one in post.runner.begun)
    assert any(exchange.starts for exchange in post.engine.sent), "quick jobs are asked for ahead"


def test_runs_that_take_no_time_need_not_be_claimed_first_and_started_later():
    post = at_post(lambda post: post.until(lambda: len(post.outcomes) == 2000), 10, waiting=2000, handler=_instant)
    assert not any(exchange.starts for exchange in post.engine.sent)
    assert len(post.engine.sent) < 60, "more at once than there are hands"


def test_many_outcomes_leave_by_themselves_while_others_are_claimed():
    stores_at_once = 0

    async def test(post: Post) -> None:
        nonlocal stores_at_once
        send = post.engine.exchange

        async def at_leisure(exchange: Exchange) -> Exchanged:
            nonlocal stores_at_once
            if exchange.request is None:
                begun, stores = len(post.runner.begun), len(post.engine.sent)
                await asyncio.sleep(0.02)
                if len(post.runner.begun) > begun and len(post.engine.sent) > stores:
                    stores_at_once += 1
            return await send(exchange)

        post.engine.exchange = at_leisure  # type: ignore[method-assign]
        await post.until(lambda: len(post.outcomes) == 5000)

    post = at_post(test, 10, waiting=5000, handler=_instant, split_settle_threshold=100)
    assert stores_at_once > 3, "jobs were claimed and run while outcomes were on their way"
    assert [s.claim.token[0] for s in post.engine.settled] == list(range(5000)), "each once, in the order of their ends"
    assert post.inflight.tally == {"complete": 5000}
    assert post.claimer.unanswered_since is None


def test_few_outcomes_leave_with_the_next_claim_though_many_would_not():
    post = at_post(
        lambda post: post.until(lambda: len(post.outcomes) == 50), 10, waiting=50, split_settle_threshold=100
    )
    assert not any(exchange.settlements and exchange.request is None for exchange in post.engine.sent)


def test_where_others_work_too_outcomes_leave_with_the_next_claim_however_many_they_are():
    left_alone: list[bool] = []

    async def test(post: Post) -> None:
        for post.is_shared_load in (True, False, True):
            post.engine.sent.clear()
            post.waiting = [claim(number) for number in range(5000)]
            post.claimer.work_may_wait()
            await post.until(lambda: not post.waiting and not post.inflight)
            apart = [exchange.request is None for exchange in post.engine.sent if len(exchange.settlements) >= 100]
            assert len(apart) > 5
            left_alone.append(any(apart[2:]))  # what is told takes an answer to be heard

    post = at_post(test, 10, handler=_instant, split_settle_threshold=100)
    assert left_alone == [False, True, False]
    assert post.inflight.tally == {"complete": 15_000}


def test_hands_do_not_run_away_from_a_store_that_is_slow_to_settle():
    most = 0

    async def test(post: Post) -> None:
        nonlocal most
        send = post.engine.exchange

        async def slowly(exchange: Exchange) -> Exchanged:
            if exchange.request is None:
                await asyncio.sleep(0.3)
            return await send(exchange)

        post.engine.exchange = slowly  # type: ignore[method-assign]
        while len(post.outcomes) < 4_000:
            most = max(most, len(post.inflight))
            await asyncio.sleep(0.001)

    at_post(test, 10, waiting=4_000, handler=_instant, split_settle_threshold=100)
    assert most < 2200, "on their way, in the outbox, and in line"


def test_while_outcomes_cannot_be_stored_little_is_claimed():  # X3
    async def test(post: Post) -> None:
        serve, fails = post.serve, True

        def answer(exchange: Exchange) -> Exchanged:
            if fails and exchange.settlements:
                raise StoreUnavailable("away")
            return serve(exchange)

        post.engine.answer = answer
        await asyncio.sleep(60)
        assert len(post.runner.begun) < 3000
        assert post.claimer.unanswered_since is not None
        fails = False
        await post.until(lambda: len(post.runner.begun) == 10_000 and not len(post.inflight))

    post = at_post(test, 10, waiting=10_000, handler=_instant, split_settle_threshold=100)
    assert len(post.engine.settled) == 10_000
    assert set(post.outcomes.values()) == {Complete()}
    assert post.claimer.unanswered_since is None


def test_one_of_many_outcomes_that_cannot_be_stored_does_not_make_the_store_owe_an_answer():
    async def test(post: Post) -> None:
        serve = post.serve

        def answer(exchange: Exchange) -> Exchanged:
            if exchange.request is None and len(exchange.settlements) > 1:
                raise ValueError("cannot be written")
            return serve(exchange)

        post.engine.answer = answer
        await post.until(lambda: not len(post.inflight) and not post.waiting)
        assert post.claimer.unanswered_since is None

    assert len(at_post(test, 10, waiting=1000, handler=_instant, split_settle_threshold=100).outcomes) == 1000


@pytest.mark.parametrize("split_settle_threshold", [None, 5])
def test_an_outcome_whose_job_somebody_else_holds_is_said_again_and_nobody_waits_for_it(
    split_settle_threshold: int | None,
):
    said: list[float] = []

    async def test(post: Post) -> None:
        loop, serve = asyncio.get_running_loop(), post.serve

        def answer(exchange: Exchange) -> Exchanged:
            answer, busy = serve(exchange), frozenset({(7, 1)})
            if any(settlement.claim.token in busy for settlement in exchange.settlements):
                said.append(loop.time())
                if len(said) < 4:
                    return Exchanged(claimed=answer.claimed, busy=busy)
            return answer

        post.engine.answer = answer
        await post.until(lambda: len(post.runner.begun) == 100)
        await post.until(lambda: post.inflight.tally["complete"] == 99)
        assert len(post.inflight) == 1, "it is held until it is stored"
        assert not post.claimer.is_quiet

    post = at_post(test, 10, waiting=100, handler=_instant, split_settle_threshold=split_settle_threshold)
    assert len(said) == 4
    assert [round(later - sooner, 1) for sooner, later in pairwise(said)] == [0.5, 0.5, 0.5]
    assert post.inflight.tally == {"complete": 100}


def test_a_start_whose_job_somebody_else_holds_is_tried_again():
    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    refused: set[Token] = set()
    made: set[Token] = set()

    async def test(post: Post) -> None:
        serve = post.serve

        def answer(exchange: Exchange) -> Exchanged:
            answer = serve(exchange)
            starts = {each.token for each in exchange.starts}
            tokens = starts - refused
            refused.update(tokens)
            made.update(starts - tokens)
            return Exchanged(claimed=answer.claimed, busy=frozenset(tokens))

        post.engine.answer = answer
        post.engine.trip = 0.004
        await post.until(lambda: not post.waiting and post.claimer.is_quiet)

    post = at_post(test, 100, waiting=5000, handler=quick)
    assert refused
    assert refused & {each.token for each in post.runner.begun} <= made
    ended = {settlement.claim.ref.id for settlement in post.engine.settled}
    assert ended == {f"job-{number}" for number in range(5000)}, "run, or given back"
    assert not len(post.inflight)


def test_no_more_slots_are_asked_for_than_hands_are_free():  # P6
    post = at_post(lambda post: post.until(lambda: len(post.outcomes) == 2000), 10, waiting=2000, handler=_instant)
    assert all(exchange.request.slots <= 10 for exchange in post.engine.sent if exchange.request is not None)


def test_asking_ahead_keeps_the_hands_busy_during_a_round_trip():
    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(post: Post) -> None:
        loop = asyncio.get_running_loop()
        post.engine.trip = 0.004
        began = loop.time()
        await post.until(lambda: len(post.outcomes) == 5000)
        assert 5000 * 0.01 / 100 / (loop.time() - began) > 0.9, "of the ideal"

    at_post(test, 100, waiting=5000, handler=quick)


def test_no_more_is_held_than_the_hands_and_one_round_trip_need():
    most = 0

    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(post: Post) -> None:
        nonlocal most
        while len(post.outcomes) < 2000:
            unsettled = len(post.inflight) - len(post.settler)
            most = max(most, unsettled)
            await asyncio.sleep(0.001)

    at_post(test, 20, waiting=2000, handler=quick)
    # 20 hands finish two jobs a millisecond: some tens are on their way through a trip, hundreds would be hoarding.
    assert 20 <= most <= 80


def test_claims_ahead_of_hands_that_do_not_turn_up_are_given_back():
    async def turning_slow(one: Claim) -> Result:
        await asyncio.sleep(0.01 if one.token[0] < 300 else 3600)  # type: ignore[operator]
        return Returned()

    async def test(post: Post) -> None:
        await post.until(lambda: len(post.outcomes) >= 300)
        await asyncio.sleep(1)
        assert len(post.inflight) == 10
        assert not post.pool.line

    post = at_post(test, 10, waiting=1000, handler=turning_slow)
    released = [job for job, outcome in post.outcomes.items() if outcome == Release()]
    assert released


def test_runs_that_take_turns_at_the_processor_are_not_asked_for_ahead():
    async def heavy(_: Claim) -> Result:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.now += 0.005  # of computing, during which nothing else can happen
        return Returned()

    async def test(post: Post) -> None:
        await post.until(lambda: len(post.outcomes) == 1000)

    post = at_post(test, 20, waiting=1000, handler=heavy)
    assert set(post.outcomes.values()) == {Complete()}
    assert len(post.engine.settled) == 1000, "none was claimed, given back and claimed again"


def test_a_store_that_is_away_loses_nothing():  # X3
    async def test(post: Post) -> None:
        await post.until(lambda: post.pool.busy == 5)
        post.away = 8
        await post.until(lambda: len(post.outcomes) == 20)

    post = at_post(test, 5, waiting=20, handler=_slow)
    assert set(post.outcomes.values()) == {Complete()}
    assert len(post.runner.begun) == 20
    assert len(post.engine.settled) == 20


def test_claims_whose_start_the_store_did_not_answer_are_not_forgotten():
    failed = 0

    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(post: Post) -> None:
        serve = post.serve

        def answer(exchange: Exchange) -> Exchanged:
            nonlocal failed
            if exchange.starts and failed < 3:
                failed += 1
                raise StoreUnavailable("away")
            return serve(exchange)

        post.engine.answer = answer
        await post.until(lambda: len(post.outcomes) == 500)
        await post.until(lambda: not len(post.inflight))

    post = at_post(test, 10, waiting=500, handler=quick)
    assert failed == 3
    assert {settlement.claim.ref.id for settlement in post.engine.settled} == {f"job-{n}" for n in range(500)}


def test_a_store_that_is_away_is_left_in_peace():
    async def test(post: Post) -> None:
        post.away = 1_000_000
        before = len(post.engine.sent)
        await asyncio.sleep(60)
        assert 10 <= len(post.engine.sent) - before <= 40
        post.away = 0

    at_post(test, 5, waiting=100, handler=_slow)


def test_one_outcome_that_cannot_be_stored_does_not_keep_its_neighbours_from_it():
    def refuse_job_3(exchange: Exchange) -> Exchanged:
        if any(s.claim.ref.id == "job-3" and s.outcome == Complete() for s in exchange.settlements):
            raise ValueError("cannot be written")
        return Exchanged()

    async def test(post: Post) -> None:
        serve = post.serve

        def answer(exchange: Exchange) -> Exchanged:
            refuse_job_3(exchange)
            return serve(exchange)

        post.engine.answer = answer
        await post.until(lambda: len(post.outcomes) == 10)

    post = at_post(test, 10, waiting=10, handler=_slow)
    outcomes = post.outcomes
    failed = outcomes.pop("job-3")
    assert isinstance(failed, Fail)
    assert failed.failure.kind == "OutcomeNotStored"
    assert set(outcomes.values()) == {Complete()}


def test_an_outcome_that_the_store_rejects_is_dropped_and_counted():  # X3
    async def test(post: Post) -> None:
        serve = post.serve

        def answer(exchange: Exchange) -> Exchanged:
            given = serve(exchange)
            return Exchanged(lost=frozenset({(3, 1)}), claimed=given.claimed)

        post.engine.answer = answer
        await post.until(lambda: len(post.engine.settled) == 10)

    post = at_post(test, 10, waiting=10)
    assert post.inflight.tally == {"complete": 9, "stale_rejections": 1}
    assert len(post.inflight) == 0


def test_the_outcome_of_a_claim_known_to_be_lost_is_not_even_sent():  # X3
    async def test(post: Post) -> None:
        await post.until(lambda: post.pool.busy == 1)
        held = post.inflight.get((0, 1))
        assert held is not None
        held.stage = Stage.LOST
        post.inflight.remove((0, 1))
        await post.until(lambda: post.pool.is_idle)

    post = at_post(test, 1, waiting=1, handler=_slow)
    assert post.outcomes == {}
    assert post.inflight.tally == {"stale_rejections": 1}


def test_a_claim_lost_before_its_start_is_not_begun():  # X3
    async def main() -> Post:
        post = Post(1)
        given = iter([gives(claim(1, started=False))])

        def answer(exchange: Exchange) -> Exchanged:
            lost = frozenset(one.token for one in exchange.starts)
            return Exchanged(lost=lost, claimed=next(given, gives()).claimed)

        post.engine.answer = answer
        running = asyncio.create_task(post.claimer.run())
        await post.until(lambda: any(exchange.starts for exchange in post.engine.sent))
        await asyncio.sleep(1)
        post.claimer.close()
        await running
        await post.pool.close()
        return post

    post = in_virtual_time(main)
    assert post.runner.begun == []
    assert len(post.inflight) == 0


def test_an_idle_worker_only_polls():
    async def test(post: Post) -> None:
        await asyncio.sleep(60)
        assert 55 <= len(post.engine.sent) <= 65

    at_post(test, 5)


def test_a_signal_brings_the_next_look_forward():
    async def test(post: Post) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(10.5)
        post.waiting.append(claim(1))
        told_at = loop.time()
        post.claimer.work_may_wait()
        await post.until(lambda: len(post.outcomes) == 1)
        assert loop.time() - told_at < 0.02

    at_post(test, 5)


def test_signals_that_concern_others_cost_few_looks():
    async def test(post: Post) -> None:
        await asyncio.sleep(1.5)
        before = len(post.engine.sent)
        for _ in range(1000):
            post.claimer.work_may_wait()
            await asyncio.sleep(0.001)
        assert len(post.engine.sent) - before < 200

    at_post(test, 5)


def test_the_next_look_is_when_the_store_says_that_a_slot_will_be_free():
    async def test(post: Post) -> None:
        loop = asyncio.get_running_loop()
        post.engine.answer = lambda _: gives(retry_after=0.25)
        await asyncio.sleep(2)
        before, began = len(post.engine.sent), loop.time()
        await asyncio.sleep(10)
        looks = len(post.engine.sent) - before
        assert looks == pytest.approx((loop.time() - began) / 0.25, rel=0.1)

    at_post(test, 5)


def test_a_closing_claimer_gives_back_what_has_not_begun():  # P10 of the reliability contract
    async def test(post: Post) -> None:
        await post.until(lambda: post.pool.busy == 1)
        post.pool.put(post.inflight.add(claim(77), asyncio.get_running_loop().time()))
        post.claimer.close()
        assert len(post.settler) == 1, "at once"

    post = at_post(test, 1, waiting=1, handler=_slow)
    assert post.outcomes == {"job-0": Complete(), "job-77": Release()}


def test_what_suspects_wait_is_passed_on():
    async def test(post: Post) -> None:
        post.engine.answer = lambda _: gives(has_suspects=True)
        await asyncio.sleep(3)

    assert True in at_post(test, 1).suspects


def test_at_rest_nothing_is_asked_for_but_outcomes_are_stored():
    async def test(post: Post) -> None:
        await post.until(lambda: post.pool.busy == 3)
        post.claimer.rest()
        assert not await post.claimer.comes_to_rest(asyncio.get_running_loop().time() + 1)
        assert await post.claimer.comes_to_rest(None)
        assert len(post.outcomes) == 3
        post.claimer.go_on()
        await post.until(lambda: len(post.outcomes) == 6)

    at_post(test, 3, waiting=6, handler=_slow)


def test_settlements_are_kept_in_the_order_in_which_they_came():
    inflight = Inflight()
    settler = Settler(inflight, Meter().add)
    for number in range(5):
        settler.add(inflight.add(claim(number), 0.0), Complete())
    taken = settler.take(3)
    settler.put_back(taken)
    assert [one.claim.token[0] for one in settler.take(10)] == [0, 1, 2, 3, 4]
    assert isinstance(taken[0], Settlement)
