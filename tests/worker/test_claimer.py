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

from onward.engine.values import Claim, ClaimRequest, Claims, Exchange, Exchanged, Settlement, Token
from onward.errors import StoreUnavailable
from onward.lifecycle import Complete, Fail, Release, Result, Returned, SelfCompleted
from onward.metering import Meter
from onward.worker.claimer import Claimer
from onward.worker.inflight import Inflight, Stage
from onward.worker.settler import Settler
from onward.worker.slot_pool import Pool
from tests.worker.harness import (
    ALL,
    StubEngine,
    StubRunner,
    VirtualLoop,
    advance_until,
    answer_with,
    claim,
    in_virtual_time,
)

Handler = Callable[[Claim], Awaitable[Result | SelfCompleted]]


class ClaimerHarness:
    """A claimer with its pool, on a store that is made of what the test says waits there."""

    def __init__(
        self,
        size: int,
        *,
        waiting: int = 0,
        handler: Handler | None = None,
        split_settle_threshold: int | None = None,
        claims_suspects: bool = False,
    ) -> None:
        self.engine = StubEngine(self.serve)
        self.engine.capabilities = dataclasses.replace(ALL, split_settle_threshold=split_settle_threshold)
        self.waiting = [claim(number) for number in range(waiting)]
        self.is_shared_load = False
        self.unavailable = 0
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
            claims_suspects=claims_suspects,
            on_claimed=lambda claimed: self.suspects.append(claimed.has_suspects),
        )

    def serve(self, exchange: Exchange) -> Exchanged:
        """Give what is asked for, the slots first, as long as there is something."""
        if self.unavailable:
            self.unavailable -= 1
            raise StoreUnavailable("away")
        if exchange.request is None:
            return Exchanged()
        slots, prefetch_claimed = (
            exchange.request.slots + exchange.request.prefetch_started,
            exchange.request.prefetch_claimed,
        )
        given = self.waiting[: slots + prefetch_claimed]
        del self.waiting[: slots + prefetch_claimed]
        answer = answer_with(
            *given[:slots],
            *(claim(one.token[0], started=False) for one in given[slots:]),  # type: ignore[arg-type]
        )
        return replace(answer, claimed=replace(answer.claimed, is_shared_load=self.is_shared_load))

    @property
    def outcomes(self) -> dict[str, Any]:
        return {settlement.claim.ref.id: settlement.outcome for settlement in self.engine.settled}

    async def until(self, condition: Callable[[], bool]) -> None:
        await advance_until(condition)


def run_claimer(
    test: Callable[[ClaimerHarness], Awaitable[None]],
    size: int,
    *,
    waiting: int = 0,
    handler: Handler | None = None,
    split_settle_threshold: int | None = None,
    claims_suspects: bool = False,
) -> ClaimerHarness:
    """Run a claimer beside a test, then close it, and return the harness."""

    async def main() -> ClaimerHarness:
        harness = ClaimerHarness(
            size,
            waiting=waiting,
            handler=handler,
            split_settle_threshold=split_settle_threshold,
            claims_suspects=claims_suspects,
        )
        running = asyncio.create_task(harness.claimer.run())
        await test(harness)
        harness.claimer.close()
        async with asyncio.timeout(3600):
            await running
        await harness.pool.close()
        return harness

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
    harness = run_claimer(lambda harness: harness.until(lambda: len(harness.outcomes) == 50), 10, waiting=50)
    assert all(outcome == Complete() for outcome in harness.outcomes.values())
    assert any(exchange.settlements and exchange.request is not None for exchange in harness.engine.sent)
    assert len(harness.engine.sent) < 50


def test_no_more_is_claimed_than_slots_are_free():
    async def test(harness: ClaimerHarness) -> None:
        await asyncio.sleep(5)
        assert len(harness.inflight) == 4
        assert len(harness.waiting) == 96

    run_claimer(test, 4, waiting=100, handler=_slow)


def test_an_outcome_does_not_wait_for_its_neighbours():
    async def handler(one: Claim) -> Result:
        await asyncio.sleep(1 if one.ref.id == "job-0" else 3600)
        return Returned()

    async def test(harness: ClaimerHarness) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await harness.until(lambda: "job-0" in harness.outcomes)
        assert loop.time() - began < 1.02 + harness.engine.round_trip
        assert len(harness.outcomes) == 1

    run_claimer(test, 10, waiting=10, handler=handler)


