"""Which job comes next, and what comes with it (O3)."""

from __future__ import annotations

from datetime import timedelta

from onward.engine.capabilities import Feature
from onward.engine.values import ClaimRequest
from onward.lifecycle import Complete, Release, Retry, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Desk, new_job


async def test_jobs_come_in_the_order_they_were_put_in(desk: Desk):  # O3
    refs = await desk.add_many(3)
    await desk.advance(1)
    refs += [await desk.add(), await desk.add()]
    await desk.advance(1)
    refs += await desk.add_many(3)
    assert [(await desk.take_one()).ref for _ in range(3)] + await desk.taken() == refs


@needs(Feature.PRIORITY)
async def test_the_higher_priority_comes_first_then_the_longer_ready(desk: Desk):  # O3
    priorities = [0, 5, 1_000_000, 5, 0, 7]
    refs = []
    for priority in priorities:
        refs.append(await desk.add(priority=priority))
        await desk.advance(1)
    expected = [refs[index] for index in (2, 5, 1, 3, 0, 4)]
    assert await desk.taken() == expected


@needs(Feature.PRIORITY)
async def test_priority_holds_one_by_one_as_in_a_batch(desk: Desk):  # O3
    answers = await desk.put([new_job(priority=priority) for priority in (1, 3, 2, 3)])
    expected = [answers[index].ref for index in (1, 3, 2, 0)]
    assert [(await desk.take_one()).ref for _ in range(4)] == expected


@needs(Feature.DELAY, Feature.READY_ORDER)
async def test_a_job_delayed_for_an_hour_has_not_been_waiting_for_an_hour(desk: Desk):  # O3
    delayed = await desk.add(delay=timedelta(hours=1))
    await desk.advance(timedelta(minutes=59))
    ready = await desk.add()
    await desk.wait(timedelta(minutes=1))
    claims = await desk.take(slots=2)
    assert [claim.ref for claim in claims] == [ready, delayed]
    assert [claim.waited for claim in claims] == [60.0, 0.0]


@needs(Feature.DELAY, Feature.READY_ORDER)
async def test_jobs_become_ready_in_the_order_of_their_times_whatever_the_order_of_arrival(desk: Desk):  # O3
    late = await desk.add(delay=timedelta(minutes=3))
    early = await desk.add(delay=timedelta(minutes=1))
    middle = await desk.add(delay=timedelta(minutes=2))
    await desk.wait(timedelta(minutes=3))
    assert await desk.taken() == [early, middle, late]


@needs(Feature.READY_ORDER)
async def test_a_retried_job_goes_behind_those_that_were_ready_before_it(desk: Desk):  # O3
    failing = await desk.add()
    claim = await desk.take_one()
    await desk.advance(1)
    waiting = await desk.add()
    await desk.advance(1)
    assert await desk.end(claim, Retry(timedelta(seconds=1), BOOM))
    await desk.wait(1)
    assert await desk.taken() == [waiting, failing]


async def test_no_job_is_given_twice(desk: Desk):  # O3
    refs = await desk.add_many(7)
    other = Desk(desk.store, await desk.store.connect())
    taken = [
        *await desk.taken(slots=3),
        *await other.taken(slots=3, worker="worker-2"),
        *await desk.taken(slots=3),
        *await other.taken(slots=3, worker="worker-2"),
    ]
    assert sorted(taken) == sorted(refs)


async def test_no_more_come_than_were_asked_for(desk: Desk):
    await desk.add_many(10)
    assert [len(await desk.take(slots=slots)) for slots in (1, 2, 3, 10)] == [1, 2, 3, 4]
    assert await desk.take(slots=5) == ()


async def test_a_claim_with_a_free_slot_starts_the_job_in_the_same_step(desk: Desk):  # O11
    ref = await desk.add()
    claim = await desk.take_one(worker="worker-9")
    assert (claim.started, claim.attempts, claim.ref) == (True, 1, ref)
    job = await desk.job(ref)
    assert (job.status, job.attempts, job.worker_id) == (State.RUNNING, 1, "worker-9")
    assert (job.claimed_at, job.started_at) == (desk.now, desk.now)


