"""Which job comes next, and what comes with it (O3)."""

from __future__ import annotations

from datetime import timedelta

from onward.engine.capabilities import Feature
from onward.engine.values import ClaimRequest
from onward.lifecycle import Complete, JobStatus, Release, Retry
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Driver, new_job


async def test_jobs_come_in_the_order_they_were_put_in(driver: Driver):  # O3
    refs = await driver.add_many(3)
    await driver.advance(1)
    refs += [await driver.add(), await driver.add()]
    await driver.advance(1)
    refs += await driver.add_many(3)
    assert [(await driver.take_one()).ref for _ in range(3)] + await driver.taken() == refs


@needs(Feature.PRIORITY)
async def test_the_higher_priority_comes_first_then_the_longer_ready(driver: Driver):  # O3
    priorities = [0, 5, 1_000_000, 5, 0, 7]
    refs = []
    for priority in priorities:
        refs.append(await driver.add(priority=priority))
        await driver.advance(1)
    expected = [refs[index] for index in (2, 5, 1, 3, 0, 4)]
    assert await driver.taken() == expected


@needs(Feature.PRIORITY)
async def test_priority_holds_one_by_one_as_in_a_batch(driver: Driver):  # O3
    answers = await driver.put([new_job(priority=priority) for priority in (1, 3, 2, 3)])
    expected = [answers[index].ref for index in (1, 3, 2, 0)]
    assert [(await driver.take_one()).ref for _ in range(4)] == expected


@needs(Feature.DELAY, Feature.READY_ORDER)
async def test_a_job_delayed_for_an_hour_has_not_been_waiting_for_an_hour(driver: Driver):  # O3
    delayed = await driver.add(delay=timedelta(hours=1))
    await driver.advance(timedelta(minutes=59))
    ready = await driver.add()
    await driver.wait(timedelta(minutes=1))
    claims = await driver.take(slots=2)
    assert [claim.ref for claim in claims] == [ready, delayed]
    assert [claim.wait_seconds for claim in claims] == [60.0, 0.0]


@needs(Feature.DELAY, Feature.READY_ORDER)
async def test_jobs_become_ready_in_the_order_of_their_times_whatever_the_order_of_arrival(driver: Driver):  # O3
    late = await driver.add(delay=timedelta(minutes=3))
    early = await driver.add(delay=timedelta(minutes=1))
    middle = await driver.add(delay=timedelta(minutes=2))
    await driver.wait(timedelta(minutes=3))
    assert await driver.taken() == [early, middle, late]


@needs(Feature.READY_ORDER)
async def test_a_retried_job_goes_behind_those_that_were_ready_before_it(driver: Driver):  # O3
    failing = await driver.add()
    claim = await driver.take_one()
    await driver.advance(1)
    waiting = await driver.add()
    await driver.advance(1)
    assert await driver.end(claim, Retry(timedelta(seconds=1), BOOM))
    await driver.wait(1)
    assert await driver.taken() == [waiting, failing]


async def test_no_job_is_given_twice(driver: Driver):  # O3
    refs = await driver.add_many(7)
    other = Driver(driver.store, await driver.store.connect())
    taken = [
        *await driver.taken(slots=3),
        *await other.taken(slots=3, worker="worker-2"),
        *await driver.taken(slots=3),
        *await other.taken(slots=3, worker="worker-2"),
    ]
    assert sorted(taken) == sorted(refs)


async def test_no_more_come_than_were_asked_for(driver: Driver):
    await driver.add_many(10)
    assert [len(await driver.take(slots=slots)) for slots in (1, 2, 3, 10)] == [1, 2, 3, 4]
    assert await driver.take(slots=5) == ()


async def test_a_claim_with_a_free_slot_starts_the_job_in_the_same_step(driver: Driver):  # O11
    ref = await driver.add()
    claim = await driver.take_one(worker="worker-9")
    assert (claim.started, claim.attempts, claim.ref) == (True, 1, ref)
    job = await driver.job(ref)
    assert (job.status, job.attempts, job.worker_id) == (JobStatus.RUNNING, 1, "worker-9")
    assert (job.claimed_at, job.started_at) == (driver.now, driver.now)