def test_what_is_prefetched_is_started_before_its_handler_begins():  # O11
    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(harness: ClaimerHarness) -> None:
        await harness.until(lambda: len(harness.outcomes) == 500)

    harness = run_claimer(test, 10, waiting=500, handler=quick)
    assert harness.runner.max_running == 10
    assert all(one.started and one.attempts == 1 for one in harness.runner.started)
    assert any(exchange.starts for exchange in harness.engine.sent), "quick jobs are asked for ahead"


def test_runs_that_take_no_time_need_not_be_claimed_first_and_started_later():
    harness = run_claimer(
        lambda harness: harness.until(lambda: len(harness.outcomes) == 2000), 10, waiting=2000, handler=_instant
    )
    assert not any(exchange.starts for exchange in harness.engine.sent)
    assert len(harness.engine.sent) < 60, "more at once than there are slots"


def test_many_outcomes_leave_by_themselves_while_others_are_claimed():
    stores_at_once = 0

    async def test(harness: ClaimerHarness) -> None:
        nonlocal stores_at_once
        send = harness.engine.exchange

        async def slowly(exchange: Exchange) -> Exchanged:
            nonlocal stores_at_once
            if exchange.request is None:
                begun, stores = len(harness.runner.started), len(harness.engine.sent)
                await asyncio.sleep(0.02)
                if len(harness.runner.started) > begun and len(harness.engine.sent) > stores:
                    stores_at_once += 1
            return await send(exchange)

        harness.engine.exchange = slowly  # type: ignore[method-assign]
        await harness.until(lambda: len(harness.outcomes) == 5000)

    harness = run_claimer(test, 10, waiting=5000, handler=_instant, split_settle_threshold=100)
    assert stores_at_once > 3, "jobs were claimed and run while outcomes were on their way"
    assert [s.claim.token[0] for s in harness.engine.settled] == list(range(5000)), (
        "each once, in the order of their ends"
    )
    assert harness.inflight.tally == {"complete": 5000}
    assert harness.claimer.unanswered_since is None


def test_few_outcomes_leave_with_the_next_claim_though_many_would_not():
    harness = run_claimer(
        lambda harness: harness.until(lambda: len(harness.outcomes) == 50), 10, waiting=50, split_settle_threshold=100
    )
    assert not any(exchange.settlements and exchange.request is None for exchange in harness.engine.sent)


def test_where_others_work_too_outcomes_leave_with_the_next_claim_however_many_they_are():
    settled_separately: list[bool] = []

    async def test(harness: ClaimerHarness) -> None:
        for harness.is_shared_load in (True, False, True):
            harness.engine.sent.clear()
            harness.waiting = [claim(number) for number in range(5000)]
            harness.claimer.notify()
            await harness.until(lambda: not harness.waiting and not harness.inflight)
            separate = [
                exchange.request is None for exchange in harness.engine.sent if len(exchange.settlements) >= 100
            ]
            assert len(separate) > 5
            settled_separately.append(any(separate[2:]))  # what is told takes an answer to be heard

    harness = run_claimer(test, 10, handler=_instant, split_settle_threshold=100)
    assert settled_separately == [False, True, False]
    assert harness.inflight.tally == {"complete": 15_000}


def test_slots_do_not_run_away_from_a_store_that_is_slow_to_settle():
    max_held = 0

    async def test(harness: ClaimerHarness) -> None:
        nonlocal max_held
        send = harness.engine.exchange

        async def slowly(exchange: Exchange) -> Exchanged:
            if exchange.request is None:
                await asyncio.sleep(0.3)
            return await send(exchange)

        harness.engine.exchange = slowly  # type: ignore[method-assign]
        while len(harness.outcomes) < 4_000:
            max_held = max(max_held, len(harness.inflight))
            await asyncio.sleep(0.001)

    run_claimer(test, 10, waiting=4_000, handler=_instant, split_settle_threshold=100)
    assert max_held < 2200, "on their way, in the outbox, and waiting"


def test_while_outcomes_cannot_be_stored_little_is_claimed():  # X3
    async def test(harness: ClaimerHarness) -> None:
        serve, fails = harness.serve, True

        def answer(exchange: Exchange) -> Exchanged:
            if fails and exchange.settlements:
                raise StoreUnavailable("away")
            return serve(exchange)

        harness.engine.answer = answer
        await asyncio.sleep(60)
        assert len(harness.runner.started) < 3000
        assert harness.claimer.unanswered_since is not None
        fails = False
        await harness.until(lambda: len(harness.runner.started) == 10_000 and not len(harness.inflight))

    harness = run_claimer(test, 10, waiting=10_000, handler=_instant, split_settle_threshold=100)
    assert len(harness.engine.settled) == 10_000
    assert set(harness.outcomes.values()) == {Complete()}
    assert harness.claimer.unanswered_since is None