@needs(Feature.CLAIMED_STATE)
async def test_slots_are_filled_before_anything_is_claimed_ahead(desk: Desk):
    refs = await desk.add_many(5)
    claims = await desk.take(slots=2, prefetch_claimed=2)
    assert [claim.ref for claim in claims] == refs[:4]
    assert [claim.started for claim in claims] == [True, True, False, False]
    assert [claim.attempts for claim in claims] == [1, 1, 0, 0]
    assert [await desk.state(ref) for ref in refs] == [
        State.RUNNING,
        State.RUNNING,
        State.CLAIMED,
        State.CLAIMED,
        State.PENDING,
    ]


@needs(Feature.CLAIMED_STATE)
async def test_fewer_jobs_than_slots_leave_nothing_ahead(desk: Desk):
    await desk.add_many(2)
    assert [claim.started for claim in await desk.take(slots=2, prefetch_claimed=5)] == [True, True]


@needs(Feature.CLAIMED_STATE)
async def test_a_job_claimed_ahead_counts_its_run_only_when_it_starts(desk: Desk):
    ref = await desk.add()
    (claim,) = await desk.take_ahead()
    assert (await desk.job(ref)).attempts == 0
    assert await desk.engine.start([claim]) == frozenset()
    assert (await desk.job(ref)).attempts == 1
    assert await desk.engine.start([claim]) == {claim.token}
    assert (await desk.job(ref)).attempts == 1
    assert await desk.end(claim, Complete())


async def test_every_claim_of_a_job_has_a_token_of_its_own(desk: Desk):  # X3
    await desk.add()
    tokens = set()
    for _ in range(5):
        claim = await desk.take_one()
        tokens.add(claim.token)
        assert await desk.end(claim, Release())
    assert len(tokens) == 5


async def test_a_claim_says_how_long_the_job_has_been_ready(desk: Desk):
    await desk.add()
    await desk.advance(2.5)
    claim = await desk.take_one()
    assert claim.waited == 2.5


async def test_only_the_queues_that_were_named_are_claimed_from(desk: Desk):
    refs = {queue: await desk.add(queue=queue) for queue in ("a", "b", "c")}
    assert await desk.taken("b") == [refs["b"]]
    assert set(await desk.taken("a", "c", "nobody-knows-it")) == {refs["a"], refs["c"]}


@needs(Feature.PATTERNS)
async def test_a_pattern_takes_every_queue_below_it_and_no_other(desk: Desk):  # X5
    names = ["mail", "mail/acme", "mail/acme/42", "mailbox", "mail-x/acme", "post/mail/acme", "mail.acme", "mail0"]
    refs = {name: await desk.add(queue=name) for name in names}
    assert set(await desk.taken("mail/*")) == {refs["mail/acme"], refs["mail/acme/42"]}
    assert set(await desk.taken("mail", "post/*")) == {refs["mail"], refs["post/mail/acme"]}
    assert set(await desk.taken("*")) == {refs[name] for name in ("mailbox", "mail-x/acme", "mail.acme", "mail0")}


@needs(Feature.PATTERNS)
async def test_the_characters_of_a_name_mean_themselves_in_a_pattern(desk: Desk):  # X5
    await desk.add(queue="axb/c")
    hit = await desk.add(queue="a_b/c")
    assert await desk.taken("a_b/*") == [hit]
    hit = await desk.add(queue="a.b/c")
    assert await desk.taken("a.b/*") == [hit]


@needs(Feature.PATTERNS)
async def test_a_queue_that_matches_twice_gives_each_job_once(desk: Desk):
    refs = await desk.add_many(4, queue="mail/acme")
    assert await desk.taken("mail/acme", "mail/*", "*", "mail/acme") == refs


@needs(Feature.PATTERNS)
async def test_a_queue_made_after_the_pattern_was_first_asked_for_is_found(desk: Desk):  # X5
    assert await desk.take("mail/*") == ()
    ref = await desk.add(queue="mail/late")
    assert await desk.taken("mail/*") == [ref]


async def test_asking_for_nothing_gives_nothing(desk: Desk):
    ref = await desk.add()
    assert (await desk.engine.claim(ClaimRequest(worker_id="w", queues=("default",), slots=0))).claims == ()
    assert await desk.state(ref) is State.PENDING