@needs(Feature.CLAIMED_STATE)
async def test_slots_are_filled_before_anything_is_claimed_ahead(driver: Driver):
    refs = await driver.add_many(5)
    claims = await driver.take(slots=2, prefetch_claimed=2)
    assert [claim.ref for claim in claims] == refs[:4]
    assert [claim.started for claim in claims] == [True, True, False, False]
    assert [claim.attempts for claim in claims] == [1, 1, 0, 0]
    assert [await driver.state(ref) for ref in refs] == [
        JobStatus.RUNNING,
        JobStatus.RUNNING,
        JobStatus.CLAIMED,
        JobStatus.CLAIMED,
        JobStatus.PENDING,
    ]


@needs(Feature.CLAIMED_STATE)
async def test_fewer_jobs_than_slots_leave_nothing_ahead(driver: Driver):
    await driver.add_many(2)
    assert [claim.started for claim in await driver.take(slots=2, prefetch_claimed=5)] == [True, True]


@needs(Feature.CLAIMED_STATE)
async def test_a_job_claimed_ahead_counts_its_run_only_when_it_starts(driver: Driver):
    ref = await driver.add()
    (claim,) = await driver.take_ahead()
    assert (await driver.job(ref)).attempts == 0
    assert await driver.engine.start([claim]) == frozenset()
    assert (await driver.job(ref)).attempts == 1
    assert await driver.engine.start([claim]) == {claim.token}
    assert (await driver.job(ref)).attempts == 1
    assert await driver.end(claim, Complete())


async def test_every_claim_of_a_job_has_a_token_of_its_own(driver: Driver):  # X3
    await driver.add()
    tokens = set()
    for _ in range(5):
        claim = await driver.take_one()
        tokens.add(claim.token)
        assert await driver.end(claim, Release())
    assert len(tokens) == 5


async def test_a_claim_says_how_long_the_job_has_been_ready(driver: Driver):
    await driver.add()
    await driver.advance(2.5)
    claim = await driver.take_one()
    assert claim.wait_seconds == 2.5


async def test_only_the_queues_that_were_named_are_claimed_from(driver: Driver):
    refs = {queue: await driver.add(queue=queue) for queue in ("a", "b", "c")}
    assert await driver.taken("b") == [refs["b"]]
    assert set(await driver.taken("a", "c", "nobody-knows-it")) == {refs["a"], refs["c"]}


@needs(Feature.PATTERNS)
async def test_a_pattern_takes_every_queue_below_it_and_no_other(driver: Driver):  # X5
    names = ["mail", "mail/acme", "mail/acme/42", "mailbox", "mail-x/acme", "post/mail/acme", "mail.acme", "mail0"]
    refs = {name: await driver.add(queue=name) for name in names}
    assert set(await driver.taken("mail/*")) == {refs["mail/acme"], refs["mail/acme/42"]}
    assert set(await driver.taken("mail", "post/*")) == {refs["mail"], refs["post/mail/acme"]}
    assert set(await driver.taken("*")) == {refs[name] for name in ("mailbox", "mail-x/acme", "mail.acme", "mail0")}


@needs(Feature.PATTERNS)
async def test_the_characters_of_a_name_mean_themselves_in_a_pattern(driver: Driver):  # X5
    await driver.add(queue="axb/c")
    hit = await driver.add(queue="a_b/c")
    assert await driver.taken("a_b/*") == [hit]
    hit = await driver.add(queue="a.b/c")
    assert await driver.taken("a.b/*") == [hit]


@needs(Feature.PATTERNS)
async def test_a_queue_that_matches_twice_gives_each_job_once(driver: Driver):
    refs = await driver.add_many(4, queue="mail/acme")
    assert await driver.taken("mail/acme", "mail/*", "*", "mail/acme") == refs


@needs(Feature.PATTERNS)
async def test_a_queue_made_after_the_pattern_was_first_asked_for_is_found(driver: Driver):  # X5
    assert await driver.take("mail/*") == ()
    ref = await driver.add(queue="mail/late")
    assert await driver.taken("mail/*") == [ref]


async def test_asking_for_nothing_gives_nothing(driver: Driver):
    ref = await driver.add()
    assert (await driver.engine.claim(ClaimRequest(worker_id="w", queues=("default",), slots=0))).claims == ()
    assert await driver.state(ref) is JobStatus.PENDING