def test_one_of_many_outcomes_that_cannot_be_stored_does_not_make_the_store_owe_an_answer():
    async def test(harness: ClaimerHarness) -> None:
        serve = harness.serve

        def answer(exchange: Exchange) -> Exchanged:
            if exchange.request is None and len(exchange.settlements) > 1:
                raise ValueError("cannot be written")
            return serve(exchange)

        harness.engine.answer = answer
        await harness.until(lambda: not len(harness.inflight) and not harness.waiting)
        assert harness.claimer.unanswered_since is None

    assert len(run_claimer(test, 10, waiting=1000, handler=_instant, split_settle_threshold=100).outcomes) == 1000


@pytest.mark.parametrize("split_settle_threshold", [None, 5])
def test_an_outcome_whose_job_somebody_else_holds_is_said_again_and_nobody_waits_for_it(
    split_settle_threshold: int | None,
):
    sent_at: list[float] = []

    async def test(harness: ClaimerHarness) -> None:
        loop, serve = asyncio.get_running_loop(), harness.serve

        def answer(exchange: Exchange) -> Exchanged:
            answer, busy = serve(exchange), frozenset({(7, 1)})
            if any(settlement.claim.token in busy for settlement in exchange.settlements):
                sent_at.append(loop.time())
                if len(sent_at) < 4:
                    return Exchanged(claimed=answer.claimed, busy=busy)
            return answer

        harness.engine.answer = answer
        await harness.until(lambda: len(harness.runner.started) == 100)
        await harness.until(lambda: harness.inflight.tally["complete"] == 99)
        assert len(harness.inflight) == 1, "it is held until it is stored"
        assert not harness.claimer.is_drained

    harness = run_claimer(test, 10, waiting=100, handler=_instant, split_settle_threshold=split_settle_threshold)
    assert len(sent_at) == 4
    assert [round(later - sooner, 1) for sooner, later in pairwise(sent_at)] == [0.5, 0.5, 0.5]
    assert harness.inflight.tally == {"complete": 100}


def test_a_start_whose_job_somebody_else_holds_is_tried_again():
    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    refused: set[Token] = set()
    made: set[Token] = set()

    async def test(harness: ClaimerHarness) -> None:
        serve = harness.serve

        def answer(exchange: Exchange) -> Exchanged:
            answer = serve(exchange)
            starts = {each.token for each in exchange.starts}
            tokens = starts - refused
            refused.update(tokens)
            made.update(starts - tokens)
            return Exchanged(claimed=answer.claimed, busy=frozenset(tokens))

        harness.engine.answer = answer
        harness.engine.round_trip = 0.004
        await harness.until(lambda: not harness.waiting and harness.claimer.is_drained)

    harness = run_claimer(test, 100, waiting=5000, handler=quick)
    assert refused
    assert refused & {each.token for each in harness.runner.started} <= made
    ended = {settlement.claim.ref.id for settlement in harness.engine.settled}
    assert ended == {f"job-{number}" for number in range(5000)}, "run, or given back"
    assert not len(harness.inflight)


def test_no_more_slots_are_asked_for_than_are_free():  # P6
    harness = run_claimer(
        lambda harness: harness.until(lambda: len(harness.outcomes) == 2000), 10, waiting=2000, handler=_instant
    )
    assert all(exchange.request.slots <= 10 for exchange in harness.engine.sent if exchange.request is not None)


def test_prefetching_keeps_the_slots_busy_during_a_round_trip():
    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(harness: ClaimerHarness) -> None:
        loop = asyncio.get_running_loop()
        harness.engine.round_trip = 0.004
        began = loop.time()
        await harness.until(lambda: len(harness.outcomes) == 5000)
        assert 5000 * 0.01 / 100 / (loop.time() - began) > 0.9, "of the ideal"

    run_claimer(test, 100, waiting=5000, handler=quick)


def test_no_more_is_held_than_the_slots_and_one_round_trip_need():
    max_held = 0

    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(harness: ClaimerHarness) -> None:
        nonlocal max_held
        while len(harness.outcomes) < 2000:
            unsettled = len(harness.inflight) - len(harness.settler)
            max_held = max(max_held, unsettled)
            await asyncio.sleep(0.001)

    run_claimer(test, 20, waiting=2000, handler=quick)
    # 20 slots finish two jobs a millisecond: some tens are on their way through a trip, hundreds would be hoarding.
    assert 20 <= max_held <= 80


def test_claims_prefetched_for_slots_that_do_not_turn_up_are_given_back():
    async def turning_slow(one: Claim) -> Result:
        await asyncio.sleep(0.01 if one.token[0] < 300 else 3600)  # type: ignore[operator]
        return Returned()

    async def test(harness: ClaimerHarness) -> None:
        await harness.until(lambda: len(harness.outcomes) >= 300)
        await asyncio.sleep(1)
        assert len(harness.inflight) == 10
        assert not harness.pool.waiting

    harness = run_claimer(test, 10, waiting=1000, handler=turning_slow)
    released = [job for job, outcome in harness.outcomes.items() if outcome == Release()]
    assert released


def test_runs_that_take_turns_at_the_processor_are_not_prefetched():
    async def heavy(_: Claim) -> Result:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.now += 0.005  # of computing, during which nothing else can happen
        return Returned()

    async def test(harness: ClaimerHarness) -> None:
        await harness.until(lambda: len(harness.outcomes) == 1000)

    harness = run_claimer(test, 20, waiting=1000, handler=heavy)
    assert set(harness.outcomes.values()) == {Complete()}
    assert len(harness.engine.settled) == 1000, "none was claimed, given back and claimed again"


def test_a_store_that_is_away_loses_nothing():  # X3
    async def test(harness: ClaimerHarness) -> None:
        await harness.until(lambda: harness.pool.busy == 5)
        harness.unavailable = 8
        await harness.until(lambda: len(harness.outcomes) == 20)

    harness = run_claimer(test, 5, waiting=20, handler=_slow)
    assert set(harness.outcomes.values()) == {Complete()}
    assert len(harness.runner.started) == 20
    assert len(harness.engine.settled) == 20


def test_claims_whose_start_the_store_did_not_answer_are_not_forgotten():
    failed = 0

    async def quick(_: Claim) -> Result:
        await asyncio.sleep(0.01)
        return Returned()

    async def test(harness: ClaimerHarness) -> None:
        serve = harness.serve

        def answer(exchange: Exchange) -> Exchanged:
            nonlocal failed
            if exchange.starts and failed < 3:
                failed += 1
                raise StoreUnavailable("away")
            return serve(exchange)

        harness.engine.answer = answer
        await harness.until(lambda: len(harness.outcomes) == 500)
        await harness.until(lambda: not len(harness.inflight))

    harness = run_claimer(test, 10, waiting=500, handler=quick)
    assert failed == 3
    assert {settlement.claim.ref.id for settlement in harness.engine.settled} == {f"job-{n}" for n in range(500)}


def test_a_store_that_is_away_is_left_in_peace():
    async def test(harness: ClaimerHarness) -> None:
        harness.unavailable = 1_000_000
        before = len(harness.engine.sent)
        await asyncio.sleep(60)
        assert 10 <= len(harness.engine.sent) - before <= 40
        harness.unavailable = 0

    run_claimer(test, 5, waiting=100, handler=_slow)


def test_one_outcome_that_cannot_be_stored_does_not_keep_its_neighbours_from_it():
    def refuse_job_3(exchange: Exchange) -> Exchanged:
        if any(s.claim.ref.id == "job-3" and s.outcome == Complete() for s in exchange.settlements):
            raise ValueError("cannot be written")
        return Exchanged()

    async def test(harness: ClaimerHarness) -> None:
        serve = harness.serve

        def answer(exchange: Exchange) -> Exchanged:
            refuse_job_3(exchange)
            return serve(exchange)

        harness.engine.answer = answer
        await harness.until(lambda: len(harness.outcomes) == 10)

    harness = run_claimer(test, 10, waiting=10, handler=_slow)
    outcomes = harness.outcomes
    failed = outcomes.pop("job-3")
    assert isinstance(failed, Fail)
    assert failed.failure.error_type == "OutcomeNotStored"
    assert set(outcomes.values()) == {Complete()}


def test_an_outcome_that_the_store_rejects_is_dropped_and_counted():  # X3
    async def test(harness: ClaimerHarness) -> None:
        serve = harness.serve

        def answer(exchange: Exchange) -> Exchanged:
            given = serve(exchange)
            return Exchanged(lost=frozenset({(3, 1)}), claimed=given.claimed)

        harness.engine.answer = answer
        await harness.until(lambda: len(harness.engine.settled) == 10)

    harness = run_claimer(test, 10, waiting=10)
    assert harness.inflight.tally == {"complete": 9, "stale_rejections": 1}
    assert len(harness.inflight) == 0


def test_the_outcome_of_a_claim_known_to_be_lost_is_not_even_sent():  # X3
    async def test(harness: ClaimerHarness) -> None:
        await harness.until(lambda: harness.pool.busy == 1)
        held = harness.inflight.get((0, 1))
        assert held is not None
        held.stage = Stage.LOST
        harness.inflight.remove((0, 1))
        await harness.until(lambda: harness.pool.is_idle)

    harness = run_claimer(test, 1, waiting=1, handler=_slow)
    assert harness.outcomes == {}
    assert harness.inflight.tally == {"stale_rejections": 1}


def test_a_claim_lost_before_its_start_is_not_begun():  # X3
    async def main() -> ClaimerHarness:
        harness = ClaimerHarness(1)
        given = iter([answer_with(claim(1, started=False))])

        def answer(exchange: Exchange) -> Exchanged:
            lost = frozenset(one.token for one in exchange.starts)
            return Exchanged(lost=lost, claimed=next(given, answer_with()).claimed)

        harness.engine.answer = answer
        running = asyncio.create_task(harness.claimer.run())
        await harness.until(lambda: any(exchange.starts for exchange in harness.engine.sent))
        await asyncio.sleep(1)
        harness.claimer.close()
        await running
        await harness.pool.close()
        return harness

    harness = in_virtual_time(main)
    assert harness.runner.started == []
    assert len(harness.inflight) == 0


def test_an_idle_worker_only_polls():
    async def test(harness: ClaimerHarness) -> None:
        await asyncio.sleep(60)
        assert 55 <= len(harness.engine.sent) <= 65

    run_claimer(test, 5)


def test_a_signal_brings_the_next_look_forward():
    async def test(harness: ClaimerHarness) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(10.5)
        harness.waiting.append(claim(1))
        notified_at = loop.time()
        harness.claimer.notify()
        await harness.until(lambda: len(harness.outcomes) == 1)
        assert loop.time() - notified_at < 0.02

    run_claimer(test, 5)


def test_who_had_a_job_that_it_cannot_run_lets_others_claim_first_for_a_while():  # O8
    async def test(harness: ClaimerHarness) -> None:
        loop = asyncio.get_running_loop()

        async def seconds_until_claimed(number: int) -> float:
            await asyncio.sleep(0.5)  # between two polls
            harness.waiting.append(claim(number))
            notified_at = loop.time()
            for _ in range(5):  # news that comes again does not begin the wait again
                harness.claimer.notify()
                await asyncio.sleep(0.001)
            await harness.until(lambda: len(harness.outcomes) == number)
            return loop.time() - notified_at

        await asyncio.sleep(10.1)
        harness.claimer.give_way()
        assert 0.1 <= await seconds_until_claimed(1) < 0.12
        assert requests(harness)[-1].gives_way
        await asyncio.sleep(60)
        assert await seconds_until_claimed(2) < 0.02
        assert not requests(harness)[-1].gives_way

    run_claimer(test, 5)


def requests(harness: ClaimerHarness) -> list[ClaimRequest]:
    return [exchange.request for exchange in harness.engine.sent if exchange.request is not None]


def test_signals_that_concern_others_cost_few_looks():
    async def test(harness: ClaimerHarness) -> None:
        await asyncio.sleep(1.5)
        before = len(harness.engine.sent)
        for _ in range(1000):
            harness.claimer.notify()
            await asyncio.sleep(0.001)
        assert len(harness.engine.sent) - before < 200

    run_claimer(test, 5)


def test_the_next_look_is_when_the_store_says_that_a_slot_will_be_free():
    async def test(harness: ClaimerHarness) -> None:
        loop = asyncio.get_running_loop()
        harness.engine.answer = lambda _: answer_with(retry_after=0.25)
        await asyncio.sleep(2)
        before, began = len(harness.engine.sent), loop.time()
        await asyncio.sleep(10)
        polls = len(harness.engine.sent) - before
        assert polls == pytest.approx((loop.time() - began) / 0.25, rel=0.1)

    run_claimer(test, 5)


def test_a_closing_claimer_gives_back_what_has_not_begun():  # P10 of the reliability contract
    async def test(harness: ClaimerHarness) -> None:
        await harness.until(lambda: harness.pool.busy == 1)
        harness.pool.put(harness.inflight.add(claim(77), asyncio.get_running_loop().time()))
        harness.claimer.close()
        assert len(harness.settler) == 1, "at once"

    harness = run_claimer(test, 1, waiting=1, handler=_slow)
    assert harness.outcomes == {"job-0": Complete(), "job-77": Release()}


def test_what_suspects_wait_is_passed_on():
    async def test(harness: ClaimerHarness) -> None:
        harness.engine.answer = lambda _: answer_with(has_suspects=True)
        await asyncio.sleep(3)

    assert True in run_claimer(test, 1).suspects


def test_suspects_are_asked_for_one_at_a_time_and_only_when_some_wait():  # Counting
    async def test(harness: ClaimerHarness) -> None:
        asked: list[ClaimRequest] = []

        async def claim_suspect(request: ClaimRequest) -> Claims:
            asked.append(request)
            return harness.serve(Exchange(request=request)).claimed

        harness.engine.claim = claim_suspect  # type: ignore[attr-defined]
        await asyncio.sleep(60)
        assert not asked, "nobody has said that suspects wait"
        harness.claimer.notify()
        await harness.until(lambda: len(harness.outcomes) == 3)
        assert all((request.alone, request.slots) == (True, 1) for request in asked)
        asked.clear()
        for _ in range(600):  # as every claim of another pool does while a suspect waits in a paused queue
            harness.claimer.notify()
            await asyncio.sleep(0.1)
        assert 10 <= len(asked) <= 30

    harness = run_claimer(test, 2, waiting=3, handler=_slow, claims_suspects=True)
    assert harness.runner.max_running == 2


def test_settlements_are_kept_in_the_order_in_which_they_came():
    inflight = Inflight()
    settler = Settler(inflight, Meter().add)
    for number in range(5):
        settler.add(inflight.add(claim(number), 0.0), Complete())
    taken = settler.take(3)
    settler.requeue(taken)
    assert [one.claim.token[0] for one in settler.take(10)] == [0, 1, 2, 3, 4]
    assert isinstance(taken[0], Settlement)


def test_after_a_claim_that_is_too_large_less_is_asked_for():  # X3
    """A store that is there and cannot answer so much must not be asked for as much for ever."""
    asked: list[int] = []

    async def test(harness: ClaimerHarness) -> None:
        await harness.until(lambda: len(harness.outcomes) == 40)

    class Harness(ClaimerHarness):
        def serve(self, exchange: Exchange) -> Exchanged:
            if exchange.request is not None and self.waiting:
                slots = exchange.request.slots + exchange.request.prefetch_started + exchange.request.prefetch_claimed
                asked.append(slots)
                if slots > 3:
                    raise MemoryError
            return super().serve(exchange)

    async def main() -> None:
        harness = Harness(16, waiting=40)
        running = asyncio.create_task(harness.claimer.run())
        await test(harness)
        harness.claimer.close()
        async with asyncio.timeout(3600):
            await running
        await harness.pool.close()

    in_virtual_time(main)
    assert asked[:4] == [16, 8, 4, 2]


def test_outcomes_that_cannot_be_stored_together_at_the_end_are_stored_one_by_one():  # X3
    """As when a worker stops because it has run out of memory."""

    class Harness(ClaimerHarness):
        is_stopping = False

        def serve(self, exchange: Exchange) -> Exchanged:
            if exchange.settlements and not self.is_stopping:
                raise StoreUnavailable("away")
            if len(exchange.settlements) > 1:
                raise MemoryError
            return super().serve(exchange)

    async def main() -> dict[str, Any]:
        harness = Harness(16, waiting=3)
        running = asyncio.create_task(harness.claimer.run())
        await harness.until(lambda: len(harness.settler) == 3)
        running.cancel()
        await asyncio.wait([running])
        harness.is_stopping = True
        await harness.claimer.flush()
        await harness.pool.close()
        return harness.outcomes

    outcomes = in_virtual_time(main)
    assert [type(outcome) for outcome in outcomes.values()] == [Complete] * 3
